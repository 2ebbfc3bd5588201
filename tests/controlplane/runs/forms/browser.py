"""What a browser posts for a rendered form, and random valid documents to fill it with."""

import re

from hypothesis import strategies as st

from controlplane.runs.forms.schema import root

# A text input carries one line, and a blank one means absent.
TEXT = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1, max_size=12).filter(str.strip)


def post(form) -> dict[str, list[str]]:
    """Every input of `form` (or of one field's subtree) as the browser sends it."""
    values = {"csrfmiddlewaretoken": ["secret"]}
    for field in form.walk():
        if field.kind == "union":
            values[field.type_name] = [field.selected.value]
        elif field.kind == "bool":
            values[field.pointer] = ["false"] + ["true"] * (field.selected.value == "true")
        elif field.kind == "choice":
            values[field.pointer] = [field.selected.value]
        elif field.kind in ("text", "integer", "number", "list"):
            values[field.pointer] = [re.sub(r"\r\n|\r|\n", "\r\n", field.text)]
        if field.is_null and field.null_name:
            values[field.null_name] = ["on"]
    return values


@st.composite
def documents(draw):
    """A document that satisfies the schema and RunConfig's cross-field rules, with any subset of keys present."""
    document = draw(_object(root()))
    environment = document.get("environment", {})
    if environment.get("type") == "scienceworld":
        environment |= {"simplification": "easy", "levels": draw(st.sampled_from([["4-2"], ["7-1", "7-2"]])), "eval_tasks": "all"}
    for stage in document["stages"]:
        if stage["type"] in ("grpo", "gigpo"):
            stage["group_size"] = draw(st.integers(2, 64))
            stage["batch_size"] = stage["group_size"] * draw(st.integers(1, 64))
        if stage["type"] == "gigpo":
            stage |= {"max_staleness": 0, **({"anchor": "observation"} if environment.get("type") != "scienceworld" else {})}
    document.setdefault("sampling", {})["max_new_tokens"] = draw(st.integers(1, 15))
    engine = document.get("engine", {})
    if engine.get("type") == "vllm":
        document.get("model", {}).pop("adapter", None)
        engine |= {"max_sequences": draw(st.integers(1, 16)), "sleep_while_learning": False}
    resources = document.get("resources", {})
    if resources.get("gpus"):
        # Several learner processes need a GPU each, beside one for each worker.
        resources["gpus"] = max(resources["gpus"], resources.get("learner_processes", 1) + resources.get("rollout_workers", 2))
    else:
        document.get("learner", {}).pop("compile", None)
    source = document.get("model", {}).get("source", {})
    if source.get("type") == "path":
        source["path"] = "/" + draw(TEXT)
    return document


def _object(node, tag=None):
    parts = {name: _value(child) for name, child in node.properties.items()}
    required = {name: parts[name] for name, child in node.properties.items() if child.required}
    optional = {name: part for name, part in parts.items() if name not in required}
    fixed = {"type": st.just(tag)} if tag else {}
    return st.fixed_dictionaries({**fixed, **required}, optional=optional)


def _value(node):
    value = {
        "object": lambda: _object(node),
        "union": lambda: st.one_of([_object(variant, tag) for tag, variant in node.variants.items()]),
        "items": lambda: st.lists(_value(node.item), min_size=1, max_size=3),
        "list": lambda: st.lists(TEXT, min_size=1, max_size=4),
        "choice": lambda: st.sampled_from(node.choices),
        "bool": st.booleans,
        "integer": lambda: st.integers(_low(node, 1), _high(node, 1)),
        "number": lambda: _number(node),
        "text": lambda: _text(node),
    }[node.kind]()
    return st.one_of(st.none(), value) if node.optional else value


def _low(node, step):
    limits = node.limits
    return limits.get("minimum", limits["exclusiveMinimum"] + step if "exclusiveMinimum" in limits else None)


def _high(node, step):
    limits = node.limits
    return limits.get("maximum", limits["exclusiveMaximum"] - step if "exclusiveMaximum" in limits else None)


def _number(node):
    limits = node.limits
    return st.floats(
        limits.get("minimum", limits.get("exclusiveMinimum")),
        limits.get("maximum", limits.get("exclusiveMaximum")),
        exclude_min="exclusiveMinimum" in limits,
        exclude_max="exclusiveMaximum" in limits,
        allow_nan=False,
        allow_infinity=False,
    )


def _text(node):
    if "pattern" in node.limits:
        return st.from_regex(node.limits["pattern"], fullmatch=True, alphabet=st.characters(codec="ascii")).filter(
            lambda text: "\n" not in text
        )
    return TEXT
