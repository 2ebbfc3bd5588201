"""Writes over checkpoints: what the runner reports, what is believed of it, what is kept, what is removed."""

import json
import math
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from celery import current_app
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from controlplane.accounts.roles import require
from controlplane.accounts.services import record
from controlplane.checkpoints import selectors, verify
from controlplane.checkpoints.models import Checkpoint
from controlplane.runs.changes import announce, append_event, lock_run
from controlplane.runs.models import Attempt, Run
from controlplane.runs.paths import run_folder
from controlplane.telemetry.text import clean_text
from controlplane.transitions import transition
from runner.contract.states import CheckpointState

STATES = ("writing", "complete", "broken")


class ForeignCheckpoint(Exception):
    """The identifier or the step belongs to something else."""


@dataclass(frozen=True)
class Report:
    """What a runner says of a checkpoint; its manifest is not yet believed."""

    state: str
    stage: int
    step: int
    path: str
    policy_version: int | None = None
    manifest: dict = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    parent: uuid.UUID | None = None
    reason: str = ""
    trained_on: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, body: dict) -> "Report":
        """From a JSON body. Raises ValueError naming the field."""
        if body.get("state") not in STATES:
            raise ValueError(f"state: must be one of {', '.join(STATES)}, got {body.get('state')!r}")
        for name in ("stage", "step"):
            if not isinstance(body.get(name), int) or body[name] < 0:
                raise ValueError(f"{name}: must be a whole number from 0, got {body.get(name)!r}")
        metrics = body.get("metrics") or {}
        if not isinstance(metrics, dict):
            raise ValueError("metrics: must map names to numbers")
        return cls(
            state=body["state"],
            stage=body["stage"],
            step=body["step"],
            path=str(body.get("path") or ""),
            policy_version=body.get("policy_version"),
            manifest=body.get("manifest") or {},
            metrics={str(name): float(value) for name, value in metrics.items() if _is_finite(value)},
            parent=uuid.UUID(body["parent"]) if body.get("parent") else None,
            reason=str(body.get("reason") or "")[:2000],
            trained_on=_task_names(body.get("trained_on") or []),
        )


def _task_names(value) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) and len(name) <= 300 for name in value):
        raise ValueError("trained_on: must be a list of task names")
    return [clean_text(name) for name in value]


def _is_finite(value) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


# ---------------------------------------------------------------- what the runner reports
def record_report(attempt: Attempt, key: uuid.UUID, report: Report) -> Checkpoint:
    """Take in one report; each may be repeated. Complete is believed only after the folder was read."""
    row = record_writing(attempt, key, report)
    if report.state == "complete":
        return record_complete(row, report.manifest, report.metrics, report.trained_on)
    if report.state == "broken":
        return _settle(row, CheckpointState.BROKEN, report.reason or "the runner could not write it")
    return row


@transaction.atomic
def record_writing(attempt: Attempt, key: uuid.UUID, report: Report) -> Checkpoint:
    """The row of a checkpoint, made on its first report. Raises ForeignCheckpoint."""
    run = lock_run(attempt.run_id)
    place = {"run": run, "attempt": attempt.number, "stage": report.stage, "step": report.step}
    row = Checkpoint.objects.filter(pk=key).first() or Checkpoint.objects.filter(**place).first()
    if row is None:
        parent = Checkpoint.objects.filter(pk=report.parent).first() if report.parent else None
        row = Checkpoint.objects.create(pk=key, parent=parent, path=report.path, policy_version=report.policy_version, **place)
        append_event(run, "checkpoint", attempt=attempt.number, step=report.step, checkpoint=str(key), state=row.state)
    if row.pk != key or row.run_id != run.pk or row.attempt != attempt.number:
        raise ForeignCheckpoint(f"checkpoint {key} at step {report.step} is not this attempt's; take a fresh identifier for each checkpoint")
    return row


def record_complete(row: Checkpoint, manifest, metrics: dict[str, float], trained_on: Sequence[str] = ()) -> Checkpoint:
    """Believe a checkpoint whose folder is what its manifest says, or call it broken with the reason.

    Reads every byte before any transaction begins, so that a large one blocks nobody. Repeated, it adds metrics that are known only
    later, such as held-out scores.
    """
    if row.state != CheckpointState.WRITING:
        return add_metrics(row, metrics)
    home = run_folder(row.run_id)
    try:
        folder = verify.check_path(row.path, home)
        manifest = verify.check_manifest(manifest)
        if home.exists():
            verify.check_folder(folder, manifest)
    except (verify.Broken, OSError) as error:
        return _settle(row, CheckpointState.BROKEN, str(error))
    reason = "" if home.exists() else "its files were not read again: the run's storage is not visible to the control plane"
    written = {"manifest": manifest, "manifest_hash": verify.manifest_hash(manifest), "size": verify.size_of(manifest)}
    return _settle(row, CheckpointState.COMPLETE, reason, metrics=metrics, trained_on=list(trained_on), completed_at=timezone.now(), **written)


