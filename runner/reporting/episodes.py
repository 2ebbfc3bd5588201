"""An episode told as its five events (runner.contract.events)."""

from collections.abc import Iterable

from runner.contract.episode import EventKind, write_trace
from runner.reporting.emitter import Emitter
from runner.rollouts.episodes import EpisodeOrder, Outcome
from runner.rollouts.types import TrainedSample


class EpisodeReporter:
    """Turns orders, outcomes and what learning made of them into events. `domains` maps task keys to domains."""

    def __init__(self, emitter: Emitter, domains: dict[str, str]):
        self.emitter, self.domains = emitter, domains

    def started(self, order: EpisodeOrder, worker: str, version: int, evaluation: str | None = None) -> None:
        data = {
            "stage": order.stage,
            "step": order.step,
            "group": order.group,
            "sample": order.index,
            "task": order.task,
            "domain": self.domains.get(order.task, ""),
            "purpose": order.purpose.name.lower(),
            "evaluation": evaluation,
            "worker": worker,
            "policy_version": version,
            "seed": order.environment_seed,
        }
        self.emitter.episode_event(order.episode, EventKind.STARTED, 0, data)

    def all_ended(self, outcomes: Iterable[Outcome]) -> None:
        """A step's episodes, in one write."""
        with self.emitter.together():
            for outcome in outcomes:
                self.ended(outcome)

    def all_trained(self, samples: Iterable[TrainedSample], step: int) -> None:
        """What step `step` made of its episodes, in one write."""
        with self.emitter.together():
            for trained in samples:
                self.trained(trained, step)

    def ended(self, outcome: Outcome, evaluation: str | None = None) -> None:
        """Turns, end and grade of an episode. A replaced try, which nobody announced, is announced first."""
        order, sample = outcome.order, outcome.sample
        if order.trial:
            self.started(order, outcome.worker, sample.policy_version, evaluation)
        for turn in outcome.turns:
            self.emitter.episode_event(order.episode, EventKind.TURN, turn.index, dict(vars(turn)), outcome.finished)
        data = {
            "termination": str(outcome.termination),
            "policy_version": outcome.policy_version_end,
            "prompt_tokens": sample.prompt_length,
            "response_tokens": sample.response_length,
            "turns": sample.turns,
            "seconds": max(0.0, outcome.finished - outcome.started),
            "error": outcome.error,
        }
        if outcome.facts:
            data["facts"] = outcome.facts
        if outcome.sampled:
            data |= {"sampled": self.emitter.blob(outcome.sampled), "token_texts": self.emitter.blob(outcome.token_texts)}
        self.emitter.episode_event(order.episode, EventKind.FINISHED, 0, data, outcome.finished or None)
        if outcome.graded:
            self._graded(outcome)

    def _graded(self, outcome: Outcome) -> None:
        data = {
            "score": outcome.sample.reward,
            "reason": outcome.reason,
            "parsed": outcome.sample.parsed,
            "checks": outcome.checks,
            "evidence": outcome.evidence,
            "grader": outcome.grader,
        }
        self.emitter.episode_event(outcome.order.episode, EventKind.GRADED, 0, data, outcome.finished)

    def trained(self, trained: TrainedSample, step: int) -> None:
        data = {
            "step": step,
            "advantage": trained.advantage,
            "trained_tokens": trained.trained_tokens,
            "masked": trained.masked,
            "mask_reason": trained.mask_reason,
            "filters": trained.filters,
            **({"turns": trained.turns} if trained.turns else {}),
            "trained": self.emitter.blob(write_trace(trained.trained_columns())),
        }
        self.emitter.episode_event(trained.episode, EventKind.TRAINED, 0, data)

    def cancelled(self, order: EpisodeOrder, version: int) -> None:
        """An episode that was announced and will not be finished."""
        data = {"termination": "cancelled", "policy_version": version, "error": "the run stopped before this episode was needed"}
        self.emitter.episode_event(order.episode, EventKind.FINISHED, 0, data)
