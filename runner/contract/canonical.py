"""One byte form for every document, so that a hash names its content."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """Base of every contract model: unknown keys, loose types and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def without_defaults(model: Document, written: dict[str, Any], *names: str) -> dict[str, Any]:
    """`written` without those of `names` that have their default: settings younger than stored documents, whose bytes and hashes stay."""
    unset = {name for name in names if getattr(model, name) == type(model).model_fields[name].default}
    return {name: value for name, value in written.items() if name not in unset}


def canonical_bytes(value: Any) -> bytes:
    """Serialise to UTF-8 JSON with sorted keys, no blanks, explicit nulls.

    A `Document` is dumped with its defaults materialised. Raises ValueError on NaN or infinity.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest(data: bytes) -> str:
    """SHA-256 of `data` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
