"""Batches between sampling and learning, under one bound on staleness.

Step s learns with the weights of version s − 1. An episode that started under version v is (s − 1) − v versions stale. The
bound holds twice: a batch is not ordered before its episodes can be fresh enough, and an episode that is too old all the same is
not let in. With bound 0 sampling and learning alternate: strictly on-policy.
"""

from dataclasses import dataclass, field
from typing import Iterable

from runner.rollouts.episodes import Outcome


def staleness(step: int, version: int) -> int:
    """Versions between the weights an episode started from and those step `step` learns with."""
    return max(0, step - 1 - version)


@dataclass
class EpisodeQueue:
    """`bound` is GrpoStage.max_staleness. Steps leave in order, episodes of a step by (group, index)."""

    bound: int
    _waiting: dict[int, list[Outcome]] = field(default_factory=dict)

    def may_order(self, step: int, version: int) -> bool:
        """Whether episodes that start under `version` are fresh enough for step `step`."""
        return staleness(step, version) <= self.bound

    def insert(self, step: int, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Let finished episodes of step `step` in; returns those that are too stale to be."""
        admitted, refused = [], []
        for outcome in outcomes:
            fresh = staleness(step, outcome.sample.policy_version) <= self.bound
            (admitted if fresh else refused).append(outcome)
        self._waiting.setdefault(step, []).extend(admitted)
        return refused

    def take(self, step: int) -> list[Outcome]:
        """The admitted episodes of step `step`, ordered by group and index whatever order they arrived in."""
        outcomes = self._waiting.pop(step, [])
        return sorted(outcomes, key=lambda outcome: (outcome.order.group, outcome.order.index, outcome.order.trial))
