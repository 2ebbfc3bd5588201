"""Reads over checkpoints."""

import json
from uuid import UUID

from controlplane.checkpoints import peaks
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.retention import Rules, plan
from controlplane.runs.models import OPEN_ATTEMPT, Attempt, Run
from runner.contract.states import RUN_ENDS, CheckpointState, RunState


def for_run(run: Run):
    """Every checkpoint of the run, newest first, deleted ones included: lineage outlives files."""
    return Checkpoint.objects.filter(run=run).select_related("parent", "pinned_by").order_by("-created_at")


def resume_point(run: Run) -> Checkpoint | None:
    """Where the next attempt should begin: the newest complete checkpoint in the line of the last attempt.

    An attempt that was begun from an older checkpoint on purpose leaves the line of those written later; its own come
    first, then where it began.
    """
    last = run.attempts.last()
    complete = Checkpoint.objects.filter(run=run, state=CheckpointState.COMPLETE)
    if last is None:
        return None
    own = complete.filter(attempt=last.number).order_by("-step", "-stage").first()
    if own:
        return own
    begun = last.resumed_from
    if begun is None:
        return None
    if begun.state == CheckpointState.COMPLETE:
        return begun
    return complete.filter(step__lte=begun.step).order_by("-step", "-stage").first()


def retention_plan(run: Run) -> list[tuple[Checkpoint, list[str]]]:
    """Each complete checkpoint with the reasons that keep it, newest first; no reason means the next pass deletes it."""
    rows = {row.pk: row for row in Checkpoint.objects.filter(run=run, state=CheckpointState.COMPLETE)}
    if not rows:
        return []
    scores = peaks.stored_scores(run)
    reasons = plan([peaks.item_of(row, scores) for row in rows.values()], rules_of(run), in_use(run, rows))
    return [(rows[key], because) for key, because in reasons.items()]


def rules_of(run: Run) -> Rules:
    """What the run's document asks to keep; documents from before there was a choice prune what no rule pins."""
    asked = json.loads(bytes(run.config))["checkpoints"]
    prune = asked.get("prune", {"type": "pinned"})
    return Rules(asked["keep_last"], asked["keep_best"], prune, over=run.state in RUN_ENDS, succeeded=run.state == RunState.SUCCEEDED)


def in_use(run: Run, candidates) -> set:
    """Checkpoints that something still begins from: an open, a fixed or the next possible attempt of the run, or another run's model."""
    # Of a run that succeeded nothing goes on by itself; its last one is kept by rule.
    point = resume_point(run) if run.state != RunState.SUCCEEDED else None
    begun = {point.pk} if point else set()
    begun |= set(Attempt.objects.filter(run=run, state__in=OPEN_ATTEMPT, resumed_from__isnull=False).values_list("resumed_from", flat=True))
    fixed = run.events.filter(kind="requeued").last() if run.state == RunState.QUEUED else None
    if fixed and fixed.data["checkpoint"]:
        begun.add(UUID(fixed.data["checkpoint"]))
    sources = Run.objects.filter(archived_at=None, document__model__source__checkpoint__in=[str(key) for key in candidates])
    return begun | {UUID(key) for key in sources.values_list("document__model__source__checkpoint", flat=True)}
