"""What differs between configs, by JSON pointer."""

from dataclasses import dataclass
from typing import Any, Iterator, Sequence

from controlplane.runs.forms.schema import ABSENT, child

MAX_COMPARED = 10


@dataclass(frozen=True)
class Change:
    """One differing key. `before` or `after` is ABSENT where a config has no such key."""

    pointer: str
    before: Any
    after: Any


def flatten(document: Any, pointer: str = "") -> dict[str, Any]:
    """Leaves by pointer. A list of plain values is one leaf, and so is anything empty."""
    return dict(_leaves(document, pointer))


def _leaves(node: Any, pointer: str) -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from _leaves(value, child(pointer, key))
    elif isinstance(node, list) and any(isinstance(item, dict | list) for item in node):
        for index, item in enumerate(node):
            yield from _leaves(item, child(pointer, index))
    else:
        yield pointer, node


def diff(before: dict, after: dict) -> list[Change]:
    """Every key whose value differs, in the order of `before`, then those only `after` has."""
    return [Change(pointer, *values) for pointer, values in differing_keys([before, after]).items()]


def differing_keys(configs: Sequence[dict]) -> dict[str, list[Any]]:
    """The keys in which 2 to 10 configs are not all alike, each with one value (or ABSENT) a config."""
    if not 2 <= len(configs) <= MAX_COMPARED:
        raise ValueError(f"compare 2 to {MAX_COMPARED} configs, got {len(configs)}")
    flat = [flatten(config) for config in configs]
    pointers = dict.fromkeys(pointer for one in flat for pointer in one)
    rows = {pointer: [one.get(pointer, ABSENT) for one in flat] for pointer in pointers}
    return {pointer: values for pointer, values in rows.items() if any(not _same(values[0], value) for value in values[1:])}


def _same(a: Any, b: Any) -> bool:
    # True == 1 in Python, but a flag is no number.
    return type(a) is type(b) and a == b or (_is_number(a) and _is_number(b) and a == b)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
