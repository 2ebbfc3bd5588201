"""Schema → field tree: what the launch form shows for a document, as data for the templates.

A blank input means the default shown beside it, so that only what a person chose is in the document.
"""

import re
from dataclasses import dataclass, field as with_default, replace
from typing import Any, Iterable, Mapping, Sequence

from controlplane.runs.forms.document import NULL, Values, clean, read_values
from controlplane.runs.forms.errors import place
from controlplane.runs.forms.schema import ABSENT, Node, child, root, split
from runner.contract.parse import FieldError

WORDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "maxItems": "at most {}",
}


ITEM = re.compile(r"0|[1-9][0-9]{0,3}")


@dataclass(frozen=True)
class Choice:
    """One option of a select. `value` is what is posted."""

    value: str
    label: str
    help: str = ""
    selected: bool = False


@dataclass(frozen=True)
class Field:
    """One input, or a fieldset with `children`. `pointer` is its HTML name.

    kind: text · integer · number · bool · choice · list · object · union · items (see schema.Node).
    text: what the input shows; blank when the document says nothing. For a list, one entry a line.
    default: the text of what blank means; shown as placeholder.
    choices: of a choice, of a bool ("true", "false"), and the variants of a union or of a new item.
    optional: null is allowed; `is_null` when it is chosen. Post `null_name` to choose it where the default is not null.
    children: the fields of an object, of the union's chosen variant, or one union per item.
    errors: what is wrong here.
    """

    pointer: str
    kind: str
    label: str
    help: str = ""
    group: str = ""
    level: str = "basic"
    unit: str = ""
    required: bool = False
    optional: bool = False
    limits: Mapping[str, Any] = with_default(default_factory=dict)
    text: str = ""
    default: str = ""
    choices: tuple[Choice, ...] = ()
    is_null: bool = False
    null_name: str = ""
    index: int | None = None
    children: tuple["Field", ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def type_name(self) -> str:
        """HTML name of the select that chooses a union's variant."""
        return child(self.pointer, "type")

    @property
    def selected(self) -> Choice | None:
        return next((choice for choice in self.choices if choice.selected), None)

    @property
    def hint(self) -> str:
        """The limits in words: "at least 1, at most 16"."""
        return ", ".join(WORDS[name].format(_text(value)) for name, value in self.limits.items() if name in WORDS)

    @property
    def has_errors(self) -> bool:
        return bool(self.errors) or any(field.has_errors for field in self.children)

    def walk(self) -> Iterable["Field"]:
        """This field and everything below it."""
        yield self
        for field in self.children:
            yield from field.walk()


@dataclass(frozen=True)
class Section:
    """A heading of the form with its fields, in the schema's order."""

    title: str
    fields: tuple[Field, ...]

    @property
    def has_errors(self) -> bool:
        return any(field.has_errors for field in self.fields)


@dataclass(frozen=True)
class Form:
    """The whole form. `errors` are those that belong to no field."""

    sections: tuple[Section, ...]
    errors: tuple[FieldError, ...] = ()

    def walk(self) -> Iterable[Field]:
        for section in self.sections:
            for field in section.fields:
                yield from field.walk()

    def field(self, pointer: str) -> Field:
        """The field at `pointer`. Raises KeyError."""
        for field in self.walk():
            if field.pointer == pointer:
                return field
        raise KeyError(pointer)

    @property
    def error_count(self) -> int:
        return len(self.errors) + sum(len(field.errors) for field in self.walk())


def build_form(document: dict, errors: Sequence[FieldError] = (), typed: Values | None = None) -> Form:
    """The form that shows `document`; `typed` (from a post) wins over it, so that a wrong entry stays as it was typed."""
    builder = _Builder(typed or {})
    fields = [builder.field(node, child("", name), document.get(name, ABSENT), default) for name, node, default in root().children(ABSENT)]
    titles = dict.fromkeys(field.group for field in fields)
    sections = [Section(title, tuple(field for field in fields if field.group == title)) for title in titles]
    form = Form(tuple(sections))
    placed, rest = place(errors, {field.pointer for field in form.walk()})
    return Form(tuple(replace(section, fields=tuple(_with_errors(f, placed) for f in section.fields)) for section in sections), tuple(rest))


def subtree(pointer: str, new_type: str, values: Any) -> Field:
    """The union at `pointer` as `new_type`, for re-rendering it alone; values of fields of the same name stay.

    `values`: a QueryDict or mapping of lists with what the form holds. Raises KeyError for an unknown pointer or type.
    """
    typed = {**clean(values), child(pointer, "type"): [new_type]}
    document, _ = read_values(typed)
    node, value, default = _locate(pointer, document)
    if node.kind != "union" or new_type not in node.variants:
        raise KeyError(f"{pointer} has no type {new_type!r}")
    field = _Builder(typed).field(node, pointer, value, default)
    parent, _, last = pointer.rpartition("/")
    return _as_item(field, _locate(parent, document)[0], int(last)) if last.isdigit() else field


def _locate(pointer: str, document: dict) -> tuple[Node, Any, Any]:
    """The node at `pointer`, its value in `document` and its effective default, along the variants that `document` chose. Raises KeyError."""
    node, default, value = root(), ABSENT, document
    for part in split(pointer):
        if node.kind == "items":
            if not ITEM.fullmatch(part) or int(part) >= len(value or ()):
                raise KeyError(f"{node.label} {part:.20} is none of those in the form")
            node, default = node.item, ABSENT
        else:
            chosen, default = _chosen(node, value, default) if node.kind == "union" else (node, default)
            below = {name: (node, default) for name, node, default in chosen.children(default)}
            node, default = below[part]
        value = _step(value, part)
    return node, value, default


def _as_item(field: Field, items: Node, index: int) -> Field:
    return replace(field, index=index, label=f"{items.label} {index}")


def _chosen(node: Node, value: Any, default: Any) -> tuple[Node, Any]:
    """The variant that `value` (else the default) names, and the default of its fields."""
    initial = default.get("type") if isinstance(default, dict) else None
    tag = value.get("type", initial) if isinstance(value, dict) else initial
    if not isinstance(tag, str) or tag not in node.variants:
        tag = initial if initial in node.variants else next(iter(node.variants))
    return node.variants[tag], default if tag == initial else ABSENT


def _step(value: Any, part: str) -> Any:
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return value.get(part, ABSENT) if isinstance(value, dict) else ABSENT


class _Builder:
    def __init__(self, typed: Values):
        self.typed = typed

    def field(self, node: Node, pointer: str, value: Any, default: Any) -> Field:
        """`default` is what blank means here; `value` is the document's, ABSENT when it says nothing."""
        shape = {"object": self._object, "union": self._union, "items": self._items}.get(node.kind, self._leaf)
        name = split(pointer)[-1]
        field = Field(
            pointer=pointer,
            kind=node.kind,
            label=node.label or name,
            help=node.help,
            group=node.group,
            level=node.level,
            unit=node.unit,
            required=node.required,
            optional=node.optional,
            limits=node.limits,
        )
        return replace(field, **shape(node, pointer, value, default))

    def _object(self, node: Node, pointer: str, value: Any, default: Any) -> dict:
        return {"children": self._children(node, pointer, value, default)}

    def _children(self, node: Node, pointer: str, value: Any, default: Any) -> tuple[Field, ...]:
        given = value if isinstance(value, dict) else None
        fields = []
        for name, below, below_default in node.children(default):
            below_value = ABSENT if given is None else given.get(name, ABSENT)
            # The document has this object but not this key: its own default holds, not the one the enclosing default shows.
            if given is not None and below_value is ABSENT and below.default is not ABSENT and below.default != below_default:
                below_value = below.default
            fields.append(self.field(below, child(pointer, name), below_value, below_default))
        return tuple(fields)

    def _union(self, node: Node, pointer: str, value: Any, default: Any) -> dict:
        typed_tag = self.typed.get(child(pointer, "type"))
        if typed_tag and typed_tag[-1] in node.variants:
            value = {**(value if isinstance(value, dict) else {}), "type": typed_tag[-1]}
        variant, below_default = _chosen(node, value, default)
        choices = _variants(node, next(tag for tag, v in node.variants.items() if v is variant))
        return {"choices": choices, "children": self._children(variant, pointer, value, below_default)}

    def _items(self, node: Node, pointer: str, value: Any, default: Any) -> dict:
        values = value if isinstance(value, list) else []
        children = [_as_item(self.field(node.item, child(pointer, index), item, ABSENT), node, index) for index, item in enumerate(values)]
        return {"children": tuple(children), "choices": _variants(node.item, None)}

    def _leaf(self, node: Node, pointer: str, value: Any, default: Any) -> dict:
        typed = self.typed.get(pointer)
        text = _text(value) if not typed else "\n".join(typed) if node.kind == "list" else typed[-1]
        is_null = node.optional and (pointer + NULL in self.typed or (value is None and default is not None))
        return {
            "text": "" if is_null else text,
            "default": _text(default),
            "is_null": is_null,
            "null_name": pointer + NULL if node.optional and default is not None else "",
            "choices": _options(node, text, _text(default)),
        }


def _variants(node: Node, selected: str | None) -> tuple[Choice, ...]:
    return tuple(Choice(tag, tag.replace("_", " "), variant.help, tag == selected) for tag, variant in node.variants.items())


def _options(node: Node, text: str, default: str) -> tuple[Choice, ...]:
    values = [_text(value) for value in {"choice": node.choices, "bool": (True, False)}.get(node.kind, ())]
    # A select of another variant may have had this name and other options: what is not offered falls back to the default.
    selected = text if text in values else default
    return tuple(Choice(value, value.replace("_", " "), "", value == selected) for value in values)


def _text(value: Any) -> str:
    """A value as an input shows it."""
    if value is None or value is ABSENT:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    return repr(value) if isinstance(value, float) else str(value)


def _with_errors(field: Field, placed: dict[str, list[str]]) -> Field:
    children = tuple(_with_errors(below, placed) for below in field.children)
    return replace(field, errors=tuple(placed.get(field.pointer, ())), children=children)
