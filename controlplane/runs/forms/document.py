"""POST → document: blank is absent, and what cannot be converted is an error at its field that keeps the typed text.

Names are JSON pointers; everything else that was posted (tokens, buttons) is not ours and is ignored.
"""

import re
from dataclasses import dataclass
from typing import Any, Mapping

from controlplane.runs.forms.schema import ABSENT, Node, child, root
from runner.contract.parse import FieldError, InvalidDocument, parse
from runner.contract.run_config import RunConfig

Values = dict[str, list[str]]

INTEGER = re.compile(r"[+-]?[0-9]{1,300}")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
LINE_END = re.compile(r"\r\n|\r|\n")
TRUTH = {"true": True, "on": True, "false": False, "off": False}
NULL = "#null"


@dataclass(frozen=True)
class Posted:
    """What a form said. `typed` is handed back to `build_form` so that every entry stays as it was typed."""

    document: dict
    errors: tuple[FieldError, ...]
    typed: Values

    def check(self) -> tuple[RunConfig | None, list[FieldError]]:
        """The valid config, or every error: of conversion and of the contract, one a field."""
        try:
            config = parse(self.document)
        except InvalidDocument as invalid:
            unreadable = {error.pointer for error in self.errors}
            return None, [*self.errors, *(error for error in invalid.errors if error.pointer not in unreadable)]
        return (None, list(self.errors)) if self.errors else (config, [])


def read_post(values: Any) -> Posted:
    """`values`: a QueryDict, or a mapping of names to lists of texts."""
    typed = clean(values)
    document, errors = read_values(typed)
    return Posted(document, tuple(errors), typed)


def read_values(typed: Values) -> tuple[dict, list[FieldError]]:
    """The document that cleaned values say, and what could not be converted."""
    reader = _Reader(typed)
    return reader.properties(root(), "", ABSENT), reader.errors


def clean(values: Any) -> Values:
    """Ours among the posted names, with the items of each list numbered from 0 without gaps."""
    pairs = values.lists() if hasattr(values, "lists") else values.items()
    ours = {name: [texts] if isinstance(texts, str) else list(texts) for name, texts in pairs if name.startswith("/")}
    for pointer in _item_lists():
        present = _indices(ours, pointer)
        ours = _renumbered(ours, pointer, {old: new for new, old in enumerate(present)})
    return ours


def _item_lists() -> list[str]:
    return [child("", name) for name, node in root().properties.items() if node.kind == "items"]


def _indices(values: Values, pointer: str) -> list[int]:
    pattern = re.compile(re.escape(pointer) + r"/([0-9]{1,4})/type")
    return sorted({int(match[1]) for match in map(pattern.fullmatch, values) if match})


def _renumbered(values: Values, pointer: str, to: Mapping[int, int]) -> Values:
    """Moves item `old` of the list at `pointer` to `to[old]`; items that `to` does not name are dropped."""
    pattern = re.compile(re.escape(pointer) + r"/([0-9]{1,4})(/.*)", re.DOTALL)
    moved = {}
    for name, texts in values.items():
        match = pattern.fullmatch(name)
        if not match:
            moved[name] = texts
        elif int(match[1]) in to:
            moved[f"{pointer}/{to[int(match[1])]}{match[2]}"] = texts
    return moved


def add_item(values: Any, pointer: str, tag: str) -> Values:
    """The values with one more item of type `tag` at the end of the list at `pointer`. Raises KeyError."""
    known = root().properties[pointer.removeprefix("/")].item.variants
    if tag not in known:
        raise KeyError(f"{pointer} has no type {tag!r:.40}; choose one of {', '.join(sorted(known))}")
    typed = clean(values)
    return {**typed, f"{pointer}/{len(_indices(typed, pointer))}/type": [tag]}


def remove_item(values: Any, pointer: str, index: int) -> Values:
    """The values without item `index`; those after it move up. Raises KeyError."""
    typed = clean(values)
    order = _order(typed, pointer, index)
    kept = [old for old in order if old != index]
    return _renumbered(typed, pointer, {old: new for new, old in enumerate(kept)})


