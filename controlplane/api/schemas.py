"""Base of every request body."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Input(BaseModel):
    """A request body: an unknown key is an error and never ignored, so that a misspelt one is noticed."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be a whole number, got {value!r:.60}")
    return value


Whole = Annotated[int, BeforeValidator(_number)]
"""A whole number as JSON Schema means it: 3 and 3.0, but neither "3" nor true."""
