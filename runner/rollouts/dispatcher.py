"""Sends orders to the workers and brings every episode back exactly once, the failed ones too."""

from dataclasses import dataclass, field
from typing import Protocol, Sequence

import numpy as np

from runner.contract.termination import HANDLING, Termination
from runner.policies.base import SamplingParams
from runner.rollouts.episodes import EpisodeOrder, Job, Outcome, WorkerBatch
from runner.rollouts.groups import assign, replacement
from runner.rollouts.types import Sample


class WorkerLost(RuntimeError):
    """A rollout worker's process or node is gone."""


class Workers(Protocol):
    """The rollout workers of a gang. Calls of one worker run in the order they were made."""

    count: int

    def call(self, worker: int, method: str, *arguments):
        """Start a call; returns a reference."""

    def result(self, worker: int, reference):
        """Wait for a call. Raises WorkerLost."""

    def scatter(self, method: str, arguments: Sequence[Sequence]) -> list:
        """Call every worker at once, worker i with `arguments[i]`, and wait for all."""

    def replace(self, worker: int) -> None:
        """Put a fresh process with the current weights in the place of a lost one. Raises WorkerLost when that fails."""


@dataclass
class Flight:
    """Jobs under way: (worker, reference, orders)."""

    calls: list[tuple[int, object, tuple[EpisodeOrder, ...]]]
    sampling: SamplingParams
    occasion: str


@dataclass
class Landed:
    """Everything a flight brought back, first tries and replacements. Seconds are those of the slowest worker."""

    outcomes: list[Outcome] = field(default_factory=list)
    generate_seconds: float = 0.0
    grade_seconds: float = 0.0
    replaced: int = 0


class Dispatcher:
    """Keeps group g on worker g mod n. `attempt` goes into the names of replaced episodes."""

    def __init__(self, workers: Workers, attempt: str, version: int = 0):
        self.workers, self.attempt = workers, attempt
        self.version = version

    def send(self, orders: Sequence[EpisodeOrder], sampling: SamplingParams, occasion: str) -> Flight:
        """Start `orders`; `occasion` names the step or the evaluation they belong to."""
        flight = Flight([], sampling, occasion)
        for worker, share in enumerate(assign(orders, self.workers.count)):
            if share:
                flight.calls.append(self._call(worker, tuple(share), sampling))
        return flight

    def land(self, flight: Flight) -> Landed:
        """Wait for every episode. One that failed for no fault of the policy is replaced once. Raises WorkerLost at a second loss."""
        landed = Landed()
        self._collect(flight, landed, last=False)
        again = [self._replacement(outcome, flight) for outcome in landed.outcomes if deserves_replacement(outcome)]
        if again:
            second = self.send(again, flight.sampling, flight.occasion)
            landed.replaced = len(again)
            self._collect(second, landed, last=True)
        landed.outcomes.sort(key=lambda outcome: (outcome.order.group, outcome.order.index, outcome.order.trial))
        return landed

    def _call(self, worker: int, orders: tuple[EpisodeOrder, ...], sampling: SamplingParams):
        return worker, self.workers.call(worker, "run_episodes", Job(orders, sampling)), orders

    def _replacement(self, outcome: Outcome, flight: Flight) -> EpisodeOrder:
        return replacement(outcome.order, self.attempt, flight.occasion)

    def _collect(self, flight: Flight, landed: Landed, last: bool) -> None:
        generate, grade = [0.0], [0.0]
        for worker, reference, orders in flight.calls:
            try:
                batch: WorkerBatch = self.workers.result(worker, reference)
            except WorkerLost as lost:
                if last:
                    raise
                self.workers.replace(worker)
                landed.outcomes += [lost_outcome(order, worker, str(lost), self.version) for order in orders]
                continue
            landed.outcomes += batch.outcomes
            generate.append(batch.generate_seconds)
            grade.append(batch.grade_seconds)
        landed.generate_seconds += max(generate)
        landed.grade_seconds += max(grade)


def deserves_replacement(outcome: Outcome) -> bool:
    """Whether the termination's row asks for another try of the whole episode, and it had none yet."""
    handling = HANDLING[outcome.termination]
    return outcome.order.trial == 0 and (handling.refill or handling.retry == "episode_once")


def lost_outcome(order: EpisodeOrder, worker: int, error: str, version: int) -> Outcome:
    """The record of an episode whose worker died: no token, no reward, a reason."""
    empty = np.empty(0, np.float32)
    sample = Sample(
        episode=order.episode,
        task=order.task,
        group=order.group,
        index=order.index,
        token_ids=empty.astype(np.int32),
        author=empty.astype(np.uint8),
        loss_mask=empty.astype(np.bool_),
        logprobs=empty,
        reward=None,
        termination=Termination.INFRA_LOST,
        policy_version=version,
        turns=0,
    )
    return Outcome(order, sample, error=error, worker=f"worker-{worker}", policy_version_end=version)
