"""What an environment told of a turn beside its text, in a few words. A runner may send anything: what has another shape is left out."""

from typing import Any

LONGEST = 300
# Name → title, of what is told as it is. Of a student's turn: after its action; of the environment's: when the student was asked.
TOLD = {"action": "Action read", "room": "Room", "inventory": "Inventory", "score": "Score", "ticks": "Tick"}
# Name, the value that is remarkable, what it means.
REMARKS = (
    ("format_ok", False, "unreadable reply"),
    ("understood", False, "not understood"),
    ("listed", False, "not among the listed actions"),
    ("ambiguous", True, "ambiguous"),
    ("blocked", True, "a no-op that is refused"),
)


def turn_facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """(title, text) of each fact that has one, remarks last."""
    told = [(title, _short(facts[name])) for name, title in TOLD.items() if _is_plain(facts.get(name))]
    remarks = [words for name, value, words in REMARKS if facts.get(name) is value]
    return told + ([("Remark", ", ".join(remarks))] if remarks else [])


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool) and value != ""


def _short(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    # A list of things, one a line under its heading, as a sentence.
    lines = (" ".join(line.split()) for line in str(value).splitlines())
    text = ", ".join(filter(None, lines)).replace(":,", ":")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
