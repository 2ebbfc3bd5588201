"""The batches of a stage that learns from its own episodes, ordered as early as the staleness bound allows and handed out step by step."""

from collections.abc import Callable
from dataclasses import dataclass

from runner.policies.base import SamplingParams
from runner.reporting.episodes import EpisodeReporter
from runner.reporting.metrics import Clock
from runner.rollouts.dispatcher import Dispatcher, Flight, Landed
from runner.rollouts.episodes import EpisodeOrder, Outcome
from runner.rollouts.groups import training_orders
from runner.rollouts.queue import EpisodeQueue
from runner.rollouts.types import Sample
from runner.rollouts.workflow import EpisodePlan, GroupWorkflow


@dataclass
class Batch:
    """One step's episodes, by group and index; the failed tries that were replaced are among them."""

    outcomes: list[Outcome]
    replaced: int
    draws: int = 1


class Sampler:
    """With `max_staleness` 0 a step is ordered when it is asked for; with b, up to b further steps are under way beside it."""

    def __init__(
        self,
        workflow: GroupWorkflow,
        dispatcher: Dispatcher,
        episodes: EpisodeReporter,
        stage: int,
        run_seed: int,
        max_staleness: int,
        sampling: SamplingParams,
        last_step: int,
    ):
        self.workflow, self.dispatcher, self.episodes = workflow, dispatcher, episodes
        self.stage, self.run_seed, self.sampling, self.last_step = stage, run_seed, sampling, last_step
        self.queue = EpisodeQueue(max_staleness)
        self._flights: dict[int, Flight] = {}

    def batch(self, step: int, clock: Clock) -> Batch:
        """Step `step`'s episodes, waited for. Raises WorkerLost, or RuntimeError when none came back fresh enough."""
        self._order_ahead(step)
        landed = self._land(self._flights.pop(step), clock)
        stale = self.queue.insert(step, landed.outcomes)
        for outcome in stale:
            self.episodes.ended(outcome)
        outcomes = self.queue.take(step)
        if not outcomes:
            raise RuntimeError(f"step {step}: all {len(stale)} episodes were staler than {self.queue.bound} versions; raise max_staleness")
        return Batch(outcomes, landed.replaced)

    def cancel(self) -> None:
        """What is under way is not needed any more: say of each announced episode that it will not be finished."""
        for flight in self._flights.values():
            for order in _orders(flight):
                self.episodes.cancelled(order, self.dispatcher.version)
        self._flights.clear()

    def _order_ahead(self, step: int) -> None:
        for ahead in range(step, min(step + self.queue.bound, self.last_step) + 1):
            if ahead in self._flights or not self.queue.may_order(ahead, self.dispatcher.version):
                continue
            self._flights[ahead] = self._send(ahead, self.workflow.episodes(ahead))

    def _send(self, step: int, plans: list[EpisodePlan]) -> Flight:
        orders = training_orders(plans, attempt=self.dispatcher.attempt, stage=self.stage, run_seed=self.run_seed)
        flight = self.dispatcher.send(orders, self.sampling, str(step))
        with self.episodes.emitter.together():  # while the workers sample
            for order in orders:
                worker = order.group % self.dispatcher.workers.count
                self.episodes.started(order, f"worker-{worker}", self.dispatcher.version)
        return flight

    def _land(self, flight: Flight, clock: Clock) -> Landed:
        with clock.measure("wait"):
            landed = self.dispatcher.land(flight)
        clock.add("generate", landed.generate_seconds)
        clock.add("grade", landed.grade_seconds)
        return landed


class Resampler(Sampler):
    """Dynamic sampling: groups that `silent` finds without signal are replaced by fresh ones, over at most `max_draws` draws of a step.

    The last draw keeps everything. What is replaced is reported, and not learned from.
    """

    def __init__(self, *arguments, silent: Callable[[list[Sample]], set[int]], max_draws: int):
        super().__init__(*arguments)
        self.silent, self.max_draws = silent, max_draws

    def batch(self, step: int, clock: Clock) -> Batch:
        first = super().batch(step, clock)
        kept, silent = self._divided(first.outcomes)
        draws, replaced = 1, first.replaced
        while silent and draws < self.max_draws:
            for outcome in silent:
                self.episodes.ended(outcome)
            count = len({outcome.order.group for outcome in silent})
            landed = self._land(self._send(step, self.workflow.fresh(step, draws, count)), clock)
            speaking, silent = self._divided(landed.outcomes)
            kept += speaking
            draws, replaced = draws + 1, replaced + landed.replaced
        return Batch(kept + silent, replaced, draws)

    def _divided(self, outcomes: list[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
        without = self.silent([outcome.sample for outcome in outcomes])
        speaking = [outcome for outcome in outcomes if outcome.order.group not in without]
        return speaking, [outcome for outcome in outcomes if outcome.order.group in without]


def _orders(flight: Flight) -> list[EpisodeOrder]:
    return [order for _, _, orders in flight.calls for order in orders]
