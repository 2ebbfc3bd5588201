"""The reconciler: compares what the rows intend with what Ray and the runner say, and acts.

A tick, every two seconds and on each nudge, under an advisory lock: note that we answer, read the nodes, stop jobs of closed
attempts, grant what fits, and hand every due run to a task of its own. That task takes one attempt one step further:
intent (a row) → act (Ray) → observe (a row). No network call happens inside a transaction, and each step may be
repeated after a crash at any point.
"""

import logging
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from datetime import datetime, timedelta

import httpx
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from controlplane.cluster import services as cluster
from controlplane.cluster.models import GrantState, ReconcilerTick
from controlplane.runs import attempts, scheduling
from controlplane.runs.models import OPEN_ATTEMPT, Attempt, Run
from controlplane.runs.ray_jobs import JobExists, RayError, RayJobs, RayRefused, house_client
from controlplane.runs.releasing import release_grants
from runner.contract.states import AttemptState, RunState

logger = logging.getLogger(__name__)

TICK_LOCK = 0x617373617901
GAP_S = 10.0
WEB_TIMEOUT_S = 2.0
# Shorter than the half minute in which a run must go on after the worker that held it was killed.
LEASE = timedelta(seconds=20)
SOON = timedelta(seconds=2)
WATCH = timedelta(seconds=5)
QUARANTINE_LOOK = timedelta(seconds=30)
LONGEST_BACKOFF_S = 60
CLAIM_TIMEOUT_S = 180.0
STOP_GRACE_S = 120.0
RELEASING = [GrantState.RELEASING, GrantState.QUARANTINED]


# ---------------------------------------------------------------- the tick
def tick(dispatch: Callable[[str], None]) -> bool:
    """One round; `dispatch` is called with the id of each due run. False when another process is in its round."""
    with only_one() as alone:
        if not alone:
            return False
        began = time.monotonic()
        note_answering()
        error = look_at_ray()
        scheduling.place_waiting()
        for run_id in take_due():
            dispatch(run_id)
        ReconcilerTick.objects.filter(pk=1).update(at=timezone.now(), seconds=time.monotonic() - began, error=error)
    return True


@contextmanager
def only_one():
    """A session's advisory lock: it ends with the connection, so a killed leader never blocks the next."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [TICK_LOCK])
        alone = cursor.fetchone()[0]
    try:
        yield alone
    finally:
        if alone:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [TICK_LOCK])


def note_answering() -> None:
    """Keep `answering_since`: a gap between ticks, or a web process that does not answer, starts it anew."""
    now, answers = timezone.now(), web_answers()
    last = ReconcilerTick.objects.filter(pk=1).first()
    unbroken = last and last.answering_since and (now - last.at).total_seconds() < GAP_S
    since = (last.answering_since if unbroken else now) if answers else None
    ReconcilerTick.objects.update_or_create(pk=1, defaults={"at": now, "answering_since": since})


def web_answers() -> bool:
    try:
        return house_client(settings.ASSAY_CALLBACK_URL, WEB_TIMEOUT_S).get("/healthz").is_success
    except httpx.HTTPError:
        return False


def look_at_ray() -> str:
    """Take over node capacities and stop jobs whose attempt is closed. Returns what went wrong, in words."""
    try:
        ray = RayJobs()
        cluster.sync_nodes(ray.nodes())
        stop_orphans(ray)
    except RayError as error:
        return str(error)
    return ""


def stop_orphans(ray: RayJobs) -> None:
    """End every job of ours that runs although its attempt is closed; jobs of other houses on the same Ray are left alone."""
    running = {job.submission_id: job for job in ray.jobs() if not job.is_over and job.submission_id.startswith("assay-")}
    closed = Attempt.objects.filter(submission_id__in=running, ended_at__lt=timezone.now() - timedelta(seconds=attempts.EXIT_GRACE_S))
    for attempt in closed.exclude(state__in=OPEN_ATTEMPT):
        if running[attempt.submission_id].metadata.get("run") == str(attempt.run_id):
            logger.warning("stopping job %s: attempt %s is %s", attempt.submission_id, attempt.number, attempt.state)
            ray.stop(attempt.submission_id)


def take_due() -> list[str]:
    """Runs whose time has come, each leased for LEASE by compare-and-set, so that a second tick does not hand it out again."""
    now = timezone.now()
    dated, undated = Q(next_check_at__lte=now), Q(next_check_at=None)
    waiting = Q(state=RunState.QUEUED) & dated
    # One without a date is due, too: nobody else would ever look at it again.
    busy = (Q(state=RunState.ACTIVE) | Q(attempts__grant__state__in=RELEASING)) & (dated | undated)
    due = Run.objects.filter(waiting | busy).values_list("pk", "next_check_at").distinct()
    return [str(pk) for pk, at in due if Run.objects.filter(pk=pk, next_check_at=at).update(next_check_at=now + LEASE)]


# ---------------------------------------------------------------- one run
def reconcile_run(run_id) -> None:
    """Take the run's open attempt one step further and give back the grants of closed ones.

    A failure pushes the next check further away instead of looping, is written where the run's page shows it, and is raised again
    unless it is Ray's. Whoever asked for an earlier look meanwhile (a grant, a stop, an end) gets it.
    """
    leased = Run.objects.filter(pk=run_id).values_list("next_check_at", flat=True).first()
    try:
        ray = RayJobs()
        attempt = Attempt.objects.filter(run=run_id, state__in=OPEN_ATTEMPT).select_related("run__project").first()
        if attempt:
            advance(attempt, ray)
        release_grants(run_id, ray)
    except Exception as error:
        back_off(run_id, leased, error)
        if not isinstance(error, RayError):
            raise
    else:
        check_again(run_id, leased, next_check(run_id), failures=0)


def check_again(run_id, leased: datetime | None, at: datetime | None, failures: int) -> None:
    """Set the next look, unless another writer set one since this look's lease: theirs knows of something that this look has not seen."""
    Run.objects.filter(pk=run_id).update(check_failures=failures)
    Run.objects.filter(pk=run_id, next_check_at=leased).update(next_check_at=at)