def move_item(values: Any, pointer: str, index: int, by: int) -> Values:
    """The values with item `index` moved `by` places, as far as the list reaches. Raises KeyError."""
    typed = clean(values)
    order = _order(typed, pointer, index)
    target = min(max(index + by, 0), len(order) - 1)
    order.insert(target, order.pop(index))
    return _renumbered(typed, pointer, {old: new for new, old in enumerate(order)})


def _order(typed: Values, pointer: str, index: int) -> list[int]:
    """The indices of the list at `pointer`, `index` among them. Raises KeyError."""
    order = _indices(typed, pointer)
    if index not in order:
        raise KeyError(f"{pointer}/{index} is none of the {len(order)} in the form")
    return order


class _Reader:
    def __init__(self, typed: Values):
        self.typed = typed
        self.errors: list[FieldError] = []

    def value(self, node: Node, pointer: str, default: Any) -> Any:
        if node.kind == "object":
            return self.properties(node, pointer, default) or ABSENT
        if node.kind == "union":
            return self.union(node, pointer, default)
        if node.kind == "items":
            items = [self.union(node.item, child(pointer, index), ABSENT) for index in _indices(self.typed, pointer)]
            return [item for item in items if item is not ABSENT] or ABSENT
        return self.leaf(node, pointer)

    def properties(self, node: Node, pointer: str, default: Any, present: bool = False) -> dict:
        """The fields that say something. Blank means the default shown, also where an enclosing default differs from the field's own."""
        shown = {name: (below, below_default) for name, below, below_default in node.children(default)}
        read = {name: self.value(below, child(pointer, name), below_default) for name, (below, below_default) in shown.items()}
        said = {name: value for name, value in read.items() if value is not ABSENT}
        if not said and not present:
            return {}
        inherited = {name: d for name, (below, d) in shown.items() if name not in said and d is not ABSENT and d != below.default}
        return {**inherited, **said}

    def union(self, node: Node, pointer: str, default: Any) -> Any:
        initial = default.get("type") if isinstance(default, dict) else None
        texts = self.typed.get(child(pointer, "type"))
        tag = texts[-1] if texts else initial
        if tag not in node.variants:
            self.errors.append(FieldError(pointer, f"unknown type; choose one of {', '.join(node.variants)}", tag))
            return ABSENT
        said = self.properties(node.variants[tag], pointer, default if tag == initial else ABSENT, present=bool(texts))
        return {"type": tag, **said} if said or texts else ABSENT

    def leaf(self, node: Node, pointer: str) -> Any:
        if node.optional and pointer + NULL in self.typed:
            return None
        texts = self.typed.get(pointer, [])
        if null := next((text for text in texts if "\0" in text), None):
            self.errors.append(FieldError(pointer, "contains a null character; remove it", null))
            return ABSENT
        if node.kind == "list":
            return [line for text in texts for line in LINE_END.split(text) if line.strip()] or ABSENT
        # A checkbox posts after the hidden input that stands for its unchecked state: the last one counts.
        text = texts[-1] if texts else ""
        if not text.strip():
            return ABSENT
        try:
            return CONVERT[node.kind](text)
        except ValueError as error:
            self.errors.append(FieldError(pointer, str(error), text))
            return ABSENT


def _integer(text: str) -> int:
    if not INTEGER.fullmatch(text.strip()):
        raise ValueError("must be a whole number, such as 8")
    return int(text)


def _number(text: str) -> float:
    if not NUMBER.fullmatch(text.strip()):
        raise ValueError("must be a number, such as 0.5 or 1e-5; the decimal sign is a point")
    return float(text)


def _truth(text: str) -> bool:
    if text not in TRUTH:
        raise ValueError("must be true or false")
    return TRUTH[text]


CONVERT = {"integer": _integer, "number": _number, "bool": _truth, "text": str, "choice": str}
