"""Errors → field: each error at the input that can cure it."""

from typing import Iterable

from controlplane.runs.forms.schema import root, split
from runner.contract.parse import FieldError, pointer as join


def place(errors: Iterable[FieldError], pointers: set[str]) -> tuple[dict[str, list[str]], list[FieldError]]:
    """Messages by the pointer of the field they are shown at, and the errors that no field can show.

    An error below a field (one entry of a list) climbs to it; union tags in a pointer are skipped.
    """
    placed: dict[str, list[str]] = {}
    rest = []
    for error in errors:
        at = _field_of(error.pointer, pointers)
        if at is None:
            rest.append(error)
        else:
            placed.setdefault(at, []).append(error.message)
    return placed, rest


def _field_of(pointer: str, pointers: set[str]) -> str | None:
    for path in (split(pointer), strip_tags(split(pointer))):
        # Only from an entry up to its list: a key that an object does not know is no error of the whole object.
        while path and not _known(join(path), pointers) and path[-1].isdigit():
            path = path[:-1]
        if found := path and _known(join(path), pointers):
            return found
    return None


def _known(pointer: str, pointers: set[str]) -> str | None:
    if pointer in pointers:
        return pointer
    union = pointer.removesuffix("/type")
    return union if union != pointer and union in pointers else None


def strip_tags(parts: list[str]) -> list[str]:
    """Drop the names of union variants from a path: /stages/0/grpo/steps → /stages/0/steps."""
    path, node = [], root()
    for part in parts:
        if node is not None and node.kind == "union" and part in node.variants:
            node = node.variants[part]
            continue
        path.append(part)
        node = _below(node, part)
    return path


def _below(node, part):
    if node is None or node.kind == "items":
        return node and node.item
    if node.kind == "union":
        return next((variant.properties[part] for variant in node.variants.values() if part in variant.properties), None)
    return node.properties.get(part)