def back_off(run_id, leased: datetime | None, error: Exception) -> None:
    run = Run.objects.get(pk=run_id)
    wait = min(2 ** min(run.check_failures + 1, 6), LONGEST_BACKOFF_S)
    check_again(run_id, leased, timezone.now() + timedelta(seconds=wait), failures=run.check_failures + 1)
    if run.state == RunState.ACTIVE:
        attempts.show_waiting(run, f"checked again in {wait} s: {error}")


def next_check(run_id) -> datetime | None:
    """Soon while something is expected to change, now and then while it only may, never once all is given back."""
    found = Attempt.objects.filter(run=run_id)
    state = found.filter(state__in=OPEN_ATTEMPT).values_list("state", flat=True).first()
    grants = set(found.filter(grant__state__in=RELEASING).values_list("grant__state", flat=True))
    if GrantState.RELEASING in grants or state not in (AttemptState.RUNNING, None):
        return timezone.now() + SOON
    if state:
        return timezone.now() + WATCH
    return timezone.now() + QUARANTINE_LOOK if grants else None


def advance(attempt: Attempt, ray: RayJobs) -> None:
    """One step of an open attempt. The exit record, sent or found on disk, comes before anything Ray says."""
    if attempts.is_delivering(attempt) or attempts.end_by_record(attempt):
        return
    if attempt.state == AttemptState.GRANTED:
        return submit(attempt, ray)
    word = attempts.ask(attempt, ray)
    if attempt.state == AttemptState.STOPPING:
        press_stop(attempt, ray)
    if attempt.claimed_at is None and word.is_alive and since(attempt.submitted_at) > CLAIM_TIMEOUT_S:
        ray.stop(attempt.submission_id)
        return attempts.end(attempt, AttemptState.FAILED, f"the driver did not claim its attempt within {CLAIM_TIMEOUT_S:.0f} s of its submission")
    attempts.watch(attempt, word)


def submit(attempt: Attempt, ray: RayJobs) -> None:
    """Hand the attempt to Ray exactly once.

    1. Intent: write `submitted_at` before the first call.
    2. Act: submit under the attempt's own id, unless Ray has that job already or a driver claimed the attempt.
    3. Observe: only a job seen in Ray, carrying our metadata, makes the attempt STARTING.
    """
    if attempt.submitted_at is None:
        if attempt.run.stop_requested_at:
            return attempts.end(attempt, AttemptState.STOPPED, "stopped before it was submitted")
        Attempt.objects.filter(pk=attempt.pk, submitted_at=None).update(submitted_at=timezone.now())
    job = ray.job(attempt.submission_id)
    if job is None and not Attempt.objects.filter(pk=attempt.pk, claimed_at__isnull=False).exists():
        try:
            ray.submit(**job_request(attempt))
        except JobExists:
            logger.info("job %s was submitted before; adopting it", attempt.submission_id)
        except RayRefused as error:
            return attempts.end(attempt, AttemptState.FAILED, f"Ray refused the job: {error}")
        job = ray.job(attempt.submission_id)
    if job and job.metadata.get("run") != str(attempt.run_id):
        told = f"Ray already has a job {job.submission_id} that is not this run's; use a Ray of its own, or remove that job"
        return attempts.end(attempt, AttemptState.FAILED, told)
    if job:
        attempts.begin(attempt)


def job_request(attempt: Attempt) -> dict:
    """What Ray is asked to run. The claim code is worthless once used, so Ray's own job listing may show it."""
    driver = attempt.grant.shares.select_related("node").get(bundle="driver")
    return {
        "submission_id": attempt.submission_id,
        "entrypoint": f"{shlex.quote(sys.executable)} -m runner.main",
        "env": {"ASSAY_URL": settings.ASSAY_CALLBACK_URL, "ASSAY_ATTEMPT": str(attempt.pk), "ASSAY_CLAIM_CODE": scheduling.claim_code(attempt)},
        "metadata": {"run": str(attempt.run_id), "attempt": str(attempt.number), "name": attempt.run.name},
        "resources": {driver.node.resource: 0.001} if driver.node.resource else {},
    }


def press_stop(attempt: Attempt, ray: RayJobs) -> None:
    """The runner gets the command with its next heartbeat; after the grace Ray ends the job."""
    asked = attempt.run.stop_requested_at
    if asked and since(asked) > (STOP_GRACE_S if attempt.claimed_at else 0) and ray.stop(attempt.submission_id):
        with transaction.atomic():
            attempts.note(attempt, "stop_forced", after_s=round(since(asked)))


def since(at: datetime | None) -> float:
    return (timezone.now() - at).total_seconds() if at else 0.0
