"""An evaluation in containers, told once.

    the node's engine answers, and every task's files are there, before anything starts
    for each task, agent and sample that has no result yet, as many at a time as the settings allow:
        run the episode            (actors)
        write its line             (ledger)
        report episode and points  (the same events as in training)
    the summary, and for the anchors the word that no more results will come

A warming goes over its node's tasks anew in each attempt: what counts is how long a set-up takes there now.

A stop tears down what runs and leaves the lines that are written; the next attempt goes on from them.
"""

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from runner.assignment import Assignment, Refused
from runner.contract.anchors import AnchorResult
from runner.contract.bank import InvalidBank, Task, read_bank
from runner.contract.canonical import canonical_bytes, digest
from runner.contract.episode import EventKind
from runner.contract.evaluation_config import ANCHORS, REGRADE, WARMING, EvaluationConfig
from runner.contract.evaluation_results import Record, mean, select, summarise
from runner.environments.harbor import read_payload
from runner.environments.site import Site, house_name, node_name
from runner.evaluation.actors import Stage, make_actor
from runner.evaluation.ledger import Ledger, ordered
from runner.evaluation.trials import Ended, Trial, record, warmed
from runner.repair.cache import TaskCache, http_fetch
from runner.reporting.control import Control, NoControl
from runner.reporting.emitter import Emitter
from runner.reporting.heartbeat import StopRequest, Vitals
from runner.reporting.live import LiveReporter
from runner.reporting.replay import read_connection

STOP_LOOK_SECONDS = 0.5
REASON_LENGTH = 2000


