"""What Postgres can hold of what a runner says: no NUL in text, no NaN or infinity in JSON."""

import math
from typing import Any


def clean_text(text: str) -> str:
    """`text` with each NUL, which Postgres refuses, shown as the replacement character."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")


def json_number(value: float) -> float | str:
    """A number as the JSON of this API carries it: non-finite ones are the strings NaN, Infinity and -Infinity."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def clean_json(value: Any) -> Any:
    """A msgpack value as storable JSON: keys become text, bytes hexadecimal, non-finite numbers strings."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, float):
        return json_number(value)
    if isinstance(value, dict):
        return {clean_text(str(key)): clean_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, int) else str(value)
