"""How every document declares a field: its default, its help and its place on the form."""

from typing import Any

from pydantic import Field
from pydantic_core import PydanticCustomError

SLUG = r"^[a-z0-9][a-z0-9._-]{0,49}$"


def setting(default: Any, help: str, *, level: str = "basic", group: str = "", unit: str = "", **limits) -> Any:
    """A field with its one-line help and its place on the form."""
    extra = {"level": level, **({"group": group} if group else {}), **({"unit": unit} if unit else {})}
    return Field(default, description=help, json_schema_extra=extra, **limits)


def at_field(path: list, value: Any, message: str) -> PydanticCustomError:
    """An error of the field at `path` below, which only its neighbours make one."""
    return PydanticCustomError("cross_field", "{message}", {"message": message, "at": path, "value": value})
