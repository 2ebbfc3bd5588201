"""Showing text that nobody may trust: control characters become visible, long blocks fold."""

import re
import unicodedata

from django import template

from controlplane.episodes.turn_facts import turn_facts

register = template.Library()

SHOWN_LINES = 40
SHOWN_CHARACTERS = 8000
ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


@register.filter
def visible(text: str) -> str:
    """`text` without terminal sequences; other control and direction-changing characters as their code points."""
    return ANSI.sub("", str(text)).translate(SHOWN)


class _Shown(dict):
    """Code point → what is shown for it, found out once: a line of five megabytes must cost no second."""

    def __missing__(self, code: int) -> int | str:
        hidden = unicodedata.category(chr(code)) in ("Cc", "Cf", "Co", "Cs")
        self[code] = f"⟨{code:04X}⟩" if hidden else code
        return self[code]


SHOWN = _Shown({ord("\n"): "\n", ord("\t"): "\t"})


@register.filter
def fold(text: str) -> dict:
    """The first lines, the rest, and how many lines the rest has."""
    lines = text.split("\n")
    head = "\n".join(lines[:SHOWN_LINES])[:SHOWN_CHARACTERS]
    rest = text[len(head) :].removeprefix("\n")
    return {"head": head, "rest": rest, "lines": rest.count("\n") + 1 if rest else 0}


@register.filter
def told(facts: dict) -> list[tuple[str, str]]:
    return turn_facts(facts)


@register.filter
def words_of(text: str) -> list[str]:
    return text.split()


@register.filter
def tabs_of(text: str) -> list[list[str]]:
    """Each `key:Label:letter` as a list."""
    return [part.split(":") for part in text.split()]
