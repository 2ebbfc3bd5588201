"""Business verbs over runs: each checks, writes in one transaction, and is told of on commit."""

from collections.abc import Iterable

from celery import current_app
from django.core.exceptions import ValidationError
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError

from controlplane.accounts.models import Project
from controlplane.accounts.roles import require
from controlplane.accounts.services import create_project, record
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.selectors import resume_point
from controlplane.cluster.models import Reservation
from controlplane.runs.changes import announce, append_event, lock_run, move_attempt, move_run
from controlplane.runs.documents import with_changes
from controlplane.runs.exceptions import Conflict
from controlplane.runs.forecast import method_of, model_of
from controlplane.runs.launch import Checked, check_launch
from controlplane.runs.models import Run
from controlplane.runs.recipes import recipe_of_bytes
from controlplane.runs.selectors import resolved_document
from runner.contract.parse import FieldError, InvalidDocument
from runner.contract.states import AttemptState, CheckpointState, RunState

REQUEUED = "requeued"
NUDGE_EXPIRES_S = 10.0
MOST_TAGS = 20


def nudge() -> None:
    """On commit, wake the reconciler. A lost nudge costs one tick."""
    transaction.on_commit(_send_nudge)


def _send_nudge() -> None:
    try:
        current_app.send_task("controlplane.runs.tasks.reconcile", expires=NUDGE_EXPIRES_S, retry=False)
    except OperationalError:
        pass


def send_bulk(task: str, *arguments) -> None:
    """Hand a long task to the bulk worker; without a broker it is left undone, as its caller must allow."""
    try:
        current_app.send_task(task, arguments, retry=False)
    except OperationalError:
        pass


# ---------------------------------------------------------------- launch
def do_launch(user, team, document: dict, parent: Run | None = None) -> Run:
    """Queue the run that `document` describes. Raises InvalidDocument naming each field, PermissionDenied for viewers.

    1. Check and resolve outside of any transaction: it reads files and may ask the hub.
    2. Write the run, its first event and the audit entry together.
    3. On commit, tell the lists and wake the reconciler.
    """
    require(user, team, "run.launch")
    checked = check_launch(user, team, document)
    if checked.errors:
        raise InvalidDocument(checked.errors)
    with transaction.atomic():
        run = create_run(user, project_for(user, team, checked.config.project), checked, parent)
        record(user, "run.launch", run, {"config_hash": run.config_hash, "parent": parent and str(parent.pk)})
        nudge()
    return run


def project_for(user, team, slug: str) -> Project:
    """The team's project of that slug, made on demand by those who may."""
    project = Project.objects.filter(team=team, slug=slug).first()
    return project or create_project(user, team, slug, slug)


def create_run(user, project: Project, checked: Checked, parent: Run | None) -> Run:
    config = checked.config
    run = Run.objects.create(
        project=project,
        owner=user,
        parent=parent,
        document=checked.document,
        config=checked.canonical,
        config_hash=checked.hash,
        bank_version=checked.bank_version,
        name=config.name,
        experiment=config.experiment or "",
        tags=config.tags,
        method=method_of(config)[:80],
        model=model_of(config)[:200],
        environment=config.environment.type,
        seed=config.seed,
        recipe=recipe_of_bytes(checked.canonical),
        priority=config.priority,
        total_steps=config.total_steps,
    )
    move_run(run, RunState.QUEUED, actor=user, queued_at=timezone.now(), next_check_at=timezone.now())
    return run


# ---------------------------------------------------------------- stop, resume, retry
@transaction.atomic
def request_stop(user, run: Run) -> Run:
    """Ask a run to end: at once while it waits, else after its present step and a checkpoint. Repeating it changes nothing."""
    run = lock_run(run.pk)
    require(user, run.project.team, "run.stop")
    now = timezone.now()
    if run.state == RunState.QUEUED:
        Reservation.objects.filter(run=run).delete()
        move_run(run, RunState.STOPPED, reason="stopped while waiting", actor=user, stop_requested_at=now, ended_at=now, waiting="")
    elif run.state != RunState.ACTIVE:
        raise Conflict(f"the run is {run.state}; only a waiting or active run can be stopped")
    elif run.stop_requested_at is None:
        Run.objects.filter(pk=run.pk).update(stop_requested_at=now, next_check_at=now)
        append_event(run, "stop_requested", actor=user)
        stop_open_attempt(run, user)
    record(user, "run.stop", run)
    nudge()
    run.refresh_from_db()
    return run


def stop_open_attempt(run: Run, actor=None) -> None:
    attempt = run.attempts.filter(state__in=[AttemptState.STARTING, AttemptState.RUNNING]).first()
    if attempt:
        attempt.run = run
        move_attempt(attempt, AttemptState.STOPPING, reason="stop requested", actor=actor)


@transaction.atomic
def resume(user, run: Run, checkpoint: Checkpoint | None = None) -> Run:
    """Continue an ended run from `checkpoint`, by default from its newest complete one. Raises Conflict with a sentence."""
    run = _lock_ended(user, run)
    if checkpoint is None:
        checkpoint = resume_point(run)
    if checkpoint is None:
        raise Conflict("the run has no complete checkpoint to continue from; retry it from the start")
    if checkpoint.run_id != run.pk:
        raise Conflict("the checkpoint belongs to another run; launch a new run with it as the model's source")
    if checkpoint.state != CheckpointState.COMPLETE:
        raise Conflict(f"the checkpoint is {checkpoint.state}; only a complete one can be continued from")
    requeue(run, checkpoint, actor=user, reason=f"resumed from step {checkpoint.step}")
    record(user, "run.resume", run, {"checkpoint": str(checkpoint.pk)})
    return run


