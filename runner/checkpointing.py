"""When the learner saves, and what the control plane hears of it."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.assignment import Assignment
from runner.gang import Gang
from runner.reporting.control import Control, NoControl
from runner.reporting.emitter import Emitter
from runner.reporting.metrics import Metrics, tracked

# A save is begun before a stop only when this many times the last save's seconds are left.
SAFETY = 1.5
FIRST_GUESS_SECONDS = 5.0
# How often a checkpoint is asked after that nothing else waits for.
LOOK_SECONDS = 0.1


@dataclass
class _Writing:
    """A checkpoint under way: its row so far, what it will be known by, and when it began."""

    row: dict[str, Any]
    metrics: Metrics
    trained_on: list[str]
    began: float


class Checkpointer:
    """Saves through the learner and registers each checkpoint as writing, then complete or broken."""

    def __init__(self, assignment: Assignment, gang: Gang, control: Control | NoControl, emitter: Emitter):
        self.assignment, self.gang, self.control, self.emitter = assignment, gang, control, emitter
        self.saved_step: int | None = None
        self.last_seconds = FIRST_GUESS_SECONDS
        self._parent: str | None = None
        self._metrics: Metrics = {}
        self._rows: dict[str, dict[str, Any]] = {}
        self._writing: _Writing | None = None
        self.in_background = assignment.config.checkpoints.in_background

    def remember(self, metrics: Metrics) -> None:
        """The metrics the next checkpoint is known by."""
        self._metrics = tracked(metrics)

    def resumed(self, checkpoint: str, step: int) -> None:
        """The run goes on from `checkpoint`, which need not be written again."""
        self._parent, self.saved_step = checkpoint, step

    def fits(self, seconds: float) -> bool:
        """Whether a save is likely to be over in `seconds`."""
        return seconds > SAFETY * self.last_seconds

    def save(self, stage: int, step: int, extra: dict[str, Any]) -> str | None:
        """Write step `step`, or begin to; returns the checkpoint's identifier. A save of the step that is on disk already does nothing."""
        if step == self.saved_step:
            return self._parent
        self.finish()
        # Derived from attempt and step, so that a repeated report meets the same row.
        identifier = str(uuid.uuid5(uuid.NAMESPACE_URL, f"assay:{self.assignment.attempt}/checkpoint/{step}"))
        path = self.assignment.checkpoints / f"step_{step}"
        row = {"checkpoint": identifier, "stage": stage, "step": step, "policy_version": step, "path": str(path), "parent": self._parent}
        self.control.checkpoint(**row, state="writing", manifest={}, metrics={}, reason="")
        self._writing = _Writing(row, self._metrics, extra.get("trained_on", []), time.perf_counter())
        write = self.gang.begin_save if self.in_background else self.gang.save
        self._ask(write, self.assignment.checkpoints, extra)
        self._parent, self.saved_step = identifier, step
        return identifier

    def look(self) -> None:
        """Tell of a checkpoint that was written meanwhile. Raises what kept it from being written."""
        if self._writing:
            self._ask(self.gang.saved)

    def finish(self) -> None:
        """Wait for the checkpoint that is being written."""
        self.look()
        while self._writing:
            time.sleep(LOOK_SECONDS)
            self.look()

    def scored(self, checkpoint: str | None, values: Metrics) -> None:
        """Add held-out scores to what the newest checkpoint is known by."""
        if self._writing and self._writing.row["checkpoint"] == checkpoint:
            self._writing.metrics = {**self._writing.metrics, **tracked(values)}
        elif row := self._rows.get(checkpoint or ""):
            row["metrics"] = {**row["metrics"], **tracked(values)}
            self.control.checkpoint(**row)

    def _ask(self, write: Callable, *arguments) -> None:
        """Ask the learner; what it answers with, if with anything, is complete."""
        try:
            found = write(*arguments)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self.control.checkpoint(**self._writing.row, state="broken", manifest={}, metrics={}, reason=reason)
            self._writing = None
            raise
        if found:
            self._complete(*found)

    def _complete(self, path: Path, manifest: dict[str, Any]) -> None:
        writing, self._writing = self._writing, None
        self.last_seconds = time.perf_counter() - writing.began
        row = {**writing.row, "path": str(path), "manifest": manifest, "metrics": writing.metrics, "state": "complete", "reason": ""}
        self.control.checkpoint(**row, trained_on=writing.trained_on)
        self.emitter.emit_points(row["step"], {"timing_s/checkpoint": self.last_seconds})
        self._rows = {row["checkpoint"]: row}
