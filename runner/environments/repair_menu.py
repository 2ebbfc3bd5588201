"""Texts around the menu agent: what an episode begins with, and a warm start that teaches how to answer, never what.

  list     a numbered list, then the number of each of its names: many answers a lesson, which is what forms the skill of reading at all
  lookup   which name of a list was named in the text before it? the same skill at the distance of a hint, for one list or for two in
           two turns, in the words of the menu's questions and in others
  menu     whole dialogues on training tasks with answers drawn evenly; their check output is made up. They carry no hint: an answer
           drawn beside one would unlearn to read it

A warm start draws demonstrations evenly, so each kind's number is its share of the lessons.
"""

import random
from collections.abc import Iterator, Sequence

from runner.agents.menu import WHICH_EDIT, WHICH_FILE, Dialogue, offered
from runner.contract.bank import Demonstration, MenuEdit, Task
from runner.contract.repair import HINT_LEVELS, RepairPayload

DIALOGUES = 1200
LISTS, LOOKUPS, DOUBLE_LOOKUPS = 2000, 3000, 500
MAX_TURNS, MAX_EDITS = 4, 4
UNHINTED = "L3"
QUESTIONS = (WHICH_FILE, WHICH_EDIT, "Which of these is named?")
FEWEST_LINES, MOST_LINES = 2, 8
SHORTEST_LIST, LONGEST_LIST = 2, 6
# Most lookups name nothing but the name: among other words the skill forms late, and holds once it is there.
PLAIN, MOST_FILLERS = 0.7, 8


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
    words = _Words(payloads)
    for number in range(LISTS):
        yield _list(f"list-{number:05}", words, rng)
    for number in range(LOOKUPS):
        yield from _lookups(f"lookup-{number:05}", words, 1, rng)
    for number in range(DOUBLE_LOOKUPS):
        yield from _lookups(f"lookups-{number:05}", words, 2, rng)


def _dialogue(key: str, payload: RepairPayload, rng: random.Random) -> Iterator[Demonstration]:
    """One demonstration a turn, with the turns before it as its history."""
    seed = rng.getrandbits(62)
    dialogue = Dialogue(offered(payload.menu, None, MAX_EDITS, seed), MAX_TURNS, seed)
    prompt = f"{instruction(payload, UNHINTED)}\n\n{dialogue.first().text}"
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


# ---------------------------------------------------------------- reading
class _Words:
    """What training tasks show: files, labels of edits, and the single words of labels and hints."""

    def __init__(self, payloads: Sequence[RepairPayload]):
        self.files = sorted({edit.file for payload in payloads for edit in payload.menu})
        self.labels = sorted({edit.label for payload in payloads for edit in payload.menu})
        hints = (hint for payload in payloads for hint in payload.hints.values())
        self.single = sorted({word.strip(".,:#") for text in (*self.labels, *hints) for word in text.split()} - {"", *self.files})

    def names(self, rng: random.Random) -> list[str]:
        """A few different names in drawn order: mostly files or single words, sometimes whole labels."""
        (pool,) = rng.choices((self.files, self.single, self.labels), weights=(4, 5, 1))
        return rng.sample(pool, min(len(pool), rng.randint(SHORTEST_LIST, LONGEST_LIST)))

    def filler(self, rng: random.Random, names: Sequence[str]) -> str:
        """Words around a name, none of them a word of the names."""
        drawn = rng.choices(self.single, k=0 if rng.random() < PLAIN else rng.randint(1, MOST_FILLERS))
        return " ".join(word for word in drawn if word not in _words_of(names))


def _words_of(names: Sequence[str]) -> set[str]:
    return {word for name in names for word in name.split()}


def _numbered(names: Sequence[str]) -> str:
    return "\n".join(f"{number}. {name}" for number, name in enumerate(names, 1))


def _list(key: str, words: _Words, rng: random.Random) -> Demonstration:
    """Every name of a list with its number, in another order; short lists twice, so that a lesson has some four answers."""
    names = words.names(rng)
    asked = list(enumerate(names, 1)) * (1 if len(names) > 3 else 2)
    rng.shuffle(asked)
    answers = "\n".join(f"- {name}:{number}" for number, name in asked)
    return Demonstration(key=key, kind="list", prompt=f"Which numbers?\n{_numbered(names)}", completion=answers)


def _lookups(key: str, words: _Words, turns: int, rng: random.Random) -> Iterator[Demonstration]:
    """A name among other words and then the list that it stands in; with a second turn another such name, and its list."""
    lists = _apart(words, turns, rng)
    named = [rng.choice(names) for names in lists]
    told = ["In:"]
    for name in rng.sample(named, turns):
        told += [words.filler(rng, sum(lists, [])), f"{name}:"]
    prompts = [f"{rng.choice(QUESTIONS)}\n{_numbered(names)}" for names in lists]
    prompts[0] = f"{' '.join(filter(None, told)).rstrip(':')}\n\n{prompts[0]}"
    history: list[str] = []
    for turn, (prompt, names, name) in enumerate(zip(prompts, lists, named, strict=True)):
        answer = str(names.index(name) + 1)
        yield Demonstration(key=f"{key}-{turn}", kind="lookup", prompt=prompt, completion=answer, history=list(history))
        history += [prompt, answer]


def _apart(words: _Words, count: int, rng: random.Random) -> list[list[str]]:
    """Lists of names without a word in common."""
    lists: list[list[str]] = []
    while len(lists) < count:
        names = words.names(rng)
        if not any(_words_of(names) & _words_of(other) for other in lists):
            lists.append(names)
    return lists