@transaction.atomic
def retry(user, run: Run) -> Run:
    """Try an ended run again: from its newest complete checkpoint if there is one, else from the start."""
    run = _lock_ended(user, run)
    checkpoint = resume_point(run)
    requeue(run, checkpoint, actor=user, reason=f"retried from step {checkpoint.step}" if checkpoint else "retried from the start")
    record(user, "run.resume", run, {"checkpoint": checkpoint and str(checkpoint.pk)})
    return run


def _lock_ended(user, run: Run) -> Run:
    run = lock_run(run.pk)
    require(user, run.project.team, "run.resume")
    if run.state in (RunState.QUEUED, RunState.ACTIVE, RunState.DRAFT):
        raise Conflict(f"the run is {run.state}; only an ended run can be resumed or retried")
    if run.state == RunState.SUCCEEDED:
        raise Conflict(f"the run finished all of its {run.total_steps} steps; clone it with more steps instead")
    if run.archived_at:
        raise Conflict("the run is archived; bring it back first")
    return run


def requeue(run: Run, checkpoint: Checkpoint | None, *, actor=None, reason: str) -> None:
    """Send a locked, ended run back to the queue. The event fixes which checkpoint the next attempt begins with."""
    now = timezone.now()
    move_run(run, RunState.QUEUED, reason=reason, actor=actor, stop_requested_at=None, queued_at=now, ended_at=None, next_check_at=now, check_failures=0)
    attempts = run.attempts.count()
    by = "person" if actor else "reconciler"
    append_event(run, REQUEUED, actor=actor, checkpoint=checkpoint and str(checkpoint.pk), step=checkpoint and checkpoint.step, by=by, attempts=attempts)
    nudge()


# ---------------------------------------------------------------- clone, archive, priority
def clone_document(run: Run, changes: dict | None = None) -> dict:
    """The run's resolved document with `changes` (JSON pointer → value); pins whose subject changed are cleared.

    Raises InvalidDocument for a pointer that leads nowhere, Conflict for an evaluation.
    """
    if run.is_evaluation:
        raise Conflict("the run is an evaluation; make it again on the evaluate page, or send its document to /evaluations")
    resolved = resolved_document(run)
    try:
        document = with_changes(resolved, changes or {})
    except ValueError as error:
        raise InvalidDocument([FieldError(str(error).partition(":")[0], str(error))]) from None
    _clear_if_same(document, resolved, ("environment",), "version")
    _clear_if_same(document, resolved, ("model", "source"), "revision")
    return document


def _clear_if_same(document: dict, resolved: dict, path: tuple[str, ...], pin: str) -> None:
    """Clear a pin that was copied along while what it pins changed."""
    new, old = document, resolved
    for part in path:
        new, old = new.get(part, {}), old.get(part, {})
    subject = [{key: value for key, value in node.items() if key in ("type", "bank", "name", "path", "repo_id", "checkpoint")} for node in (new, old)]
    if subject[0] != subject[1] and new.get(pin) == old.get(pin):
        new[pin] = None


@transaction.atomic
def archive(user, runs: Iterable[Run], archived: bool = True) -> int:
    """Hide ended runs from lists, or bring them back; returns how many changed. Raises Conflict for one that has not ended."""
    changed = 0
    for run in sorted(runs, key=lambda run: run.pk):
        run = lock_run(run.pk)
        require(user, run.project.team, "run.archive")
        if archived and run.state in (RunState.QUEUED, RunState.ACTIVE):
            raise Conflict(f"run {run.name} is {run.state}; stop it before archiving")
        if bool(run.archived_at) != archived:
            Run.objects.filter(pk=run.pk).update(archived_at=timezone.now() if archived else None)
            record(user, "run.archive", run, {"archived": archived})
            announce(run)
            changed += 1
    return changed


@transaction.atomic
def retag(user, run: Run, tags: Iterable[str]) -> Run:
    """Give a run these tags and no others, each once. The configuration keeps those it was launched with. Raises ValidationError."""
    run = lock_run(run.pk)
    require(user, run.project.team, "run.tag")
    before, run.tags = run.tags, list(dict.fromkeys(tag.strip() for tag in tags))
    longest = Run._meta.get_field("tags").base_field.max_length
    if wrong := [tag for tag in run.tags if not 1 <= len(tag) <= longest]:
        raise ValidationError({"tags": f"{wrong[0]!r:.80}: a tag has 1 to {longest} characters"})
    if len(run.tags) > MOST_TAGS:
        raise ValidationError({"tags": f"{len(run.tags)} tags; a run has at most {MOST_TAGS}"})
    if run.tags != before:
        Run.objects.filter(pk=run.pk).update(tags=run.tags)
        record(user, "run.tag", run, {"before": before, "after": run.tags})
        announce(run)
    return run


@transaction.atomic
def set_priority(user, run: Run, priority: int) -> Run:
    """Move a waiting run in the queue. The configuration keeps the priority it was launched with."""
    run = lock_run(run.pk)
    require(user, run.project.team, "run.prioritise")
    if not -1000 <= priority <= 1000:
        raise InvalidDocument([FieldError("/priority", "must lie between -1000 and 1000", priority)])
    if run.state != RunState.QUEUED:
        raise Conflict(f"the run is {run.state}; priority only orders waiting runs")
    before, run.priority = run.priority, priority
    Run.objects.filter(pk=run.pk).update(priority=priority)
    append_event(run, "priority_changed", actor=user, before=before, after=priority)
    record(user, "run.prioritise", run, {"before": before, "after": priority})
    nudge()
    return run
