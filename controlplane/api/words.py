"""What is wrong with a parameter or a field of a body, in our words: what it must be, and what was given."""

from typing import Any

MUST = {
    "missing": "is required and has no default; give it",
    "extra_forbidden": "is unknown; remove it or correct its spelling",
    "bool": "must be true or false",
    "int": "must be a whole number",
    "float": "must be a number",
    "finite_number": "must be a finite number",
    "string": "must be a text",
    "list": "must be a list",
    "dict": "must be an object",
    "model": "must be an object",
    "uuid": "must be an identifier, 32 hexadecimal digits such as 0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
    "datetime": "must be a moment such as 2026-01-31T12:00:00Z",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "string_too_long": "may have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_long": "may have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
    "literal_error": "must be one of {expected}",
    "enum": "must be one of {expected}",
}
SHOWN_CHARACTERS = 60


def message(item: dict[str, Any]) -> str:
    """The message for one of pydantic's errors."""
    kind, context, value = item["type"], item.get("ctx", {}), item.get("input")
    must = MUST.get(kind) or MUST.get(kind.partition("_")[0])
    if must is None:
        return item["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if kind in ("missing", "extra_forbidden"):
        return must
    return must.format(**{name: _alternatives(name, text) for name, text in context.items()}) + _given(kind, context, value)


def _alternatives(name: str, text: Any) -> Any:
    # pydantic writes 'a', 'b' or 'c'
    return text.replace(" or ", ", ") if name == "expected" else text


def _given(kind: str, context: dict[str, Any], value: Any) -> str:
    if kind in ("string_too_long", "string_too_short"):
        return f", got {len(value)}"
    if "actual_length" in context:
        return f", got {context['actual_length']}"
    return f", got {value!r:.{SHOWN_CHARACTERS}}" if value is None or isinstance(value, str | int | float) else ""
