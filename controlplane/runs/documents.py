"""Run documents as trees: fields set by their JSON pointers."""

from copy import deepcopy
from typing import Any


def split_pointer(text: str) -> list[str]:
    """Keys of an RFC 6901 pointer. Raises ValueError on a malformed one."""
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} is no JSON pointer: it must begin with a slash")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def with_changes(document: dict, changes: dict[str, Any]) -> dict:
    """A copy of `document` with each pointer of `changes` set. Raises ValueError when a pointer's parent is not there."""
    changed = deepcopy(document)
    for where, value in changes.items():
        *parents, last = split_pointer(where) or [""]
        node = changed
        for part in parents:
            node = _step(node, part, where)
        if isinstance(node, list):
            node[_index(node, last, where)] = value
        elif isinstance(node, dict):
            node[last] = value
        else:
            raise ValueError(f"{where}: the document has nothing to set there")
    return changed


def _step(node: Any, part: str, where: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, part, where)]
    if isinstance(node, dict) and part in node:
        return node[part]
    raise ValueError(f"{where}: the document has no {part!r}")


def _index(node: list, part: str, where: str) -> int:
    if not part.isdigit() or int(part) >= len(node):
        raise ValueError(f"{where}: the list has {len(node)} entries")
    return int(part)
