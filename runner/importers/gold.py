"""Gold paths as a warm start: what the student would have been shown before each of the oracle's actions, and the reply that takes it.

Episodes are chosen by variation and only from the training split; one that did not reach the full score teaches nothing. Long kinds of
task would crowd out the others, so that each kind gives at most so many pairs.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from runner.contract.bank import Demonstration, Task
from runner.contract.scienceworld import TRAINING_SPLIT
from runner.environments.scienceworld.prompts import reply
from runner.importers.errors import ImportRefused

WHOLE, CUT = "gold", "gold_cut"
"""Kinds of demonstration: of an episode that is shown to its end, or of one that was cut at the cap. A run may choose among them."""

_NO_OP = re.compile(r"\bis already (open|closed|activated|deactivated|on|off)\b")
_FIRST_SENTENCE = re.compile(r"(.+?[.!?])(\s|$)", re.DOTALL)


@dataclass(frozen=True)
class GoldOptions:
    """`max_actions` cuts longer episodes, `pairs_per_kind` bounds each kind of task; `think` is the reasoning in the reply."""

    max_actions: int = 100
    pairs_per_kind: int = 300
    think: Literal["template", "empty"] = "template"
    drop_cut: bool = False
    drop_no_ops: bool = False


@dataclass(frozen=True)
class GoldTurn:
    """`prompt` as the policy would see it, the oracle's action, and what the simulator answered, which no reply may tell."""

    prompt: str
    action: str
    answer: str


@dataclass(frozen=True)
class GoldEpisode:
    """One path, played to its first `done`. `goal` is the task's text; `reached`: it ended at the full score."""

    task: Task
    goal: str
    turns: Sequence[GoldTurn]
    reached: bool


@dataclass
class GoldCount:
    """What became of the episodes and their turns."""

    episodes: int = 0
    unsolved: list[str] = field(default_factory=list)
    cut: int = 0
    no_ops: int = 0
    balanced_away: int = 0
    pairs: int = 0

    def sentence(self) -> str:
        """For the importer's report."""
        lost = f", {len(self.unsolved)} without success left out ({', '.join(self.unsolved[:5])})" if self.unsolved else ""
        return (
            f"gold: {self.pairs} pairs of {self.episodes} episodes{lost}; {self.cut} episodes longer than the cap, "
            f"{self.no_ops} turns that changed nothing left out, {self.balanced_away} left out for balance"
        )


def choose(tasks: Sequence[Task], per_kind: int) -> list[Task]:
    """Up to `per_kind` training variations of each kind of task, evenly spaced with both ends in."""
    kinds: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        if task.split == TRAINING_SPLIT:
            kinds[task.family].append(task)
    return [task for members in kinds.values() for task in evenly(members, per_kind)]


def evenly(items: Sequence, count: int) -> list:
    """`count` of `items`, evenly spaced; all where there are no more."""
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[0]]
    return [items[round(position * (len(items) - 1) / (count - 1))] for position in range(count)]


def demonstrations(episodes: Sequence[GoldEpisode], options: GoldOptions) -> tuple[list[Demonstration], GoldCount]:
    """Pairs of prompt and reply, each one independent turn. Raises ImportRefused for an episode outside of the training split."""
    count, by_kind = GoldCount(), defaultdict(list)
    for episode in episodes:
        if episode.task.split != TRAINING_SPLIT:
            raise ImportRefused(
                f"{episode.task.key} is of split {episode.task.split!r}, which is for evaluation; gold is of {TRAINING_SPLIT!r} alone"
            )
        by_kind[episode.task.family] += _pairs(episode, options, count)
    kept = [pair for pairs in by_kind.values() for pair in evenly(pairs, options.pairs_per_kind)]
    count.balanced_away = sum(map(len, by_kind.values())) - len(kept)
    count.pairs = len(kept)
    return kept, count


def _pairs(episode: GoldEpisode, options: GoldOptions, count: GoldCount) -> list[Demonstration]:
    if not episode.reached:
        count.unsolved.append(episode.task.key)
        return []
    is_cut = len(episode.turns) > options.max_actions
    count.cut += is_cut
    if is_cut and options.drop_cut:
        return []
    count.episodes += 1
    pairs = []
    for number, turn in enumerate(episode.turns[: options.max_actions]):
        if options.drop_no_ops and _NO_OP.search(turn.answer):
            count.no_ops += 1
            continue
        key = f"{episode.task.key}/{number:03}"
        said = reply(turn.action, thought(episode.goal, turn.action) if options.think == "template" else "")
        kind = CUT if is_cut else WHOLE
        pairs.append(Demonstration(key=key, split=TRAINING_SPLIT, kind=kind, prompt=turn.prompt, completion=said, task=episode.task.key))
    return pairs


def thought(goal: str, action: str) -> str:
    """One line made of the task and the action alone: nothing that has not been seen yet can be in it."""
    found = _FIRST_SENTENCE.match(goal.strip())
    aim = (found[1] if found else goal).strip().removeprefix("Your task is to ").rstrip(".")
    return f"I have to {aim}. Next: {action}."