class Harness:
    """Drives one attempt of an evaluation. `bank` is the bank's file, which has the digest that the evaluation pinned."""

    def __init__(
        self, assignment: Assignment, bank: bytes, control: Control | NoControl, emitter: Emitter, vitals: Vitals, stop: StopRequest
    ):
        self.assignment, self.bank, self.control, self.emitter, self.vitals, self.stop = assignment, bank, control, emitter, vitals, stop
        self.config: EvaluationConfig = assignment.config
        self.proves, self.regrades = self.config.agent == ANCHORS, self.config.agent == REGRADE
        self.warms = self.config.agent == WARMING
        scores = not (self.proves or self.regrades or self.warms)
        self.evaluation = str(uuid.uuid5(uuid.NAMESPACE_URL, f"assay:{assignment.run}/evaluation")) if scores else None
        self.tasks = self._select()
        self.trials = list(self._saved() if self.regrades else self._planned())
        self.ledger = Ledger((assignment.folder if self.warms else assignment.storage) / "evaluation")

    def _planned(self) -> Iterator[Trial]:
        for number, task in enumerate(self.tasks):
            payload = read_payload(task)
            for agent in self.config.agents:
                for sample in range(self.config.selection.samples):
                    yield Trial(task, payload, agent, sample, number)

    def _saved(self) -> Iterator[Trial]:
        """One a saved episode; its place in the config stands for the sample."""
        known = {task.key: (number, task) for number, task in enumerate(self.tasks)}
        for place, saved in enumerate(self.config.saved):
            if saved.task not in known:
                raise Refused(f"the bank has no task {saved.task!r} that can run", "/saved", saved.task)
            number, task = known[saved.task]
            yield Trial(task, read_payload(task), REGRADE, place, number)

    def _select(self) -> list[Task]:
        try:
            tasks, _, found = read_bank(self.bank)
            if found != self.config.environment.version:
                raise Refused(f"the bank's digest is {found}; import it again", "/environment/version", self.config.environment.version)
            return select([task for task in tasks if task.key not in self.assignment.quarantined], self.config)
        except InvalidBank as error:
            raise Refused(f"the task bank cannot be read: {error}", "/environment/bank", self.config.environment.bank) from error
        except ValueError as error:
            if isinstance(error, Refused):
                raise
            raise Refused(str(error), "/selection") from error

    def run(self) -> str:
        """`succeeded`, or `stopped` with every finished trial kept."""
        try:
            return asyncio.run(self._run())
        finally:
            self.ledger.close()

    async def _run(self) -> str:
        live = LiveReporter("evaluator", self.assignment.folder)
        site = self._site(live)
        self._phase("asking the node")
        if problems := await site.problems(sorted({trial.payload.task_digest for trial in self.trials})):
            raise Refused("; ".join(problems), "/environment/backend", self.config.environment.backend)
        stage = Stage(self.config, site, self.assignment.attempt, live, self._ended)
        self._phase("preparing the agent")
        actor = await asyncio.to_thread(make_actor, stage, self.assignment, self.bank, {task.key: task for task in self.tasks})
        left = [trial for trial in self.trials if trial.key not in self.ledger.done]
        self.control.state("running", "running episodes", first_step=len(self.trials) - len(left))
        self._phase("running episodes")
        with live.telling():
            async with site.open() as node:
                live.health(node.name, await node.health())
                finished = await self._until_stopped(actor.run(left, self._starting))
        return self._conclude() if finished else "stopped"

    def _site(self, live: LiveReporter) -> Site:
        connection = read_connection(self.assignment.folder)
        return Site(
            settings=self.config.environment,
            tasks=TaskCache(self.assignment.cache / "tasks", http_fetch(connection.tasks_url, connection.token) if connection else None),
            jobs=self.ledger.folder / "jobs",
            house=house_name(self.assignment.storage.parent),
            attempt=self.assignment.attempt,
            on_phase=live.phase,
        )

    async def _until_stopped(self, work) -> bool:
        """Whether `work` came to its end before a stop was asked for."""
        task = asyncio.create_task(work)
        while not task.done():
            await asyncio.wait({task}, timeout=STOP_LOOK_SECONDS)
            if self.stop.asked and not task.done():
                self.control.state("stopping", "ending the episodes")
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                return False
        task.result()
        return True

    # ------------------------------------------------------------ telling
    def _starting(self, trial: Trial) -> None:
        if self.regrades:
            return
        data = {
            "stage": 0,
            "step": self._done,
            "group": trial.number,
            "sample": self._place(trial),
            "task": trial.task.key,
            "domain": trial.task.domain,
            "purpose": "eval",
            "evaluation": self.evaluation,
            "worker": f"{trial.agent} on {node_name()}"[:60],
            "seed": self.config.seed,
        }
        self.emitter.episode_event(trial.episode(self.assignment.attempt), EventKind.STARTED, 0, data)

    def _place(self, trial: Trial) -> int:
        return self.config.agents.index(trial.agent) * self.config.selection.samples + trial.sample

    def _ended(self, trial: Trial, ended: Ended) -> None:
        self.ledger.add(record(trial, ended))
        if self.regrades:
            self.control.regrades([{"episode": self.config.saved[trial.sample].episode, **_graded(ended)}])
            return self._progress()
        for turn in ended.turns:
            self.emitter.episode_event(ended.episode, EventKind.TURN, turn.index, dict(vars(turn)), ended.finished)
        data = {
            "termination": str(ended.termination),
            "turns": sum(turn.author == "student" for turn in ended.turns) if ended.turns else None,
            "prompt_tokens": ended.prompt_tokens,
            "response_tokens": ended.output_tokens,
            "seconds": max(0.0, ended.finished - ended.started),
            "error": ended.error,
            "facts": ended.facts,
        }
        self.emitter.episode_event(ended.episode, EventKind.FINISHED, 0, data, ended.finished)
        if ended.grade:
            self.emitter.episode_event(ended.episode, EventKind.GRADED, 0, _graded(ended), ended.finished)
        if self.warms:
            self.control.warmed([warmed(trial, ended).model_dump(mode="json")])
        if self.proves or (self.warms and ended.grade and ended.score is not None):
            self.control.anchors([self._anchor(trial, ended)])
        if not (self.warms and trial.sample):  # the second pass over a task is no further progress
            self._progress()

    def _anchor(self, trial: Trial, ended: Ended) -> dict[str, Any]:
        rewards = ended.evidence.get("rewards", {})
        result = AnchorResult(
            score=ended.score,
            raw_reward=rewards.get("reward") if ended.score is not None else None,
            floor=rewards.get("floor"),
            reason="" if ended.score is not None else _why_ungraded(ended)[:REASON_LENGTH],
            node=ended.facts.get("node", ""),
            node_class=ended.facts.get("isolation", ""),
            backend=self.config.environment.backend,
            task_digest=trial.payload.task_digest,
            timings=ended.facts.get("phases", {}),
        )
        return {"task": trial.task.key, "agent": trial.agent, **result.model_dump()}

    @property
    def _done(self) -> int:
        return len(self.ledger.records)

    def _progress(self) -> None:
        self.vitals.step = self._done
        scores = [entry["score"] for entry in self.ledger.records if entry["score"] is not None]
        values = {"evaluation/graded": float(len(scores)), "evaluation/ungraded": float(self._done - len(scores))}
        if (average := mean(scores)) is not None and not self.proves:
            values["evaluation/score_mean"] = average
        self.emitter.emit_points(self._done, values)

    def _phase(self, phase: str) -> None:
        self.vitals.phase = phase
        self.emitter.log("info", phase)

    # ------------------------------------------------------------ the end
    def _conclude(self) -> str:
        records = ordered(self.ledger.records)
        summary = summarise(records, self._about())
        self.ledger.summarise(summary)
        if self.proves:
            self.control.anchors([], finished=True)
        elif self.evaluation:
            self.emitter.event("evaluation", self._done, self._document(records, summary))
        return "succeeded"

    def _about(self) -> dict[str, Any]:
        """What `summary.json` says of how the numbers came about."""
        config = self.config
        return {
            "agent": config.agent_name,
            "model": self._model(),
            "filters": config.selection.model_dump(mode="json"),
            "environment": config.environment.model_dump(mode="json"),
            "sampling": config.sampling.model_dump(mode="json"),
            "seed": config.seed,
            "unproven_reason": config.environment.unproven_reason,
            "protocol": digest(canonical_bytes(self._protocol())),
        }

    def _model(self) -> dict[str, Any] | None:
        """Whose replies they were. A checkpoint says which step was loaded; everything else is the base model."""
        if self.config.model is None:
            return None
        source = self.config.model.source
        loaded = self.assignment.model_checkpoint
        step = int(loaded.name.removeprefix("step_")) if source.type == "checkpoint" and loaded else None
        return {**source.model_dump(mode="json"), "is_base": source.type != "checkpoint", "loaded_step": step}

    def _protocol(self) -> dict[str, Any]:
        """Everything that decides a score but the weights and the draws; `tasks` names the set."""
        config, environment = self.config, self.config.environment
        limits = ("hint_level", "backend", "network", "task_timeout_sec", "verifier_timeout_sec", "memory_mb_override")
        acting = {"agent": config.agent_name}
        if config.agent == "model":
            asked = config.sampling.model_dump(mode="json")
            acting = {"agent": environment.agent.model_dump(mode="json"), "max_length": config.model.max_length, **asked}
        return {
            "environment": environment.type,
            "bank": environment.bank,
            "bank_digest": environment.version,
            "tasks": digest(canonical_bytes(sorted(task.key for task in self.tasks))),
            "task_count": len(self.tasks),
            "samples_per_task": config.selection.samples,
            **{name: getattr(environment, name) for name in limits},
            **acting,
        }

    def _document(self, records: list[Record], summary: dict[str, Any]) -> dict[str, Any]:
        by_task: dict[str, list[Record]] = {task.key: [] for task in self.tasks}
        for entry in records:
            by_task.get(entry["task_name"], []).append(entry)
        return {
            "evaluation": self.evaluation,
            "label": _label(self._model(), self.config.agent_name),
            "step": self._done,
            "stage": 0,
            "protocol": self._protocol(),
            "baselines": {},
            "summary": summary,
            "results": [_result(task, by_task[task.key]) for task in self.tasks],
        }


def _graded(ended: Ended) -> dict[str, Any]:
    """As the `graded` event carries it; of a verifier that was never reached, why."""
    if ended.grade is None:
        return {"score": None, "reason": _why_ungraded(ended)[:200]}
    return {name: getattr(ended.grade, name) for name in ("score", "reason", "checks", "evidence", "grader")}


def _why_ungraded(ended: Ended) -> str:
    return ended.error or (ended.grade.reason if ended.grade else "") or str(ended.termination)


def _label(model: dict[str, Any] | None, agent: str) -> str:
    if model is None:
        return agent
    return f"{agent}, base model" if model["is_base"] else f"{agent}, checkpoint of step {model['loaded_step']}"


def _result(task: Task, records: list[Record]) -> dict[str, Any]:
    """A task's mean over its graded samples; None without one."""
    score = mean([entry["score"] for entry in records if entry["score"] is not None])
    episode = records[0]["episode"] if records else None
    return {"task": task.key, "domain": task.domain, "level": task.level, "score": score, "episode": episode, "records": records}
