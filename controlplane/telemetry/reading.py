"""Reading the loosely typed parts of a batch: typed access that names the field, the value and what it must be. Raises InvalidBatch."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from controlplane.storage import DIGEST
from controlplane.telemetry.text import clean_json, clean_text
from runner.contract.events import InvalidBatch
from runner.contract.termination import ALIASES, Termination


def moment(seconds: float) -> datetime:
    """Unix seconds as an aware time. Raises InvalidBatch outside of the calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidBatch(f"t: {seconds!r} is no time in Unix seconds") from None


class Reader:
    """Typed access to a map under `where`: absent or null is None, the wrong type is refused by the field's name."""

    def __init__(self, where: str, data: dict[str, Any]):
        self.where, self.data = where, data

    def _value(self, key: str, wanted: str, accepts: Callable[[Any], bool]):
        value = self.data.get(key)
        if value is not None and not accepts(value):
            raise InvalidBatch(f"{self.where}.{key}: must be {wanted}, got {value!r:.80}")
        return value

    def text(self, key: str, limit: int | None = None) -> str:
        value = self._value(key, "text", lambda value: isinstance(value, str))
        return clean_text(value or "")[:limit]

    def whole(self, key: str, bits: int = 31) -> int | None:
        return self._value(
            key, "a whole number", lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**bits
        )

    def number(self, key: str) -> float | None:
        value = self._value(key, "a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
        return None if value is None else float(value)

    def finite(self, key: str) -> float | None:
        """A number; NaN and infinity mean that there is none."""
        value = self.number(key)
        return value if value is not None and math.isfinite(value) else None

    def flag(self, key: str) -> bool | None:
        return self._value(key, "true, false or null", lambda value: isinstance(value, bool))

    def uuid(self, key: str) -> UUID | None:
        try:
            return UUID(self.text(key)) if self.data.get(key) is not None else None
        except ValueError:
            raise InvalidBatch(f"{self.where}.{key}: {self.data[key]!r:.60} is no UUID") from None

    def digest(self, key: str) -> str:
        return self._value(key, "a SHA-256 digest", lambda value: isinstance(value, str) and (value == "" or DIGEST.fullmatch(value))) or ""

    def document(self, key: str) -> dict:
        return clean_json(self._value(key, "a map", lambda value: isinstance(value, dict)) or {})

    def names(self, key: str) -> list[str]:
        names = self._value(key, "a list of names", lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value))
        return [clean_text(name)[:40] for name in names or []]

    def maps(self, key: str) -> list[dict]:
        rows = self._value(key, "a list of maps", lambda value: isinstance(value, list) and all(isinstance(row, dict) for row in value))
        return rows or []

    def termination(self, key: str) -> str:
        """The enum's name; an unknown word is kept visible as `unknown`, never guessed."""
        word = self.text(key)
        if not word or word in set(Termination):
            return word
        return ALIASES.get(word, Termination.UNKNOWN).value
