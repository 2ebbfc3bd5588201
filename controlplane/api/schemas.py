"""Base of every request body."""

from pydantic import BaseModel, ConfigDict


class Input(BaseModel):
    """A request body: an unknown key is an error and never ignored, so that a misspelt one is noticed."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