@transaction.atomic
def add_metrics(row: Checkpoint, metrics: dict[str, float]) -> Checkpoint:
    run = lock_run(row.run_id)
    row.refresh_from_db()
    if row.state == CheckpointState.COMPLETE and metrics.items() - row.metrics.items():
        row.metrics |= metrics
        row.save(update_fields=["metrics"])
        announce(run)
        ask_for_retention(run.pk)
    return row


@transaction.atomic
def _settle(row: Checkpoint, state: CheckpointState, reason: str, **changes) -> Checkpoint:
    run = lock_run(row.run_id)
    if not transition(row, CheckpointState.WRITING, state, reason=reason, **changes):
        row.refresh_from_db()
        return row
    append_event(run, "checkpoint", attempt=row.attempt, step=row.step, checkpoint=str(row.pk), state=state, reason=reason)
    if state == CheckpointState.COMPLETE:
        _retire_replaced(row)
        ask_for_retention(run.pk)
    return row


def _retire_replaced(row: Checkpoint) -> None:
    """A later attempt that reaches the same step writes over the folder of an earlier one."""
    for older in Checkpoint.objects.filter(run=row.run_id, path=row.path, state=CheckpointState.COMPLETE).exclude(pk=row.pk):
        told = f"replaced by attempt {row.attempt}"
        transition(older, CheckpointState.COMPLETE, CheckpointState.DELETED, reason=told, deleted_at=timezone.now(), kept_because=[])


def settle_writing(attempt: Attempt) -> None:
    """Before an attempt closes: a checkpoint whose last report was lost is complete if its folder is, else broken."""
    for row in Checkpoint.objects.filter(run=attempt.run_id, attempt=attempt.number, state=CheckpointState.WRITING):
        try:
            folder = verify.check_path(row.path, run_folder(row.run_id))
            manifest = verify.read_manifest(folder)
        except (verify.Broken, OSError) as error:
            _settle(row, CheckpointState.BROKEN, f"its writer ended: {error}")
        else:
            record_complete(row, manifest, row.metrics, _trained_on(folder))


def _trained_on(folder: Path) -> list[str]:
    """What the driver wrote beside the weights; nothing where it cannot be read."""
    try:
        return _task_names(json.loads((folder / "driver.json").read_bytes()).get("trained_on") or [])
    except (OSError, ValueError, AttributeError):
        return []


# ---------------------------------------------------------------- retention
def ask_for_retention(run_id) -> None:
    """On commit, let a worker apply the run's retention. A lost message waits for the next checkpoint."""
    transaction.on_commit(lambda: _send(str(run_id)))


def _send(run_id: str) -> None:
    try:
        current_app.send_task("controlplane.checkpoints.tasks.apply_retention", args=[run_id], retry=False)
    except OperationalError:
        pass


def apply_retention(run_id) -> list[Checkpoint]:
    """Delete what no rule keeps; returns the deleted rows.

    1. Under the run's lock, so that no resume can choose one meanwhile: plan, and move the doomed to DELETED.
    2. After the commit, remove the files of every deleted row, also of those a crash left behind.
    """
    with transaction.atomic():
        run = lock_run(run_id)
        doomed = []
        for row, reasons in selectors.retention_plan(run):
            if not reasons and transition(row, CheckpointState.COMPLETE, CheckpointState.DELETED, deleted_at=timezone.now(), kept_because=[]):
                append_event(run, "checkpoint", attempt=row.attempt, step=row.step, checkpoint=str(row.pk), state=CheckpointState.DELETED)
                doomed.append(row)
            elif reasons and row.kept_because != reasons:
                Checkpoint.objects.filter(pk=row.pk).update(kept_because=reasons)
        announce(run)
    remove_deleted_files(run)
    return doomed


def remove_deleted_files(run: Run) -> None:
    rows = Checkpoint.objects.filter(run=run)
    live = set(rows.exclude(state=CheckpointState.DELETED).values_list("path", flat=True))
    for row in rows.filter(state=CheckpointState.DELETED):
        if row.path not in live:
            remove_files(row)


def remove_files(row: Checkpoint) -> None:
    """Rename, then remove: a folder under its own name is whole at every moment."""
    try:
        folder = verify.check_path(row.path, run_folder(row.run_id))
    except verify.Broken:
        return
    aside = folder.with_name(f"{folder.name}.deleted-{row.pk.hex}")
    if folder.exists():
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


# ---------------------------------------------------------------- pins
@transaction.atomic
def set_pinned(user, row: Checkpoint, pinned: bool) -> Checkpoint:
    """Keep a checkpoint whatever the rules say, or leave it to the rules again."""
    run = lock_run(row.run_id)
    require(user, run.project.team, "checkpoint.pin")
    values = {"pinned_by": user, "pinned_at": timezone.now()} if pinned else {"pinned_by": None, "pinned_at": None}
    changed = Checkpoint.objects.filter(pk=row.pk, state=CheckpointState.COMPLETE, pinned_at__isnull=pinned).update(**values)
    if changed:
        record(user, "checkpoint.pin", row, {"pinned": pinned})
        append_event(run, "checkpoint_pinned" if pinned else "checkpoint_unpinned", step=row.step, actor=user, checkpoint=str(row.pk))
        ask_for_retention(run.pk)
    row.refresh_from_db()
    return row
