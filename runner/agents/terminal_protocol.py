"""The terminal agent's language: one JSON object a turn, read leniently, answered precisely. Pure functions of text."""

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any

from runner.agents.base import Action

DEFAULT_SECONDS, MOST_SECONDS = 1.0, 60.0
REQUIRED = ("analysis", "plan", "commands")
COMMAND_KEYS = {"keystrokes", "duration"}

PROMPT = """\
You work in a Linux terminal to carry out the task below. Each reply is one JSON object and nothing else:

{
  "analysis": "what the screen shows and what is left to do",
  "plan": "what the next commands are for",
  "commands": [
    {"keystrokes": "make -j4\\n", "duration": 20.0}
  ],
  "task_complete": false
}

analysis, plan and commands are required. Keystrokes are typed exactly as written: end a command with \\n to run it; C-c and C-d
interrupt and close. duration is how many seconds to wait afterwards, 1.0 if left out, 60 at most; give long commands time, or wait
with empty keystrokes. Commands run in order, and you then see what they printed. An empty list of commands only waits.
Set task_complete to true when the task is done; you will be asked to confirm.

Task:
"""

ASK_AGAIN = "Nothing was executed. Reply with one JSON object that has analysis, plan and commands."
CUT = (
    "Your reply was longer than a reply may be and was cut off. Nothing of it was executed. "
    "Reply again, shorter: write long files in several steps, and put fewer commands into one reply."
)
CONFIRM = (
    "You say that the task is complete. This ends your work, and what you delivered is judged as it is. "
    "If you are sure, reply with task_complete true once more; if not, go on working.\n\n"
)


@dataclass(frozen=True)
class Command:
    """Keystrokes to type, and seconds to wait afterwards."""

    keystrokes: str
    seconds: float

    @property
    def call(self) -> tuple[str, dict[str, Any]]:
        return "bash_command", {"keystrokes": self.keystrokes, "duration": self.seconds}


@dataclass
class Parsed:
    """What a reply says. With errors nothing of it is executed."""

    commands: list[Command] = field(default_factory=list)
    complete: bool = False
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def parse_reply(text: str) -> Parsed:
    """Read a reply, whatever it is."""
    parsed = Parsed()
    document = _document(without_thinking(text), parsed)
    if document is None:
        return parsed
    parsed.complete = _flag(document, parsed)
    missing = [name for name in REQUIRED if name not in document]
    parsed.errors += [f"the field {name!r} is missing" for name in missing]
    parsed.warnings += [f"{name!r} should be text" for name in REQUIRED[:2] if not isinstance(document.get(name, ""), str)]
    order = [name for name in document if name in REQUIRED]
    if not missing and order != list(REQUIRED):
        parsed.warnings.append(f"the fields should come in the order {', '.join(REQUIRED)}")
    if "commands" in document:
        parsed.commands = _commands(document["commands"], parsed)
    if parsed.errors and parsed.complete:
        # Who is done needs no commands.
        parsed.warnings, parsed.errors, parsed.commands = parsed.warnings + parsed.errors, [], []
    return parsed


def without_thinking(text: str) -> str:
    """The reply without its inline thinking, whose braces are not meant for us."""
    text = re.sub(r"<think>.*?</think>", "", text, flags=re.DOTALL)
    _, closed, after = text.rpartition("</think>")
    return after if closed else text.partition("<think>")[0]


def _document(text: str, parsed: Parsed) -> dict | None:
    """The reply's JSON object. Two repairs are tried: missing closing brackets, then the first fragment that is an object."""
    start = text.find("{")
    if start < 0:
        parsed.errors.append("no JSON object was found")
        return None
    end, still_open = _balance(text, start)
    fragment = text[start:end] if end else text[start:].rstrip() + still_open
    document, problem = _object(fragment)
    if document is None:
        document = _first_object(text[start + 1 :])
        if document is None:
            parsed.errors.append(f"the reply is not valid JSON: {problem}")
            return None
        parsed.warnings.append("the reply was repaired: the first valid JSON object in it was taken")
    elif not end:
        parsed.warnings.append(f"the reply was repaired: {still_open!r} was missing at its end")
    else:
        around = (("before", text[:start]), ("after", text[end:]))
        parsed.warnings += [f"there is text {where} the JSON object" for where, rest in around if rest.strip()]
    return document


