"""Document → RunConfig: YAML 1.2, TOML or JSON text in, a typed config or a list of field errors out."""

import json
import tomllib
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from runner.contract.run_config import RunConfig

FORMATS = ("json", "toml", "yaml")


@dataclass(frozen=True)
class FieldError:
    """One thing wrong with a document. `pointer` is an RFC 6901 JSON pointer to the field."""

    pointer: str
    message: str
    value: Any = None

    def __str__(self) -> str:
        return f"{self.pointer or '/'}: {self.message}"


class InvalidDocument(ValueError):
    """The document was refused; `errors` says where and why."""

    def __init__(self, errors: list[FieldError]):
        self.errors = errors
        super().__init__("; ".join(map(str, errors)))


def load_text(text: str, format: str) -> dict:
    """Read a mapping from `text` in one of FORMATS. Raises InvalidDocument with the line of a syntax error."""
    try:
        document = _read(text, format)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument([FieldError("", f"not readable as {format}: {error}")]) from None
    if not isinstance(document, dict):
        raise InvalidDocument([FieldError("", f"a run document is a mapping, got {type(document).__name__}")])
    return document


def _read(text: str, format: str) -> Any:
    if format == "json":
        return json.loads(text, parse_constant=_refuse_constant)
    if format == "toml":
        return tomllib.loads(text)
    if format == "yaml":
        from ruamel.yaml import YAML, YAMLError

        try:
            return YAML(typ="safe", pure=True).load(text)
        except YAMLError as error:
            raise ValueError(error) from None
    raise ValueError(f"unknown format; choose one of {', '.join(FORMATS)}")


def _refuse_constant(name: str):
    raise ValueError(f"{name} is not a finite number")


def parse(document: dict) -> RunConfig:
    """Validate `document` strictly. Raises InvalidDocument naming each field, its value and what is wrong."""
    try:
        return RunConfig.model_validate(document)
    except ValidationError as error:
        raise InvalidDocument([_field_error(item, document) for item in error.errors(include_url=False)]) from None


def _field_error(item: dict, document: dict) -> FieldError:
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        message = "unknown key; remove it or correct its spelling"
    value = item.get("input")
    return FieldError(pointer(strip_union_tags(item["loc"], document)), message, value if _is_scalar(value) else None)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def strip_union_tags(location: tuple, document: Any) -> list:
    """Drop the discriminator tags that pydantic inserts, so that the path exists in the document."""
    path, node = [], document
    for part in location:
        is_tag = isinstance(part, str) and isinstance(node, dict) and part not in node and node.get("type") == part
        if is_tag:
            continue
        path.append(part)
        node = _child(node, part)
    return path


def _child(node: Any, part: Any) -> Any:
    if isinstance(node, dict):
        return node.get(part)
    if isinstance(node, list) and isinstance(part, int) and part < len(node):
        return node[part]
    return None


def pointer(path: list) -> str:
    """RFC 6901 JSON pointer of a path of keys and indices."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)
