"""RunConfig's JSON schema, read once into a small typed tree that the form pieces walk."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any, Iterator

from runner.contract.parse import pointer as join
from runner.contract.run_config import RunConfig


class _Absent:
    """No value: neither null nor blank."""

    def __repr__(self):
        return "ABSENT"

    def __bool__(self):
        return False


ABSENT = _Absent()
ACRONYMS = {"kl": "KL", "cpus": "CPUs", "gpus": "GPUs", "gib": "GiB", "id": "ID"}
LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "pattern")
LEAF_KINDS = {"string": "text", "integer": "integer", "number": "number", "boolean": "bool"}


@dataclass(frozen=True)
class Node:
    """One place of the document.

    kind: text · integer · number · bool · choice · list (of texts) · object · union (of objects, told apart by
    `type`) · items (a list of unions). `default` is the schema's own; an enclosing default may override it.
    """

    kind: str
    label: str = ""
    help: str = ""
    level: str = "basic"
    group: str = ""
    unit: str = ""
    default: Any = ABSENT
    optional: bool = False
    required: bool = False
    limits: dict[str, Any] = field(default_factory=dict)
    choices: tuple[Any, ...] = ()
    properties: dict[str, "Node"] = field(default_factory=dict)
    variants: dict[str, "Node"] = field(default_factory=dict)
    item: "Node | None" = None

    def children(self, default: Any) -> Iterator[tuple[str, "Node", Any]]:
        """(name, node, effective default) of an object's fields, where `default` is the object's effective default.

        An object's default may differ from its fields' own: a warm start's optimizer has another learning rate.
        """
        for name, node in self.properties.items():
            inherits = isinstance(default, dict) and name in default
            yield name, node, default[name] if inherits else node.default


@cache
def root() -> Node:
    """The tree of RunConfig."""
    schema = RunConfig.model_json_schema()
    return _Reader(schema.get("$defs", {})).node("", schema, required=True)


class _Reader:
    def __init__(self, definitions: dict):
        self.definitions = definitions

    def node(self, name: str, schema: dict, required: bool) -> Node | None:
        """The node of one property; None for a constant, which has nothing to fill in."""
        schema, optional = self._without_null(self._resolved(schema))
        if "const" in schema:
            return None
        facts = {
            "label": label(name),
            "help": schema.get("description", ""),
            "level": schema.get("level", "basic"),
            "group": schema.get("group", ""),
            "unit": schema.get("unit", ""),
            "default": schema.get("default", ABSENT),
            "optional": optional,
            "required": required,
            "limits": {limit: schema[limit] for limit in LIMITS if limit in schema},
        }
        return Node(**facts, **self._shape(schema))

    def _shape(self, schema: dict) -> dict:
        if "enum" in schema:
            return {"kind": "choice", "choices": tuple(schema["enum"])}
        if "oneOf" in schema:
            variants = schema["discriminator"]["mapping"]
            return {"kind": "union", "variants": {tag: self.node(tag, {"$ref": reference}, False) for tag, reference in variants.items()}}
        kind = schema.get("type")
        if kind == "object":
            return {"kind": "object", "properties": dict(self._properties(schema))}
        if kind == "array":
            item = self._resolved(schema["items"])
            return {"kind": "items", "item": self.node("", item, True)} if "oneOf" in item else {"kind": "list"}
        return {"kind": LEAF_KINDS[kind]}

    def _properties(self, schema: dict):
        for name, child in schema["properties"].items():
            node = self.node(name, child, name in schema.get("required", ()))
            if node is not None:
                yield name, node

    def _resolved(self, schema: dict) -> dict:
        if "$ref" not in schema:
            return schema
        return {**self.definitions[schema["$ref"].rsplit("/", 1)[1]], **{key: value for key, value in schema.items() if key != "$ref"}}

    def _without_null(self, schema: dict) -> tuple[dict, bool]:
        kinds = [self._resolved(option) for option in schema.get("anyOf", ())]
        rest = [option for option in kinds if option.get("type") != "null"]
        if len(rest) == len(kinds):
            return schema, False
        (only,) = rest
        return {**only, **{key: value for key, value in schema.items() if key != "anyOf"}}, True


def label(name: str) -> str:
    """`max_grad_norm` → "Max grad norm"."""
    words = [ACRONYMS.get(word, word) for word in name.split("_")]
    text = " ".join(words)
    return text[:1].upper() + text[1:]


def split(pointer: str) -> list[str]:
    """The keys of a JSON pointer."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def child(pointer: str, name: str | int) -> str:
    """The pointer one level deeper."""
    return pointer + join([name])
