"""Texts around the menu agent: what an episode begins with, and a warm start that teaches how to answer, never what.

  menu     whole dialogues on training tasks with answers drawn evenly; their check output is made up
  lookup   which number stands before a given text? teaches to read a list

A warm start draws demonstrations evenly, so each kind's number is its share of the lessons.
"""

import random
from collections.abc import Iterator, Sequence

from runner.agents.menu import Dialogue, offered
from runner.contract.bank import Demonstration, MenuEdit, Task
from runner.contract.repair import HINT_LEVELS, RepairPayload

DIALOGUES = 1200
LOOKUPS = 4000
MAX_TURNS, MAX_EDITS = 4, 4
FEWEST_LINES, MOST_LINES = 2, 8


def instruction(payload: RepairPayload, level: str) -> str:
    """The task in a line, and the hint of that level where the task has one."""
    told = payload.description or payload.name
    hint = payload.hints.get(level, "")
    return f"{told}\n\n{hint}" if hint else told


def texts(payload: RepairPayload) -> Iterator[str]:
    """What a training task's episodes show; a tokenizer learns from it."""
    for level in HINT_LEVELS:
        yield instruction(payload, level)
    for edit in payload.menu:
        yield f"{edit.file}: {edit.label}"


def demonstrations(tasks: Sequence[Task], seed: int) -> Iterator[Demonstration]:
    """The warm start of a bank; `tasks` are its training tasks. Those without a menu are passed over."""
    payloads = [RepairPayload.model_validate(task.payload) for task in tasks if task.split == "train"]
    payloads = [payload for payload in payloads if len(payload.menu) > 1]
    if not payloads:
        return
    rng = random.Random(seed)
    for number in range(DIALOGUES):
        yield from _dialogue(f"menu-{number:05}", rng.choice(payloads), rng)
    for number in range(LOOKUPS):
        yield _lookup(f"lookup-{number:05}", rng.choice(payloads), rng)


def _dialogue(key: str, payload: RepairPayload, rng: random.Random) -> Iterator[Demonstration]:
    """One demonstration a turn, with the turns before it as its history."""
    seed = rng.getrandbits(62)
    dialogue = Dialogue(offered(payload.menu, None, MAX_EDITS, seed), MAX_TURNS, seed)
    prompt = f"{instruction(payload, rng.choice(HINT_LEVELS))}\n\n{dialogue.first().text}"
    history: list[str] = []
    while prompt:
        reply = str(rng.randint(1, dialogue.options))
        yield Demonstration(key=f"{key}-{len(history) // 2}", kind="menu", prompt=prompt, completion=reply, history=list(history))
        history += [prompt, reply]
        prompt = _next(dialogue, dialogue.answer(reply), payload, rng)


def _next(dialogue: Dialogue, answer: object, payload: RepairPayload, rng: random.Random) -> str:
    """The next question; empty when the dialogue is over."""
    if answer is True:
        return ""
    if answer is False:
        return dialogue.other_edits().text
    if isinstance(answer, str):
        return dialogue.edits_of(answer).text
    assert isinstance(answer, MenuEdit)
    dialogue.applied = answer
    dialogue.tried.append(answer)
    return dialogue.keep_or_revise(_checks(payload, rng)).text if dialogue.may_revise else ""


def _checks(payload: RepairPayload, rng: random.Random) -> str:
    """Made-up output of build and checks, in the form of the real one: all well, or something wrong."""
    names, sound = payload.checks or ["case"], rng.random() < 0.5
    lines = ["build: ok"]
    for _ in range(rng.randint(FEWEST_LINES, MOST_LINES)):
        word = "ok" if sound or rng.random() < 0.4 else "WRONG"
        value, limit = (f"{rng.uniform(1, 9.99):.3g}e-{rng.randint(1, 15):02}" for _ in range(2))
        lines.append(f"{rng.choice(names)} value {value}, expected at most {limit}: {word}")
    return "\n".join(lines)


def _lookup(key: str, payload: RepairPayload, rng: random.Random) -> Demonstration:
    """Where in a list a text stands: labels, or files where the task has several."""
    files = sorted({edit.file for edit in payload.menu})
    pool = files if len(files) > 1 and rng.random() < 0.3 else sorted({edit.label for edit in payload.menu})
    shown = rng.sample(pool, min(len(pool), rng.randint(2, 6)))
    place = rng.randrange(len(shown))
    lines = "\n".join(f"{number}. {text}" for number, text in enumerate(shown, 1))
    return Demonstration(key=key, kind="lookup", prompt=f"{shown[place]}\n\nWhich number is it?\n{lines}", completion=str(place + 1))
