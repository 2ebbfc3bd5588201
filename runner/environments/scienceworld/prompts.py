"""What the student is shown, and how its reply is read. One user message tells a turn whole; or the conversation grows message by message."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from runner.contract.run_config import ScienceWorldEnvironment as Settings

LONGEST_ACTION = 200
# Of a reply without tags, what is sent in its place.
FALLBACK_CHARACTERS = 30
ROLE = "You are an agent in a text laboratory for elementary science. You act by short commands in plain English."
ANSWER = "Think about what to do next, then give exactly one command:\n<think>your reasoning</think><action>your command</action>"
_TAGS = re.compile(r"<action>(.*?)</action>", re.DOTALL)
_IDEOGRAPH = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_HEADINGS = ("Task Description:", "Task description:")


@dataclass(frozen=True)
class Told:
    """All that a prompt may tell: the task, where the student stands, its last (observation seen, action taken), and how many it took."""

    task: str
    observation: str
    look: str
    inventory: str
    templates: Sequence[str] = ()
    objects: Sequence[str] = ()
    history: Sequence[tuple[str, str]] = field(default=())
    taken: int = 0


@dataclass(frozen=True)
class Action:
    """A reply as it was read. `text` is what the simulator gets, empty where the reply holds none or one that is too long; `source` says
    whether the tags held it or it was cut from the reply's end.
    """

    text: str
    format_ok: bool
    source: Literal["tag", "fallback"]


def task_text(description: str) -> str:
    """The simulator's task text without its heading."""
    text = description.strip()
    for heading in _HEADINGS:
        text = text.removeprefix(heading).strip()
    return text


def turn_prompt(told: Told, settings: Settings) -> str:
    """One turn, whole: role, task, the last steps, the state, what can be done, how to answer."""
    parts = [ROLE, told.task, _history(told, settings.history_length), state_text(told.observation, told.look, told.inventory)]
    return "\n\n".join(filter(None, [*parts, _hints(told, settings.hints), ANSWER]))


def following_prompt(told: Told, settings: Settings) -> str:
    """A later turn of a conversation that grows: only what is new."""
    objects = _hints(told, "objects") if settings.hints != "none" else ""
    return "\n\n".join(filter(None, [state_text(told.observation, told.look, told.inventory), objects]))


def state_text(observation: str, look: str, inventory: str) -> str:
    """Feedback on the last action alone says nothing about where the student is, so room and inventory stand beside it."""
    seen = [] if observation.strip() == look.strip() else [f"Observation: {observation.strip()}"]
    return "\n".join([*seen, look.strip(), inventory.strip()])


def _history(told: Told, length: int) -> str:
    shown = list(told.history)[-length:] if length else []
    if not shown:
        return ""
    first = told.taken - len(shown) + 1
    lines = [
        f"Step {number}: you saw: {' '.join(observation.split())} — you did: {action}"
        for number, (observation, action) in enumerate(shown, first)
    ]
    steps = "step" if told.taken == 1 else "steps"
    return f"You have taken {told.taken} {steps}. The last {len(shown)}:\n" + "\n".join(lines)


def _hints(told: Told, wanted: str) -> str:
    lines = []
    if wanted == "full" and told.templates:
        lines.append("Commands (OBJ stands for an object): " + ", ".join(name for name in told.templates if name not in BLOCKED))
    if wanted in ("full", "objects") and told.objects:
        lines.append("Objects in sight: " + ", ".join(told.objects))
    return "\n".join(lines)


# ---------------------------------------------------------------- replies
# `reset task` takes back a failure, score and all; the others ask about the simulator instead of acting in it.
BLOCKED = frozenset({"reset task", "help", "objects", "exit", "quit"})
NOT_UNDERSTOOD = "No known action matches that input."
_REFUSALS = ("No known action matches", "Unknown action", "Ambiguous request")


def read_action(reply: str) -> Action:
    """The command between the first tags, in lower case and without a full stop; without tags the reply's last characters."""
    text = reply.lower()
    found = _TAGS.search(text)
    command = " ".join((found[1] if found else text.strip()[-FALLBACK_CHARACTERS:]).split()).rstrip(".").strip()
    well_formed = bool(found) and "<think>" in text and "</think>" in text and not _IDEOGRAPH.search(reply)
    command = command if len(command) <= LONGEST_ACTION else ""
    return Action(command, well_formed and bool(command), "tag" if found else "fallback")


def is_blocked(command: str) -> bool:
    """Whether a command leaves the task instead of working on it, or is none."""
    return not command or command in BLOCKED or not command.isprintable()


def is_understood(observation: str) -> bool:
    """Whether the simulator took the command for one."""
    return not observation.startswith(_REFUSALS)


def is_ambiguous(observation: str) -> bool:
    """Whether the simulator asks, with numbered readings, which object was meant."""
    return observation.startswith("Ambiguous request")


def reply(action: str, think: str = "") -> str:
    """What a student would have written to take `action`."""
    return f"<think>{think}</think><action>{action}</action>"
