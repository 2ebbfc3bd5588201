"""Document → RunConfig: YAML 1.2, TOML or JSON text in, a typed config or a list of field errors out."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from runner.contract.run_config import SCHEMA_VERSION, RunConfig

FORMATS = ("json", "toml", "yaml")

# One function a step: UPCASTERS[n] turns a document of schema n into one of n + 1, so that old rows stay readable.
UPCASTERS: dict[int, Callable[[dict], dict]] = {}


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


def upcast(document: dict) -> dict:
    """Bring a document of an older schema to the current one; a document without a version is current."""
    version = document.get("schema_version", SCHEMA_VERSION)
    # Anything else, an unhashable object among it, is for validation to name.
    while isinstance(version, int) and version in UPCASTERS:
        document = UPCASTERS[version](document)
        version = document["schema_version"]
    return document


def parse(document: dict) -> RunConfig:
    """Validate `document` strictly. Raises InvalidDocument naming each field, its value and what is wrong."""
    document = upcast(document)
    try:
        return RunConfig.model_validate(document)
    except ValidationError as error:
        raise InvalidDocument(field_errors(error, document)) from None


def field_errors(error: ValidationError, document: dict) -> list[FieldError]:
    """What pydantic found wrong with `document`, each with a pointer that exists in it."""
    return [_field_error(item, document) for item in error.errors(include_url=False)]


def _field_error(item: dict, document: dict) -> FieldError:
    context = item.get("ctx") or {}
    path = strip_union_tags(item["loc"], document) + list(context.get("at", ()))
    value = context["value"] if "at" in context else item.get("input")
    return FieldError(pointer(path), _message(item, context), value if _is_scalar(value) else None)


def _message(item: dict, context: dict) -> str:
    if item["type"] == "extra_forbidden":
        return "unknown key; remove it or correct its spelling"
    if item["type"] == "union_tag_not_found":
        return "needs a `type` that says which variant it is"
    if item["type"] == "union_tag_invalid":
        return f"type {context['tag']!r} is none of {context['expected_tags']}"
    if item["type"] == "missing":
        return "is required and has no default"
    message = item["msg"].removeprefix("Value error, ")
    if message.startswith("Input should ") and _is_scalar(item.get("input")):
        return f"{message.removeprefix('Input ')}, got {item['input']!r:.60}"
    return message


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool)


def strip_union_tags(location: tuple, document: Any) -> list:
    """Drop the discriminator tags that pydantic inserts, so that the path exists in the document."""
    path, node, entered = [], document, True
    for part in location:
        # Every table with a `type` is a union, so the first part below it is its tag, even where a field has the same name.
        if entered and isinstance(node, dict) and part == node.get("type"):
            entered = False
            continue
        path.append(part)
        node, entered = _child(node, part), True
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