def _balance(text: str, start: int) -> tuple[int | None, str]:
    """(where the brackets that open at `start` are closed, or None; what would close them). Brackets inside strings do not count."""
    stack, quoted, escaped = [], False, False
    for position in range(start, len(text)):
        letter = text[position]
        if quoted:
            quoted = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            quoted = True
        elif letter in "{[":
            stack.append("}" if letter == "{" else "]")
        elif letter in "}]" and stack:
            stack.pop()
            if not stack:
                return position + 1, ""
    return None, ('"' if quoted else "") + "".join(reversed(stack))


def _object(text: str) -> tuple[dict | None, str]:
    try:
        found = json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        return None, str(error)
    return (found, "") if isinstance(found, dict) else (None, "it is no object")


def _first_object(text: str) -> dict | None:
    """The first object in `text` that names a required field."""
    for start in [found.start() for found in re.finditer(r"\{", text)]:
        end, _ = _balance(text, start)
        document, _ = _object(text[start:end]) if end else (None, "")
        if document and set(REQUIRED) & set(document):
            return document
    return None


def _flag(document: dict, parsed: Parsed) -> bool:
    value = document.get("task_complete", False)
    if not isinstance(value, bool):
        parsed.warnings.append(f"task_complete should be true or false, not {value!r:.40}; taken as false")
        return False
    return value


def _commands(items: Any, parsed: Parsed) -> list[Command]:
    if not isinstance(items, list):
        parsed.errors.append(f"commands must be a list, not {type(items).__name__}")
        return []
    commands = []
    for number, item in enumerate(items, 1):
        if not isinstance(item, dict):
            parsed.errors.append(f"command {number} must be an object, not {type(item).__name__}")
        elif not isinstance(item.get("keystrokes"), str):
            parsed.errors.append(f"command {number} needs keystrokes, as text")
        else:
            commands.append(_command(number, item, number == len(items), parsed))
    return commands


def _command(number: int, item: dict, last: bool, parsed: Parsed) -> Command:
    unknown = sorted(set(item) - COMMAND_KEYS)
    if unknown:
        parsed.warnings.append(f"command {number} has unknown fields: {', '.join(unknown)}")
    if item["keystrokes"] and not last and not item["keystrokes"].endswith("\n"):
        parsed.warnings.append(f"command {number} does not end with a newline, so the next one is typed on the same line")
    return Command(item["keystrokes"], _seconds(number, item, parsed))


def _seconds(number: int, item: dict, parsed: Parsed) -> float:
    value = item.get("duration")
    if value is None:
        parsed.warnings.append(f"command {number} has no duration; {DEFAULT_SECONDS} s was used")
        return DEFAULT_SECONDS
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        parsed.warnings.append(f"command {number}: duration must be a number; {DEFAULT_SECONDS} s was used")
        return DEFAULT_SECONDS
    return min(max(float(value), 0.0), MOST_SECONDS)


# ---------------------------------------------------------------- what is shown
def truncate(text: str, limit: int) -> str:
    """At most `limit` bytes of `text`, its first and last half, with a line between them that says what is missing."""
    data = text.encode()
    if len(data) <= limit:
        return text
    half = limit // 2
    head, tail = (part.decode(errors="ignore") for part in (data[:half], data[len(data) - half :]))
    return f"{head}\n[… {len(data) - 2 * half} bytes left out: at most {limit} are shown …]\n{tail}"


def with_warnings(warnings: list[str], text: str) -> str:
    """Warnings before what was seen."""
    return "Warnings:\n" + "".join(f"- {warning}\n" for warning in warnings) + "\n" + text if warnings else text


def ask_again(parsed: Parsed) -> str:
    """What is wrong with a reply, and what is wanted."""
    return "Errors:\n" + "".join(f"- {error}\n" for error in parsed.errors) + with_warnings(parsed.warnings, "") + ASK_AGAIN


_FETCH = re.compile(r"\b(?:git\s+(?:clone|fetch|pull|remote\s+add)|curl|wget|pip3?\s+(?:download|install)|svn\s+co|scp|rsync)\b[^\n]*")


def fetches(actions: list[Action]) -> list[str]:
    """Commands that may have brought the upstream code, and with it the answer."""
    typed = (arguments.get("keystrokes", "") for action in actions for _, arguments in action.calls)
    return [found.group(0)[:300] for text in typed for found in _FETCH.finditer(text)]
