"""Held-out scores through the same workers: generated answers, and the best option by log-prob."""

import uuid
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Sequence

from runner.assignment import Assignment, Bank
from runner.contract.bank import Task
from runner.contract.run_config import HeldOutEvaluation
from runner.contract.baselines import choice_baselines
from runner.evaluation.protocol import protocol_document
from runner.evaluation.scores import Result, metrics, summarise
from runner.lineage import Lineage
from runner.policies.base import SamplingParams
from runner.reporting.emitter import Emitter
from runner.reporting.episodes import EpisodeReporter
from runner.rollouts.dispatcher import Dispatcher
from runner.rollouts.episodes import EpisodeOrder, Outcome
from runner.rollouts.groups import evaluation_orders
from runner.rollouts.workflow import seeded_order

# Tasks a worker gets at once: a stop waits for one round, not for the whole split.
ROUND_TASKS = 128


@dataclass(frozen=True)
class Occasion:
    """When an evaluation happens, and what it is an evaluation of."""

    label: str
    stage: int
    step: int
    policy_version: int
    checkpoint: str | None = None


class Evaluator:
    """Scores the current weights of the workers. `stopping` is asked between rounds."""

    def __init__(
        self,
        assignment: Assignment,
        bank: Bank,
        dispatcher: Dispatcher,
        emitter: Emitter,
        stopping: Callable[[], bool],
        lineage: Lineage | None = None,
    ):
        self.lineage = lineage or Lineage(assignment.config.environment.type)
        self.assignment, self.bank, self.workers, self.dispatcher = assignment, bank, dispatcher.workers, dispatcher
        self.emitter, self.stopping = emitter, stopping
        self.settings: HeldOutEvaluation = assignment.config.evaluation
        self.tasks: list[Task] = seeded_order(bank.held_out, assignment.config.seed, self.settings.limit)
        self.episodes = EpisodeReporter(emitter, {task.key: task.domain for task in self.tasks})

    def evaluate(self, occasion: Occasion) -> dict[str, float] | None:
        """Score, report, and return the `val/…` metrics; None when a stop came first, which is reported too."""
        evaluation = str(uuid.uuid5(uuid.NAMESPACE_URL, f"assay:{self.assignment.attempt}/evaluation/{occasion.label}"))
        outcomes = self._generate(evaluation, occasion)
        if outcomes is None:
            self.emitter.event("note", occasion.step, {"text": f"evaluation {occasion.label!r} was given up: the run is stopping"})
            return None
        forced = self._forced_choices() if self.settings.forced_choice else {}
        blind = self._forced_choices(without_question=True) if self.settings.without_question else {}
        results = [to_result(task, outcomes[task.key], forced.get(task.key), blind.get(task.key)) for task in self.tasks]
        summary = summarise(results) | self._overlap(occasion)
        self.emitter.event("evaluation", occasion.step, self._document(evaluation, occasion, summary, results))
        values = metrics(summary)
        self.emitter.emit_points(occasion.step, values)
        return values

    def _overlap(self, occasion: Occasion) -> dict[str, int]:
        """How many of the tasks the weights have learned from: such a pass is no held-out score, and says so."""
        seen = self.lineage.overlap(task.key for task in self.tasks)
        if not seen:
            return {}
        told = f"evaluation {occasion.label!r}: {len(seen)} of {len(self.tasks)} tasks were trained on by these weights, {seen[0]} among them"
        self.emitter.log("warning", f"{told}; choose another eval_split, or a model that has not seen them")
        return {"trained_on": len(seen)}

    def _generate(self, evaluation: str, occasion: Occasion) -> dict[str, Outcome] | None:
        """The last outcome of each task."""
        config = self.assignment.config
        sampling = SamplingParams(self.settings.temperature, 1.0, config.sampling.max_new_tokens)
        orders = evaluation_orders(
            [task.key for task in self.tasks],
            attempt=self.assignment.attempt,
            evaluation=evaluation,
            stage=occasion.stage,
            step=occasion.step,
            run_seed=config.seed,
        )
        outcomes = {}
        for chunk in _rounds(orders, ROUND_TASKS * self.workers.count):
            if self.stopping():
                return None
            for order in chunk:
                self.episodes.started(order, f"worker-{order.group % self.workers.count}", occasion.policy_version, evaluation)
            for outcome in self.dispatcher.land(self.dispatcher.send(chunk, sampling, evaluation)).outcomes:
                self.episodes.ended(outcome, evaluation)
                outcomes[outcome.order.task] = outcome
        return outcomes

    def _forced_choices(self, without_question: bool = False) -> dict[str, float | None]:
        keys = [task.key for task in self.tasks]
        shares = [keys[worker :: self.workers.count] for worker in range(self.workers.count)]
        found = self.workers.scatter("forced_choices", [(share, without_question) for share in shares])
        return {key: value for share, values in zip(shares, found, strict=True) for key, value in zip(share, values, strict=True)}

    def _document(self, evaluation: str, occasion: Occasion, summary: dict, results: Sequence[Result]) -> dict[str, Any]:
        return {
            "evaluation": evaluation,
            **vars(occasion),
            "protocol": protocol_document(self.assignment.config, self.settings, self.tasks, self.bank.digest),
            "split": self.assignment.config.environment.eval_split,
            "baselines": choice_baselines(self.tasks),
            "summary": summary,
            "results": [result.row() for result in results],
        }


def _rounds(orders: Sequence[EpisodeOrder], size: int) -> Iterator[Sequence[EpisodeOrder]]:
    for start in range(0, len(orders), size):
        yield orders[start : start + size]


def to_result(task: Task, outcome: Outcome, forced: float | None, without_question: float | None) -> Result:
    """What an outcome says of its task."""
    sample, told = outcome.sample, outcome.evidence
    score, scores = sample.reward, {}
    if score is not None and "success" in told:
        score, scores = float(told["success"]), {"final": told["final_score"] / 10, "best": told["best_score"] / 10}
    about = (task.key, task.domain, task.level, score, forced, sample.parsed, outcome.order.episode, without_question)
    return Result(*about, **scores, turns=sample.turns)
