"""Small words of the launch form."""

import json
import re

from django import template

from controlplane.runs.forms import ABSENT, schema

register = template.Library()
RENAMED = {"dtype": "Precision", "repo_id": "Repository"}


@register.filter
def field_id(pointer: str) -> str:
    """An HTML id for a JSON pointer."""
    return "field" + re.sub(r"[^\w]", "-", pointer)


@register.filter
def label(name: str) -> str:
    """learning_rate → Learning rate."""
    return RENAMED.get(name) or schema.label(name)


@register.filter
def at(mapping, key):
    return (mapping or {}).get(key, "")


@register.filter
def kind(bundle: str) -> str:
    return bundle.partition("-")[0]


@register.filter
def count_short(value) -> str:
    """3 210 000 → 3.2 M."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value and value >= limit:
            return f"{value / limit:.1f} {unit}"
    return str(value)


@register.filter
def shown(value) -> str:
    """A config value as text; a default that was not set says so."""
    return "default" if value is ABSENT else value if isinstance(value, str) else json.dumps(value)
