"""Texts of a simulator that lists objects in no fixed order, made comparable: equal states give equal text."""

import re

_INNERMOST = re.compile(r"\(([^()]*)\)")
_LIST = re.compile(r"\bis: ([^.\n]*)")
_QUALIFIER = re.compile(r"(which|currently|that) ")
# Stand-ins keep what was put in order already out of the sight of the list around it.
_HIDDEN, _SHOWN = str.maketrans("(),", "\1\2\3"), str.maketrans("\1\2\3", "(),")


def canonical(text: str) -> str:
    """`text` with its lines sorted, and the items sorted within each `is:` list and each parenthesis."""
    return "\n".join(sorted(filter(None, (_line(line.strip()) for line in text.splitlines()))))


def _line(line: str) -> str:
    while _INNERMOST.search(line):
        line = _INNERMOST.sub(lambda found: f"({_parenthesis(found[1])})".translate(_HIDDEN), line)
    return _LIST.sub(lambda found: "is: " + _sorted(found[1]), line).translate(_SHOWN)


def _parenthesis(inside: str) -> str:
    word = "containing " if inside.startswith("containing ") else ""
    return word + _sorted(inside.removeprefix(word))


def _sorted(items: str) -> str:
    """Comma items in order. What only qualifies an item, such as "which is open", stays with it."""
    whole: list[str] = []
    for item in items.strip().split(", "):
        if whole and _QUALIFIER.match(item):
            whole[-1] += ", " + item
        else:
            whole.append(item)
    return ", ".join(sorted(whole))
