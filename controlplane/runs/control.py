"""What a runner may ask and say: claim, heartbeat, state, exit, checkpoints, and its task bank.

Plain Django views beside the REST API. Everything but the claim carries the attempt's token; everything that changes the run is fenced:
once the attempt is closed the write is refused and counted.
"""

import json
import uuid

from django.conf import settings
from django.db import transaction
from django.http import HttpResponse, JsonResponse
from django.utils import timezone

from controlplane import storage
from controlplane.accounts.tokens import new_token
from controlplane.banks import anchors
from controlplane.checkpoints import services as checkpoints
from controlplane.checkpoints.models import Checkpoint
from controlplane.cluster import processes
from controlplane.runs import attempts
from controlplane.runs.attempt_auth import Refused, authenticate_attempt, read_json, require_open, runner_endpoint, same_secret
from controlplane.runs.changes import announce, lock_run, move_attempt
from controlplane.runs.devices import BadDevices, read_devices
from controlplane.runs.inquiry import by_record
from controlplane.runs.models import OPEN_ATTEMPT, Attempt, Run
from controlplane.runs.paths import run_folder
from controlplane.runs.reconcile import STOP_GRACE_S
from runner.contract.states import AttemptState

MAX_COMPONENTS = 2048


# ---------------------------------------------------------------- claim
@runner_endpoint("POST")
def claim(request, attempt_id: int):
    """A driver's first act: the one-time code against the attempt's token and everything it needs. The second claimant is refused."""
    body = read_json(request)
    code, host = str(body.get("code") or ""), str(body.get("host") or "")
    pid, started = _number(body, "pid"), _number(body, "started")
    known = Attempt.objects.filter(pk=attempt_id).first()
    if known is None or not same_secret(code, known.claim_hash):
        raise Refused(403, "Wrong claim code", "this code does not belong to that attempt; only the submitted job has it")
    token, token_hash = new_token()
    with transaction.atomic():
        attempt = attempts.locked(known, lock_run(known.run_id))
        _require_claimable(attempt)
        attempt.processes = processes.merge(attempt.processes, {"driver": {"pid": int(pid), "started": started}}, host)
        attempt.token_hash, attempt.host, attempt.claimed_at = token_hash, host, timezone.now()
        attempt.save(update_fields=["token_hash", "host", "claimed_at", "processes"])
        attempts.note(attempt, "claimed", host=host, pid=int(pid))
        attempts.begin(attempt)
    return JsonResponse({"token": token, **_assignment(attempt)})


def _require_claimable(attempt: Attempt) -> None:
    if attempt.state not in OPEN_ATTEMPT:
        raise Refused(410, "Attempt closed", f"attempt {attempt.number} is {attempt.state}; exit without touching the run's data")
    if attempt.claimed_at:
        raise Refused(
            409, "Claimed already", f"a driver on {attempt.host} claimed attempt {attempt.number} at {attempt.claimed_at.isoformat()}; exit"
        )


def _assignment(attempt: Attempt) -> dict:
    run = attempt.run
    shares = attempt.grant.shares.select_related("node").order_by("pk")
    return {
        "run": str(run.pk),
        "attempt": attempt.pk,
        "number": attempt.number,
        "config": json.loads(bytes(run.config)),
        "config_hash": run.config_hash,
        "total_steps": run.total_steps,
        "storage": str(run_folder(run.pk)),
        "bank": _bank(attempt),
        "grant": [_share(share) for share in shares],
        "resume": attempt.resumed_from and _resume(attempt.resumed_from),
        "model_checkpoint": _model_checkpoint(run),
    }


def _bank(attempt: Attempt) -> dict:
    version, door = attempt.run.bank_version, f"{settings.ASSAY_CALLBACK_URL}/api/ingest/{attempt.pk}"
    files = {"tasks_url": f"{door}/tasks", "quarantined": anchors.quarantined_keys(version)}
    return {"digest": version.digest, "url": f"{door}/bank"} | (files if version.bank.environment == anchors.REPAIR else {})


def _share(share) -> dict:
    return {
        **{"bundle": share.bundle, "node": share.node.name, "node_resource": share.node.resource},
        **{"cpus": float(share.cpus), "gpus": share.gpus},
    }


def _resume(checkpoint: Checkpoint) -> dict:
    kept = {name: getattr(checkpoint, name) for name in ("path", "step", "stage", "policy_version")}
    return {"checkpoint": str(checkpoint.pk), **kept}


def _model_checkpoint(run: Run) -> dict | None:
    model = json.loads(bytes(run.config))["model"]
    source = model["source"] if model else {"type": "none"}
    if source["type"] != "checkpoint":
        return None
    return {"checkpoint": source["checkpoint"], "path": Checkpoint.objects.get(pk=source["checkpoint"]).path}


