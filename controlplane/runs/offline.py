"""A run that was driven without a control plane, on a machine that reached none: it is taken over when it has ended, and its spool is replayed.

The run and its one attempt are written in their last states at once, so that nobody schedules or judges them. Late data is welcome for a
day: under the attempt's token the emitters' spools are then delivered like those of any attempt whose driver died.
"""

from datetime import UTC, datetime

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from controlplane.accounts.roles import require
from controlplane.accounts.services import record as audit
from controlplane.accounts.tokens import new_token
from controlplane.runs import preflight
from controlplane.runs.attempt_auth import LATE_DATA
from controlplane.runs.changes import move_attempt, move_run
from controlplane.runs.exceptions import Conflict
from controlplane.runs.inquiry import by_record
from controlplane.runs.launch import Checked, resolve
from controlplane.runs.models import Attempt, Run
from controlplane.runs.services import create_run, project_for
from runner.contract.parse import FieldError, InvalidDocument, parse
from runner.contract.states import AttemptState, RunState

# What this house could run says nothing of a run that is over.
ABOUT_MACHINES = ("/resources", "/engine", "/checkpoints")
# Submission ids of other attempts are Ray's.
ADOPTED = "adopted-"


def adopt(user, team, document: dict, record: dict) -> Run:
    """The run, in its last state. `record` is the driver's exit record.

    Raises InvalidDocument naming each field, also where the team lacks the bank; PermissionDenied for viewers.
    """
    require(user, team, "run.launch")
    checked = _checked(team, document)
    try:
        verdict = by_record(record)
        ended = _moment(record.get("at")) or timezone.now()
        begun = _moment(record.get("begun")) or ended
    except (ValueError, AttributeError, TypeError, OverflowError) as error:
        raise InvalidDocument([FieldError("/exit", str(error))]) from None
    with transaction.atomic():
        run = create_run(user, project_for(user, team, checked.config.project), checked, None)
        move_run(run, RunState.ACTIVE, actor=user, started_at=begun, next_check_at=None)
        attempt = Attempt.objects.create(run=run, number=1, token_hash=new_token()[1], submission_id=f"{ADOPTED}{run.pk}", first_step=1)
        for state in (AttemptState.STARTING, AttemptState.RUNNING):
            move_attempt(attempt, state)
        # The day that late data is welcome begins now, whenever the driver ended.
        move_attempt(attempt, verdict.state, reason=verdict.reason, exit_record=record, running_at=begun, ended_at=timezone.now())
        move_run(run, RunState(verdict.state.value), reason=verdict.reason, ended_at=ended)
        audit(user, "run.adopt", run, {"config_hash": run.config_hash})
    return run


def open_delivery(user, run: Run) -> tuple[Attempt, str]:
    """The attempt of an adopted run and a fresh token that takes its batches; an earlier one ends. Raises Conflict for another run, or too late."""
    require(user, run.project.team, "run.launch")
    attempt = run.attempts.filter(submission_id=f"{ADOPTED}{run.pk}").first()
    if attempt is None:
        raise Conflict("the run was driven by this control plane, which took its data then; only an adopted run's is sent afterwards")
    if attempt.ended_at < timezone.now() - LATE_DATA:
        raise Conflict("the run was adopted more than a day ago; adopt it again")
    token, attempt.token_hash = new_token()
    attempt.save(update_fields=["token_hash"])
    return attempt, token


def batches_url(attempt: Attempt) -> str:
    """Where the attempt's batches go."""
    return f"{settings.ASSAY_CALLBACK_URL}/api/ingest/{attempt.pk}/batches"


def _checked(team, document: dict) -> Checked:
    config = parse(document)
    found = preflight.instant(config, team)
    if errors := [error for error in found.errors if not error.pointer.startswith(ABOUT_MACHINES)]:
        raise InvalidDocument(errors)
    return Checked(document, resolve(config, found), bank_version=found.bank_version)


def _moment(seconds) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(float(seconds), UTC)
