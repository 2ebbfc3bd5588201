"""Giving capacity back: only after the job is over, its group removed and its processes seen gone; else quarantine."""

from django.db import transaction
from django.utils import timezone

from controlplane.cluster import processes
from controlplane.cluster import services as cluster
from controlplane.cluster.models import Grant, GrantState
from controlplane.runs.attempts import EXIT_GRACE_S, note
from controlplane.runs.models import Attempt
from controlplane.runs.ray_jobs import Job, RayError, RayJobs
from controlplane.runs.paths import attempt_folder
from controlplane.runs.services import nudge, send_bulk
from runner.contract.states import AttemptState

KILL_AFTER_S = 40.0
QUARANTINE_AFTER_S = 60.0
EXIT_CONFLICT = "exit_conflict"
AGREES = {AttemptState.SUCCEEDED: "SUCCEEDED", AttemptState.FAILED: "FAILED"}


def release_grants(run_id, ray: RayJobs) -> None:
    """Look after every grant of the run's closed attempts. Quarantined ones are released once they are seen gone after all."""
    grants = Grant.objects.filter(attempt__run=run_id, state__in=[GrantState.RELEASING, GrantState.QUARANTINED])
    for grant in grants.select_related("attempt__run__project"):
        look_after(grant, ray)


def look_after(grant: Grant, ray: RayJobs) -> None:
    attempt, elapsed = grant.attempt, (timezone.now() - grant.attempt.ended_at).total_seconds()
    held_by = what_is_left(attempt, ray, elapsed)
    if not held_by:
        if cluster.release(grant):
            deliver_leftovers(attempt)
            nudge()
    elif elapsed > QUARANTINE_AFTER_S and grant.state == GrantState.RELEASING:
        cluster.quarantine(grant, f"not seen free {elapsed:.0f} s after the attempt ended: {held_by}")


def deliver_leftovers(attempt: Attempt) -> None:
    """A driver that was killed, or outran the network, left records in its spool; its connection file says so."""
    folder = attempt_folder(attempt)
    if (folder / "connection.json").exists():
        send_bulk("controlplane.telemetry.tasks.deliver_leftovers", str(folder))


def what_is_left(attempt: Attempt, ray: RayJobs, elapsed: float) -> str:
    """What still holds the attempt's resources, in words; empty when nothing does. Ends what outstays its time."""
    seen = processes.look(attempt.processes)
    if seen.alive and elapsed > KILL_AFTER_S:
        processes.kill(seen.alive)
    try:
        job = ray.job(attempt.submission_id)
        if job and not job.is_over:
            if elapsed > EXIT_GRACE_S:
                ray.stop(attempt.submission_id)
            return f"Ray calls its job {job.status}"
        groups = [group.state for group in ray.groups() if group.name == attempt.submission_id]
    except RayError as error:
        return str(error)
    if job:
        Attempt.objects.filter(pk=attempt.pk).update(ray_status=job.status)
        note_disagreement(attempt, job)
    if groups:
        return f"its placement group is {groups[0]}"
    if seen.alive:
        return "its processes run: " + ", ".join(map(processes.describe, seen.alive))
    return ""


def note_disagreement(attempt: Attempt, job: Job) -> None:
    """Write down, once, that Ray's last word differs from the exit record, which stands."""
    expected = AGREES.get(AttemptState(attempt.state))
    if not attempt.exit_record or expected in (None, job.status):
        return
    if not attempt.run.events.filter(kind=EXIT_CONFLICT, attempt=attempt.number).exists():
        with transaction.atomic():
            note(attempt, EXIT_CONFLICT, record=attempt.exit_record["outcome"], ray=job.status, message=job.message)
