"""When the learner saves, and what the control plane hears of it."""

import time
import uuid
from typing import Any

from runner.assignment import Assignment
from runner.gang import Gang
from runner.reporting.control import Control, NoControl
from runner.reporting.emitter import Emitter
from runner.reporting.metrics import Metrics, tracked

# A save is begun before a stop only when this many times the last save's seconds are left.
SAFETY = 1.5
FIRST_GUESS_SECONDS = 5.0


class Checkpointer:
    """Saves through the learner and registers each checkpoint as writing, then complete or broken."""

    def __init__(self, assignment: Assignment, gang: Gang, control: Control | NoControl, emitter: Emitter):
        self.assignment, self.gang, self.control, self.emitter = assignment, gang, control, emitter
        self.saved_step: int | None = None
        self.last_seconds = FIRST_GUESS_SECONDS
        self._parent: str | None = None
        self._metrics: Metrics = {}
        self._rows: dict[str, dict[str, Any]] = {}

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
        """Write step `step`; returns the checkpoint's identifier. A save of the step that is on disk already does nothing."""
        if step == self.saved_step:
            return self._parent
        # Derived from attempt and step, so that a repeated report meets the same row.
        identifier = str(uuid.uuid5(uuid.NAMESPACE_URL, f"assay:{self.assignment.attempt}/checkpoint/{step}"))
        path = self.assignment.checkpoints / f"step_{step}"
        row = {"checkpoint": identifier, "stage": stage, "step": step, "policy_version": step, "path": str(path), "parent": self._parent}
        self.control.checkpoint(**row, state="writing", manifest={}, metrics={}, reason="")
        begin = time.perf_counter()
        try:
            path, manifest = self.gang.save(self.assignment.checkpoints, extra)
        except Exception as error:
            self.control.checkpoint(**row, state="broken", manifest={}, metrics={}, reason=f"{type(error).__name__}: {error}")
            raise
        self.last_seconds = time.perf_counter() - begin
        row |= {"path": str(path), "manifest": manifest, "metrics": self._metrics, "state": "complete", "reason": ""}
        self.control.checkpoint(**row, trained_on=extra.get("trained_on", []))
        self.emitter.emit_points(step, {"timing_s/checkpoint": self.last_seconds})
        self._rows = {identifier: row}
        self._parent, self.saved_step = identifier, step
        return identifier

    def scored(self, checkpoint: str | None, values: Metrics) -> None:
        """Add held-out scores to what the newest checkpoint is known by."""
        if row := self._rows.get(checkpoint or ""):
            row["metrics"] = {**row["metrics"], **tracked(values)}
            self.control.checkpoint(**row)
