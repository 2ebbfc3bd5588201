"""The run, told once.

    for each stage:
        evaluate before it
        for each step:
            sample    workers run the step's episodes, group by group        (rollouts.dispatcher, rollouts.turns)
            grade     each environment says what its episode was worth       (rollouts.turns)
            credit    rewards become advantages, filters look at them        (methods.grpo, methods.gigpo)
            learn     one optimizer step on what is left                     (learning.learner)
            sync      every worker takes over the new weights and proves it  (sync.py)
            report    points and episodes go to the emitter                  (reporting)
            checkpoint and evaluate, when they are due
        checkpoint, evaluate after it

Steps are numbered from 1 over all stages. After step k the policy has version k. A stop finishes the step at hand, saves when the
grace allows it, and leaves; a resumed run goes on from its checkpoint as if it had never stopped.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runner.assignment import Assignment, Bank, Refused
from runner.checkpointing import Checkpointer
from runner.contract.run_config import RolloutStage, RunConfig
from runner.evaluation.evaluator import Evaluator, Occasion
from runner.gang import Gang
from runner.lineage import Lineage
from runner.methods.gigpo_credit import without_signal
from runner.policies.base import SamplingParams
from runner.reporting.control import Control, NoControl
from runner.reporting.emitter import Emitter
from runner.reporting.episodes import EpisodeReporter
from runner.reporting.heartbeat import Heartbeat, StopRequest, Vitals
from runner.reporting.metrics import Clock, container_metrics, in_words, throughput
from runner.reporting.simulators import simulator_metrics
from runner.rollouts.dispatcher import Dispatcher
from runner.rollouts.sampler import Resampler, Sampler
from runner.rollouts.types import TrainedSample
from runner.rollouts.workflow import GroupWorkflow, seeded_order
from runner.sync import WeightSync


@dataclass
class Surroundings:
    """What a run tells and hears."""

    emitter: Emitter
    control: Control | NoControl
    vitals: Vitals
    stop: StopRequest
    heartbeat: Heartbeat


def first_step(config: RunConfig, stage: int) -> int:
    """The global step that stage `stage` begins with."""
    return 1 + sum(item.steps for item in config.stages[:stage])


class Loop:
    """Drives one attempt from where it stands to the end, or to a stop. `gang` has its models loaded."""

    def __init__(self, assignment: Assignment, bank: Bank, gang: Gang, around: Surroundings):
        self.assignment, self.config, self.bank, self.gang, self.around = assignment, assignment.config, bank, gang, around
        self.emitter, self.stop = around.emitter, around.stop
        self.step = 0
        self.stage_entered: int | None = None
        self.evaluated: set[int] = set()
        self.sampler: Sampler | None = None
        self.skipped: str | None = None
        self.lineage = Lineage.after(self.config.environment.type, assignment.model_checkpoint)
        self.untold: tuple[Sequence[TrainedSample], int] = ((), 0)
        self.reported_seconds = 0.0
        self.dispatcher = Dispatcher(gang, assignment.attempt)
        self.sync = WeightSync(gang, self.dispatcher, self.emitter, bank, self.config)
        self.checkpointer = Checkpointer(assignment, gang, around.control, self.emitter)
        self.episodes = EpisodeReporter(self.emitter, {task.key: task.domain for task in bank.train})
        self.evaluator = None
        if self.config.evaluation.type == "held_out":
            self.evaluator = Evaluator(assignment, bank, self.dispatcher, self.emitter, lambda: self.stop.asked, self.lineage)

    def run(self) -> str:
        """`succeeded`, or `stopped` with everything saved that the grace allowed."""
        begin = self._restore() if self.assignment.resume else 0
        self.around.control.state("running", "training", first_step=self.step + 1)
        try:
            for index in range(begin, len(self.config.stages)):
                self._run_stage(index)
                if self.stop.asked:
                    self.around.control.state("stopping", "saving before the stop")
                    self._save_before_leaving()
                    self.checkpointer.finish()
                    return "stopped"
        finally:
            self._tell_trained()
        return "succeeded"

    # ------------------------------------------------------------ a stage
    def _run_stage(self, index: int) -> None:
        stage = self.config.stages[index]
        last = first_step(self.config, index) + stage.steps - 1
        if self.stage_entered != index:
            self._enter(index)
        if isinstance(stage, RolloutStage) and self.step < last and not self.stop.asked:
            self.sampler = self._sampler(index)
        while self.step < last and not self.stop.asked:
            self._phase(f"stage {index}: {stage.type}")
            self._make_step(index, self.step + 1, last)
        if self.sampler:
            self.sampler.cancel()
            self.sampler = None
        if self.step == last:
            self._leave(index)

    def _enter(self, index: int) -> None:
        stage = self.config.stages[index]
        if self.evaluator and self.config.evaluation.before_stages:
            self._evaluate(f"before stage {index}", index)
        if self.stop.asked:
            return
        self._phase(f"stage {index}: {stage.type}")
        self.gang.wait(self.gang.ask_learner("begin_stage", index, self.bank.demonstrations if stage.type == "sft" else ()))
        if stage.type == "sft":
            self.lineage.learned(item.task for item in self.bank.demonstrations if not stage.kinds or item.kind in stage.kinds)
        self.stage_entered = index
        begun = {"stage": index, "type": stage.type, "first_step": self.step + 1, "policy_version": self.step}
        self.emitter.event("stage_started", self.step, begun)

    def _leave(self, index: int) -> None:
        checkpoint = self._save(index)
        values = self._evaluate(f"after stage {index}", index, checkpoint) if self.evaluator else None
        self.checkpointer.finish()
        self.emitter.event("stage_finished", self.step, {"stage": index, "step": self.step, "policy_version": self.step})
        if values:
            self._pass_gate(index, values)

    def _pass_gate(self, index: int, values: dict[str, float]) -> None:
        """Learning from rewards needs a first success. Raises Refused where the warm start gave none and the stage says stop.

        Who resumes a run that was stopped here has decided.
        """
        gate = getattr(self.config.stages[index], "gate", "off")
        success = values.get("val/success_rate", values.get("val/accuracy"))
        if gate == "off" or success != 0 or index + 1 == len(self.config.stages):
            return
        told = f"no held-out task succeeded after stage {index}, so that stage {index + 1} would learn from hardly any reward"
        self.emitter.event("note", self.step, {"text": told})
        self.emitter.log("warning", f"{told}; lengthen the warm start")
        resumed = self.assignment.resume
        if gate == "stop" and not (resumed and resumed.step == self.step):
            raise Refused(f"{told}; lengthen it, or resume the run to go on all the same", f"/stages/{index}/gate", gate)

    # ------------------------------------------------------------ a step
    def _make_step(self, stage: int, step: int, last: int) -> None:
        clock = Clock()
        clock.add("report", self.reported_seconds)
        metrics = self._grpo_step(step, clock) if self.sampler else self._sft_step(step)
        self.step = self.around.vitals.step = step
        metrics = {**clock.stop(), **metrics}
        metrics |= throughput(metrics, self.config.resources.gpus)
        began = time.perf_counter()
        self.emitter.emit_points(step, metrics)
        self.emitter.log("info", f"step {step} · {in_words(metrics)}")
        self.reported_seconds = time.perf_counter() - began
        self.checkpointer.remember(metrics)
        self.around.heartbeat.nudge()
        self.checkpointer.look()
        self._after_step(stage, step, last)

    def _after_step(self, stage: int, step: int, last: int) -> None:
        """Checkpoint and evaluate inside a stage; its end has its own. What is evaluated is saved first, so that no peak is lost."""
        if step == last:
            return
        every, evaluation = self.config.checkpoints.every_steps, self.config.evaluation
        evaluated = self.evaluator and evaluation.every_steps and step % evaluation.every_steps == 0
        checkpoint = self._save(stage) if evaluated or (every and step % every == 0) else None
        if evaluated:
            self._evaluate(f"step {step}", stage, checkpoint)

    def _sft_step(self, step: int) -> dict[str, float]:
        """Demonstrations are the learner's own business."""
        return self.gang.wait(self.gang.learn(step)).metrics

    def _grpo_step(self, step: int, clock: Clock) -> dict[str, float]:
        """Sample and grade, credit and learn, sync. Episodes are told of while the learner learns, what it made of them in the next step."""
        batch = self.sampler.batch(step, clock)
        learning = self.gang.learn(step, [outcome.sample for outcome in batch.outcomes])
        self.lineage.learned(outcome.sample.task for outcome in batch.outcomes)
        with clock.measure("report_aside"):
            self._tell_trained()
            self.episodes.all_ended(batch.outcomes)
        report = self.gang.wait(learning)
        if report.skipped and report.skipped != self.skipped:
            self.emitter.log("warning", f"step {step}: the weights did not move: {report.skipped}", component="learner")
        self.skipped = report.skipped
        with clock.measure("sync"):
            synced = self.sync.push(step)
        self.untold = (report.samples, step)
        told = {"episode/refilled": float(batch.replaced), "episode/batches": float(batch.draws)}
        return {**report.metrics, **container_metrics(batch.outcomes), **simulator_metrics(batch.outcomes), **synced, **told}

    def _tell_trained(self) -> None:
        """What the last step made of its episodes. A checkpoint waits for it, since a run resumed from there would not tell it again."""
        samples, step = self.untold
        self.episodes.all_trained(samples, step)
        self.untold = ((), step)

    def _sampler(self, index: int) -> Sampler:
        """The batches of stage `index`, drawn from the training split; the workers are brought up to date."""
        stage, config = self.config.stages[index], self.config
        tasks = [task.key for task in seeded_order(self.bank.train, config.seed, config.environment.train_limit)]
        first = first_step(config, index)
        workflow = GroupWorkflow(tasks, stage.batch_size, stage.group_size, config.seed, first)
        sampling = SamplingParams(config.sampling.temperature, config.sampling.top_p, config.sampling.max_new_tokens)
        self.sync.push(self.step)
        about = (workflow, self.dispatcher, self.episodes, index, config.seed, stage.max_staleness, sampling, first + stage.steps - 1)
        if stage.type == "gigpo" and stage.equal_groups.type == "resample":
            return Resampler(*about, silent=without_signal, max_draws=stage.equal_groups.max_batches)
        return Sampler(*about)

    # ------------------------------------------------------------ around steps
    def _evaluate(self, label: str, stage: int, checkpoint: str | None = None) -> dict[str, float] | None:
        """Score the current version, unless it was scored under another label: equal weights and draws give equal scores."""
        if self.step in self.evaluated or self.stop.asked:
            return None
        self._phase(f"evaluating {label}")
        self.sync.push(self.step)
        values = self.evaluator.evaluate(Occasion(label, stage, self.step, self.step, checkpoint))
        if values is not None:
            self.evaluated.add(self.step)
            self.checkpointer.scored(checkpoint, values)
        return values

    def _restore(self) -> int:
        """Put learner and driver back to the checkpoint; returns the stage to go on with."""
        self._phase("restoring")
        path = self.assignment.resume.path
        extra = self.gang.wait(self.gang.ask_learner("restore", path, self.bank.demonstrations))
        self.step, self.stage_entered = extra["step"], extra["stage"]
        self.evaluated = set(extra["evaluated"])
        self.lineage.resumed(extra.get("trained_on", ()))
        self.around.vitals.step = self.step
        self.checkpointer.resumed(self.assignment.resume.checkpoint, self.step)
        stage = self.config.stages[self.stage_entered]
        self._after_resume(self.stage_entered, first_step(self.config, self.stage_entered) + stage.steps - 1)
        return self.stage_entered

    def _after_resume(self, stage: int, last: int) -> None:
        """An evaluation that was due after the checkpoint and may not have happened."""
        evaluation = self.config.evaluation
        if self.step != last and self.evaluator and evaluation.every_steps and self.step % evaluation.every_steps == 0:
            self._evaluate(f"step {self.step}", stage, self.assignment.resume.checkpoint)

    def _save(self, stage: int) -> str | None:
        """The checkpoint's id."""
        self._tell_trained()
        return self.checkpointer.save(stage, self.step, self._extra())

    def _save_before_leaving(self) -> None:
        if self.step in (0, self.checkpointer.saved_step):
            return
        if self.checkpointer.fits(self.stop.seconds_left):
            self._phase("saving before the stop")
            self._save(self.stage_entered)
        else:
            lost = f"steps after {self.checkpointer.saved_step or 0} will be run again"
            self.emitter.log("warning", f"no time to save step {self.step} in {self.stop.seconds_left:.0f} s; {lost}")

    def _extra(self) -> dict[str, Any]:
        return {"step": self.step, "stage": self.stage_entered, "evaluated": sorted(self.evaluated), "trained_on": self.lineage.tasks}

    def _phase(self, phase: str) -> None:
        self.around.vitals.phase = phase