# ---------------------------------------------------------------- heartbeat and state
@runner_endpoint("POST")
def heartbeat(request, attempt_id: int):
    """Every ten seconds: what each component does. The answer carries the command to stop."""
    attempt, body = authenticate_attempt(request, attempt_id), read_json(request)
    components = _mapping(body, "components")
    if len(components) > MAX_COMPONENTS:
        raise Refused(400, "Bad heartbeat", f"components: at most {MAX_COMPONENTS}")
    try:
        devices = read_devices(body.get("devices") or [])
    except BadDevices as bad:
        raise Refused(400, "Bad heartbeat", str(bad)) from None
    require_open(attempt)
    with transaction.atomic():
        run = lock_run(attempt.run_id)
        attempt = attempts.locked(attempt, run)
        attempts.regain_contact(attempt)
        changed = attempt.phase != (phase := str(body.get("phase") or attempt.phase)[:40])
        attempt.phase, attempt.components, attempt.devices = phase, components, devices
        attempt.processes = processes.merge(attempt.processes, components, attempt.host)
        attempt.last_heartbeat_at = timezone.now()
        attempt.save(update_fields=["phase", "components", "devices", "processes", "last_heartbeat_at"])
        if changed:
            announce(run)
    stopping = run.stop_requested_at is not None
    return JsonResponse({"command": "stop" if stopping else None, "grace_s": STOP_GRACE_S})


@runner_endpoint("POST")
def state(request, attempt_id: int):
    """The driver's own transitions: running once its gang is ready, stopping when it was told to end."""
    attempt, body = authenticate_attempt(request, attempt_id), read_json(request)
    target = {"running": AttemptState.RUNNING, "stopping": AttemptState.STOPPING}.get(str(body.get("state")))
    if target is None:
        raise Refused(400, "Unknown state", f"state: must be running or stopping, got {body.get('state')!r}")
    require_open(attempt)
    with transaction.atomic():
        attempt = attempts.locked(attempt, lock_run(attempt.run_id))
        changes = {"phase": str(body.get("phase") or attempt.phase)[:40]}
        if target == AttemptState.RUNNING:
            changes |= {"running_at": timezone.now(), "first_step": int(_number(body, "first_step", default=0))}
        if attempt.state in _BEFORE[target]:
            move_attempt(attempt, target, **changes)
    return JsonResponse({"state": attempt.state})


# A repeated word, or one that comes after the stop request, changes nothing.
_BEFORE = {AttemptState.RUNNING: {AttemptState.STARTING}, AttemptState.STOPPING: {AttemptState.STARTING, AttemptState.RUNNING}}


@runner_endpoint("POST")
def exit(request, attempt_id: int):
    """The exit record. Sent again with the same outcome it is answered the same; any other is fenced."""
    attempt, record = authenticate_attempt(request, attempt_id), read_json(request)
    try:
        verdict = by_record(record)
    except (ValueError, AttributeError) as error:
        raise Refused(400, "Bad exit record", str(error)) from None
    if attempt.state == verdict.state and attempt.exit_record:
        return JsonResponse({"state": attempt.state})
    require_open(attempt)
    attempts.end(attempt, verdict.state, verdict.reason, record)
    return JsonResponse({"state": Attempt.objects.get(pk=attempt.pk).state})


# ---------------------------------------------------------------- checkpoints and the bank
@runner_endpoint("POST")
def checkpoint(request, attempt_id: int):
    """A checkpoint is being written, is complete, or broke. Complete is checked here before it is believed."""
    attempt, body = authenticate_attempt(request, attempt_id), read_json(request)
    try:
        key, report = uuid.UUID(str(body.get("checkpoint"))), checkpoints.Report.read(body)
    except ValueError as error:
        raise Refused(400, "Bad checkpoint report", str(error)) from None
    require_open(attempt)
    try:
        row = checkpoints.record_report(attempt, key, report)
    except checkpoints.ForeignCheckpoint as error:
        raise Refused(409, "Not this run's checkpoint", str(error)) from None
    return JsonResponse({"checkpoint": str(row.pk), "state": row.state, "reason": row.reason})


@runner_endpoint("GET")
def bank(request, attempt_id: int):
    """The bank file of the version that the run pinned, as zstd."""
    attempt = authenticate_attempt(request, attempt_id)
    version = attempt.run.bank_version
    try:
        content = storage.read(version.blob)
    except storage.BlobMissing as error:
        raise Refused(410, "Bank file missing", str(error)) from None
    return HttpResponse(content, content_type="application/zstd", headers={"ETag": f'"{version.digest}"'})


# ---------------------------------------------------------------- reading bodies
def _number(body: dict, name: str, default=None) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(400, "Bad field", f"{name}: must be a number, got {value!r}")
    return float(value)


def _mapping(body: dict, name: str) -> dict:
    value = body.get(name) or {}
    if not isinstance(value, dict) or not all(isinstance(item, dict) for item in value.values()):
        raise Refused(400, "Bad field", f"{name}: must map names to objects")
    return value
