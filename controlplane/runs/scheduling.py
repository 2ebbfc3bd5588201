"""From the queue to a grant: reads rows under lock, lets the allocator decide, writes attempts and shares."""

import base64
import json

from django.db import transaction
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.crypto import salted_hmac

from controlplane.accounts.tokens import PREFIX, hash_token
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.selectors import resume_point
from controlplane.cluster.allocator import Bundle, Decision, Request, alone, decide
from controlplane.cluster.models import Grant, Node, Reservation, Share
from controlplane.cluster.selectors import capacity, holdings
from controlplane.runs.changes import ATTEMPT_STATE, announce, append_event, move_run
from controlplane.runs.forecast import bundles
from controlplane.runs.models import Attempt, Run
from controlplane.runs.services import REQUEUED
from controlplane.telemetry import live
from runner.contract.run_config import Resources
from runner.contract.states import AttemptState, CheckpointState, RunState


@transaction.atomic
def place_waiting() -> list[Attempt]:
    """Grant what fits, tell the others why they wait; returns the attempts that may now be submitted.

    Rows are locked in the order run, node (by name). A run that somebody else holds is looked at in the next tick.
    """
    queued = Run.objects.filter(state=RunState.QUEUED).select_related("project", "reservation")
    runs = {run.pk: run for run in queued.select_for_update(no_key=True, of=("self",), skip_locked=True).order_by("pk")}
    if not runs:
        return []
    nodes = list(Node.objects.select_for_update(no_key=True).order_by("name"))
    decisions = decide([request_of(run) for run in runs.values()], capacity(nodes), holdings())
    by_name = {node.name: node for node in nodes}
    granted = []
    for decision in decisions:
        run = runs[decision.request.key]
        if decision.places is None:
            keep_waiting(run, decision)
        else:
            granted.append(grant(run, decision, by_name))
    return granted


def request_of(run: Run) -> Request:
    return Request(
        key=run.pk,
        bundles=bundles_of(run),
        priority=run.priority,
        waited=(timezone.now() - run.queued_at).total_seconds(),
        label=run.name,
        team=run.project.team_id,
        reserved=has_reservation(run),
    )


def bundles_of(run: Run) -> tuple[Bundle, ...]:
    asked = json.loads(bytes(run.config))["resources"]
    return alone(asked["cpus"], asked.get("node") or "") if run.is_evaluation else bundles(Resources.model_validate(asked))


def has_reservation(run: Run) -> bool:
    return getattr(run, "reservation", None) is not None


def keep_waiting(run: Run, decision: Decision) -> None:
    if decision.reserves and not has_reservation(run):
        Reservation.objects.create(run=run)
        append_event(run, "reserved", why=decision.why)
    if run.waiting != decision.why:
        Run.objects.filter(pk=run.pk).update(waiting=decision.why)
        announce(run)


def grant(run: Run, decision: Decision, nodes: dict[str, Node]) -> Attempt:
    """The run's next attempt with its shares; all of it in the caller's transaction."""
    last = run.attempts.last()
    attempt = Attempt(run=run, number=last.number + 1 if last else 1, resumed_from=chosen_checkpoint(run))
    attempt.save()
    attempt.submission_id, attempt.claim_hash = f"assay-{attempt.pk}", hash_token(claim_code(attempt))
    attempt.save(update_fields=["submission_id", "claim_hash"])
    held = Grant.objects.create(attempt=attempt)
    Share.objects.bulk_create(
        Share(grant=held, node=nodes[decision.places[bundle.name]], bundle=bundle.name, cpus=bundle.cpus, gpus=bundle.gpus)
        for bundle in decision.request.bundles
    )
    Reservation.objects.filter(run=run).delete()
    now = timezone.now()
    move_run(run, RunState.ACTIVE, waiting="", started_at=Coalesce("started_at", now), next_check_at=now)
    append_event(run, ATTEMPT_STATE, attempt=attempt.number, **{"from": None, "to": AttemptState.GRANTED, "places": decision.places})
    live.notify_cluster()
    return attempt


def chosen_checkpoint(run: Run) -> Checkpoint | None:
    """What the requeue fixed, as long as it is complete; a run that was never requeued begins at the start."""
    event = run.events.filter(kind=REQUEUED).last()
    if event is None or event.data["checkpoint"] is None:
        return None
    fixed = Checkpoint.objects.filter(pk=event.data["checkpoint"], state=CheckpointState.COMPLETE).first()
    return fixed or resume_point(run)


def claim_code(attempt: Attempt) -> str:
    """The attempt's one-time code. Derived, not drawn: a submission repeated after a crash must carry the same one."""
    code = salted_hmac("assay.claim", f"{attempt.pk}:{attempt.run_id}", algorithm="sha256").digest()
    return PREFIX + base64.urlsafe_b64encode(code).rstrip(b"=").decode()
