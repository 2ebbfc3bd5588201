"""What happens to one attempt: it begins, falls silent, is heard again, and ends once."""

import json
import logging
import time
from dataclasses import dataclass

from django.db import transaction
from django.utils import timezone

from controlplane.checkpoints.selectors import resume_point
from controlplane.checkpoints.services import ask_for_retention, settle_writing
from controlplane.cluster import processes
from controlplane.cluster.models import ReconcilerTick
from controlplane.cluster.services import begin_release
from controlplane.episodes.services import abandon_open
from controlplane.runs.changes import announce, append_event, lock_run, move_attempt, move_run
from controlplane.runs.inquiry import CONTACT_S, Facts, Verdict, by_record, judge
from controlplane.runs.models import OPEN_ATTEMPT, Attempt, Run
from controlplane.runs.paths import attempt_folder
from controlplane.runs.ray_jobs import RayJobs, RayUnreachable
from controlplane.runs.services import REQUEUED, nudge, requeue
from runner.contract.states import AttemptState, RunState

logger = logging.getLogger(__name__)

EXIT_GRACE_S = 20.0
# More than the three minutes a driver takes at most (runner.main.DELIVERY_SECONDS).
DELIVERY_S = 210.0
MAX_EXIT_RECORD = 1 << 20


@dataclass(frozen=True)
class Word:
    """Ray's word on a job: a status, "unknown", or None when Ray did not answer."""

    status: str | None
    message: str = ""
    log: str = ""
    killed: bool = False

    @property
    def is_alive(self) -> bool:
        return self.status in ("PENDING", "RUNNING")


def ask(attempt: Attempt, ray: RayJobs) -> Word:
    """Ray's word, kept with the attempt. The driver's last output comes with the failure of one that never claimed."""
    try:
        job = ray.job(attempt.submission_id)
        log = ray.logs(attempt.submission_id) if job and job.is_over and attempt.claimed_at is None else ""
    except RayUnreachable as error:
        return Word(None, str(error))
    status = job.status if job else "unknown"
    if status != attempt.ray_status:
        Attempt.objects.filter(pk=attempt.pk).update(ray_status=status)
    return Word(status, job.message if job else "", log, bool(job and job.was_killed))


# ---------------------------------------------------------------- beginning
@transaction.atomic
def begin(attempt: Attempt) -> None:
    """Its job was seen in Ray, or its driver claimed it."""
    run = lock_run(attempt.run_id)
    attempt = locked(attempt, run)
    if attempt.state == AttemptState.GRANTED:
        move_attempt(attempt, AttemptState.STARTING)
        if run.stop_requested_at:
            move_attempt(attempt, AttemptState.STOPPING, reason="stop requested")
    show_waiting(run, "")


def locked(attempt: Attempt, run: Run) -> Attempt:
    """The attempt as it is now, after the run's row was locked."""
    attempt = Attempt.objects.select_for_update(no_key=True, of=("self",)).get(pk=attempt.pk)
    attempt.run = run
    return attempt


def show_waiting(run: Run, sentence: str) -> None:
    if run.waiting != sentence:
        with transaction.atomic():
            Run.objects.filter(pk=run.pk).update(waiting=sentence)
            announce(run)


def note(attempt: Attempt, kind: str, **data) -> None:
    append_event(attempt.run, kind, attempt=attempt.number, **data)


# ---------------------------------------------------------------- contact
def silence_of(attempt: Attempt) -> float:
    """Seconds without a word from the runner, counted only from when the control plane could have heard one."""
    tick = ReconcilerTick.objects.filter(pk=1).first()
    last = attempt.last_heartbeat_at or attempt.claimed_at
    if last is None or tick is None or tick.answering_since is None:
        return 0.0
    return (timezone.now() - max(last, tick.answering_since)).total_seconds()


def watch(attempt: Attempt, word: Word) -> None:
    """Raise the flag after CONTACT_S of silence; end the attempt only if the inquiry leaves no other reading."""
    silence = silence_of(attempt)
    if silence > CONTACT_S and attempt.contact_lost_at is None:
        lose_contact(attempt, silence)
    verdict = judge(facts_of(attempt, word, silence))
    if verdict is None or end_by_record(attempt):
        return
    reason = f"{verdict.reason}\n{word.log}".strip() if word.log else verdict.reason
    end(attempt, verdict.state, reason)


