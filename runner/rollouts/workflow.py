"""Which episodes a step consists of: pure functions of (seed, step), so that a resumed run draws the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")

# Streams keep draws of different purpose apart under one run seed.
STREAM_TASKS, STREAM_DEMONSTRATIONS, STREAM_LIMIT, STREAM_SHUFFLE, STREAM_MINI_BATCHES, STREAM_RESAMPLE = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True)
class EpisodePlan:
    """One episode to run. `group` and `index` order the step's results whatever order they arrive in."""

    task: str
    group: int
    index: int
    step: int


@lru_cache(maxsize=8)
def _permutation(seed: int, stream: int, epoch: int, count: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, stream, epoch]))).permutation(count)


def draw(count: int, seed: int, stream: int, start: int, size: int) -> list[int]:
    """Indices at positions [start, start + size) of an endless sequence of seeded permutations of range(count)."""
    if count < 1:
        raise ValueError("nothing to draw from: the training split is empty; choose another split or fewer filters")
    positions = range(start, start + size)
    return [int(_permutation(seed, stream, position // count, count)[position % count]) for position in positions]


def seeded_order(items: Sequence[Item], seed: int, limit: int | None = None) -> list[Item]:
    """The first `limit` items of the seeded order; all of them, in that order, when `limit` is None."""
    order = _permutation(seed, STREAM_LIMIT, 0, len(items))[:limit]
    return [items[index] for index in order]


@dataclass(frozen=True)
class GroupWorkflow:
    """The student acts alone, `group_size` times on each task; groups never span steps."""

    tasks: Sequence[str]
    batch_size: int
    group_size: int
    seed: int
    first_step: int

    def episodes(self, step: int) -> list[EpisodePlan]:
        """The episodes of global step `step`, group by group."""
        groups = self.batch_size // self.group_size
        chosen = draw(len(self.tasks), self.seed, STREAM_TASKS, (step - self.first_step) * groups, groups)
        return [EpisodePlan(self.tasks[task], group, index, step) for group, task in enumerate(chosen) for index in range(self.group_size)]

    def fresh(self, step: int, draw: int, count: int) -> list[EpisodePlan]:
        """`count` further groups for step `step`, as its draw number `draw` ≥ 1; their numbers follow those of the draws before."""
        order = np.random.Generator(np.random.Philox(np.random.SeedSequence([self.seed, STREAM_RESAMPLE, step, draw])))
        chosen = order.permutation(len(self.tasks))[np.arange(count) % len(self.tasks)]
        first = draw * (self.batch_size // self.group_size)
        return [
            EpisodePlan(self.tasks[int(task)], first + number, index, step)
            for number, task in enumerate(chosen)
            for index in range(self.group_size)
        ]


@dataclass(frozen=True)
class ReplayWorkflow:
    """Nobody acts: demonstrations are replayed."""

    count: int
    batch_size: int
    seed: int
    first_step: int

    def batch(self, step: int) -> list[int]:
        """Indices of the demonstrations of global step `step`."""
        return draw(self.count, self.seed, STREAM_DEMONSTRATIONS, (step - self.first_step) * self.batch_size, self.batch_size)
