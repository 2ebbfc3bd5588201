"""Which option a free-text reply chooses.

Rules in falling authority, the first one that says anything decides, on the text after the last </think>:
  whole      the reply is one label, with optional brackets, period, quotes or markup
  boxed      \\boxed{X}
  stated     "answer is X", "answer: X"; the last such
  leading    a line begins with "X." "X)" "(X)" or "X:"
  last line  exactly one label stands alone in the last line
  text       the reply is the exact text of exactly one option
A rule that finds two different labels leaves the reply unparsed: no weaker rule may pick one of them. The three rules
that guess (leading, last line, text) never award a reply that lists every label.
"""

import re
from dataclasses import dataclass
from typing import Sequence

from runner.contract.bank import Choice

_MARKUP = " \t\r\n*_`~\"'“”‘’()[]{}<>$.:,;!"
_OPEN = r"[\s*_`\"'“‘(\[{<$]*"


@dataclass(frozen=True)
class Extraction:
    """`label` is None when the reply chooses nothing, or more than one thing; `rule` says what decided."""

    label: str | None
    rule: str


def whole_label(reply: str, choices: Sequence[Choice]) -> Extraction:
    """The label that is all of `reply`: the first rule alone."""
    found = _whole(reply, [choice.label for choice in choices])
    return _agreed(found, "whole") if found else Extraction(None, "not a label alone")


def extract_label(reply: str, choices: Sequence[Choice]) -> Extraction:
    """The label among those of `choices` that `reply` settles on."""
    text = reply.rpartition("</think>")[2].strip()
    labels = [choice.label for choice in choices]
    for rule, find in (("whole", _whole), ("boxed", _boxed), ("stated", _stated)):
        if found := find(text, labels):
            return _agreed(found, rule)
    if len(labels) > 1 and set(labels) <= set(_standing_alone(text, labels)):
        return Extraction(None, "lists every label")
    for rule, found in (("leading", _leading(text, labels)), ("last line", _last_line(text, labels)), ("text", _exact_text(text, choices))):
        if found:
            return _agreed(found, rule)
    return Extraction(None, "no rule matched")


def _agreed(found: set[str], rule: str) -> Extraction:
    return Extraction(found.pop(), rule) if len(found) == 1 else Extraction(None, f"{rule}: several labels")


def _any_of(labels: Sequence[str]) -> str:
    return "(" + "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True)) + ")"


def _whole(text: str, labels: Sequence[str]) -> set[str]:
    return {label for label in labels if text.strip(_MARKUP).casefold() == label.casefold()}


def _boxed(text: str, labels: Sequence[str]) -> set[str]:
    inside = [content.strip(_MARKUP) for content in re.findall(r"\\boxed\s*\{\s*(?:\\(?:text|mathrm|mathbf|textbf)\s*\{)?([^{}]*)\}", text)]
    by_name = {label.casefold(): label for label in labels}
    whole = {by_name[content.casefold()] for content in inside if content.casefold() in by_name}
    return whole | {found[1] for content in inside if (found := re.match(_any_of(labels) + r"[.):]", content))}


def _stated(text: str, labels: Sequence[str]) -> set[str]:
    label = _any_of(labels)
    more = rf"(?:{_OPEN}(?:,|/|&|\band\b|\bor\b){_OPEN}(?:\bor\b|\band\b)?{_OPEN}{label}(?![\w'’]))*"
    start = rf"(?i:\banswer)[\s*_`]*(?:(?i:is)\b|:)[\s:]*(?i:option\b|choice\b|letter\b)?{_OPEN}"
    statements = [found.group(0) for found in re.finditer(start + label + r"(?![\w'’])" + more, text)]
    if len(statements) >= len(labels) and set(labels) == {name for said in statements for name in _standing_alone(said, labels)}:
        return set(labels)
    return set(_standing_alone(statements[-1], labels)) if statements else set()


def _standing_alone(text: str, labels: Sequence[str]) -> list[str]:
    # An apostrophe binds: the A of "A's" is no label.
    return re.findall(r"(?<![\w'’])" + _any_of(labels) + r"(?![\w'’])", text)


def _leading(text: str, labels: Sequence[str]) -> set[str]:
    label = _any_of(labels)
    found = re.findall(rf"^[\s*_`]*(?:\({label}\)|{label}[*_`]*[.):])", text, re.MULTILINE)
    return {name for pair in found for name in pair if name}


def _last_line(text: str, labels: Sequence[str]) -> set[str]:
    alone = _standing_alone(text.splitlines()[-1], labels) if text else []
    return set(alone)


def _exact_text(text: str, choices: Sequence[Choice]) -> set[str]:
    def plain(value: str) -> str:
        return " ".join(value.split()).rstrip(".")

    return {choice.label for choice in choices if plain(choice.text) == plain(text) and plain(text)}