def facts_of(attempt: Attempt, word: Word, silence: float) -> Facts:
    seen = driver_of(attempt)
    return Facts(
        claimed=attempt.claimed_at is not None,
        stopping=attempt.run.stop_requested_at is not None,
        job=word.status,
        driver=None if seen == processes.Seen() or seen.elsewhere else bool(seen.alive),
        silence=silence,
        message=word.message,
        killed=word.killed,
    )


def driver_of(attempt: Attempt) -> processes.Seen:
    return processes.look([entry for entry in attempt.processes if entry["component"] == "driver"])


@transaction.atomic
def lose_contact(attempt: Attempt, silence: float) -> None:
    lock_run(attempt.run_id)
    if Attempt.objects.filter(pk=attempt.pk, contact_lost_at=None).update(contact_lost_at=timezone.now()):
        note(attempt, "contact_lost", silence_s=round(silence))


def regain_contact(attempt: Attempt) -> None:
    """Called by the heartbeat, in its transaction, with the run locked."""
    if Attempt.objects.filter(pk=attempt.pk, contact_lost_at__isnull=False).update(contact_lost_at=None):
        note(attempt, "contact_regained")


# ---------------------------------------------------------------- ending
def exit_record_on_disk(attempt: Attempt) -> dict | None:
    """The record the driver wrote atomically beside the run's data; None when there is none that can be read."""
    path = attempt_folder(attempt) / "exit.json"
    try:
        with path.open("rb") as file:
            record = json.loads(file.read(MAX_EXIT_RECORD))
        by_record(record)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        logger.warning("exit record %s is not usable: %s", path, error)
        return None
    return record


def is_delivering(attempt: Attempt) -> bool:
    """Whether its driver wrote the record and now hands over what it has reported; it sends the record itself when that is done.

    To end the attempt earlier would call its open episodes lost, and end the driver before the last evaluation arrived.
    """
    record = None if attempt.exit_record else exit_record_on_disk(attempt)
    at = record.get("at") if record else None
    if not isinstance(at, int | float) or time.time() - at > DELIVERY_S:
        return False
    seen = driver_of(attempt)
    return bool(seen.alive or seen.elsewhere)


def end_by_record(attempt: Attempt) -> bool:
    """End the attempt by the exit record it left, if it left one."""
    record = attempt.exit_record or exit_record_on_disk(attempt)
    if record is None:
        return False
    verdict = by_record(record)
    return end(attempt, verdict.state, verdict.reason, record)


def end(attempt: Attempt, state: AttemptState, reason: str, record: dict | None = None) -> bool:
    """Close the attempt once, and with it the run; a lost one goes back to the queue while attempts are left.

    False when it was closed already. The grant is held until its processes are seen gone. Checkpoints that it left half reported are
    settled first, because the next attempt begins from the newest complete one.
    """
    settle_writing(attempt)
    return _close(attempt, state, reason, record)


@transaction.atomic
def _close(attempt: Attempt, state: AttemptState, reason: str, record: dict | None) -> bool:
    run = lock_run(attempt.run_id)
    attempt = locked(attempt, run)
    if attempt.state not in OPEN_ATTEMPT:
        return False
    if state == AttemptState.LOST and run.stop_requested_at:
        state = AttemptState.STOPPED  # it ended as was asked, only not in order
    now = timezone.now()
    if record and attempt.state == AttemptState.GRANTED:
        move_attempt(attempt, AttemptState.STARTING)
    move_attempt(attempt, state, reason=reason, ended_at=now, exit_record=record, contact_lost_at=None)
    begin_release(attempt.grant)
    abandon_open(run.pk, attempt.number)
    move_run(run, RunState(state.value), reason=reason, ended_at=now, waiting="", next_check_at=now, check_failures=0)
    ask_for_retention(run.pk)
    if state == AttemptState.LOST:
        try_again(run, attempt)
    nudge()
    return True


def try_again(run: Run, lost: Attempt) -> None:
    """Requeue a lost run from its newest complete checkpoint, unless a stop was asked for or its attempts are used up."""
    allowed = json.loads(bytes(run.config))["max_attempts"]
    asked = run.events.filter(kind=REQUEUED, data__by="person").last()
    used = lost.number - (asked.data["attempts"] if asked else 0)
    if run.stop_requested_at is None and used < allowed:
        checkpoint = resume_point(run)
        origin = f"from step {checkpoint.step}" if checkpoint else "from the start"
        requeue(run, checkpoint, reason=f"attempt {lost.number} was lost; trying again {origin} ({used} of {allowed} used)")
