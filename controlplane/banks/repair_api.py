"""REST: what repair banks add: files by digest, findings with remedies, anchors, warm nodes, quarantine."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.http import FileResponse
from ninja import Field, File, Query, Router, Schema, UploadedFile
from pydantic import Field as Limits
from pydantic import StrictBool
from pydantic import ValidationError as InvalidModel

from controlplane import storage
from controlplane.accounts.roles import require
from controlplane.accounts.selectors import team_for
from controlplane.api.idempotency import idempotent
from controlplane.api.problems import Problem
from controlplane.api.rate_limit import limited
from controlplane.api.schemas import Input
from controlplane.banks import anchors, files, warming
from controlplane.banks.api import version_of
from controlplane.banks.models import BankVersion, Task
from controlplane.banks.selectors import findings
from controlplane.evals.launching import start_proving, start_warming
from runner.contract.anchors import AnchorState
from runner.contract.parse import FieldError, pointer
from runner.contract.repair import MAX_FILE_BYTES

router = Router(tags=["banks"])

MAX_UPLOADED_FILES = 100
DIGEST = r"^[0-9a-f]{64}$"
_TAR = {"responses": {200: {"content": {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}}}}


class Digests(Input):
    digests: list[str] = Limits(max_length=1000)
    team: str | None = None


class Missing(Schema):
    missing: list[str]


class Stored(Schema):
    stored: int


class FindingOut(Schema):
    task: str
    code: str
    severity: Literal["error", "warning"]
    title: str
    detail: str
    remedy: str
    blocks: str


class AnchorCheckOut(Schema):
    score: float | None
    raw_reward: float | None
    floor: float | None
    expected_floor: float | None
    problems: list[str]
    reason: str
    node: str
    node_class: str
    backend: str
    timings: dict[str, float]
    at: datetime


class AnchorRowOut(Schema):
    task: str = Field(alias="task.key")
    floor: float | None = Field(description="What the bank says that the unrepaired code scores.")
    straw: float | None = Field(description="What the unrepaired code scored in the verifier's image, as a verifier reported it last.")
    oracle: AnchorCheckOut | None
    nop: AnchorCheckOut | None
    problems: list[str]
    quarantined_at: datetime | None = Field(alias="task.quarantined_at")
    quarantine_reason: str = Field(alias="task.quarantine_reason")


class AnchorsOut(Schema):
    state: AnchorState
    sentence: str
    tasks: int
    missing: int
    proving_since: datetime | None
    run: UUID | None = Field(description="The run that proves them, or last tried to.")
    rows: list[AnchorRowOut]


class WarmedTaskOut(Schema):
    task: str = Field(alias="task.key")
    env_setup_seconds: float
    verifier_seconds: float
    termination: str
    score: float | None
    passes: int
    why_cold: str = Field(description="Why later episodes would wait or fail on the node; empty when they would not.")
    at: datetime


class NodeWarmthOut(Schema):
    node: str
    is_ready: bool = Field(description="Whether the node takes runs now.")
    state: str = Field(description="unknown, warming, warm, cold; or failed, lost, stopped: what its run ended as.")
    run: UUID | None = Field(None, alias="run.pk")
    reason: str = Field("", alias="run.reason")
    warm_count: int
    repaired: int = Field(description="Tasks that the second pass mended.")
    rows: list[WarmedTaskOut]


class NewResults(Input):
    results: list[dict[str, Any]] = Limits(
        [], max_length=1000, description="{task, agent: oracle | nop, score, raw_reward, floor, reason, node, …}"
    )
    finished: StrictBool = Limits(False, description="No more results will come: from now on the results alone decide.")


class Quarantine(Input):
    task: str = Limits(max_length=200)
    reason: str = Limits(min_length=1, max_length=anchors.MAX_REASON)


class Release(Input):
    task: str = Limits(max_length=200)


# ---------------------------------------------------------------- files
@router.post("/bank-files/missing", response=Missing)
def missing_files(request, payload: Digests):
    """Which of these files have to be sent before a bank that names them is uploaded."""
    team = team_for(request.user, payload.team)
    require(request.user, team, "bank.import")
    return {"missing": files.missing(team, payload.digests)}


@router.post("/bank-files", response=Stored)
def send_files(request, sent: list[UploadedFile] = File(..., alias="files"), team: str | None = None):
    """Send files, each named by the SHA-256 of its content. Files that no version names within a day are removed again."""
    require(request.user, team_for(request.user, team), "bank.import")
    if len(sent) > MAX_UPLOADED_FILES or any(file.size > MAX_FILE_BYTES for file in sent):
        raise Problem(413, "Files too large", f"at most {MAX_UPLOADED_FILES} files of {MAX_FILE_BYTES} bytes are taken at once")
    try:
        files.put_all((file.name, file.read()) for file in sent)
    except ValueError as error:
        raise Problem(422, "Invalid request", str(error), [FieldError("/files", str(error))]) from None
    return {"stored": len(sent)}


@router.get("/banks/{bank}/versions/{int:number}/task-files", response={200: None}, openapi_extra=_TAR)
def download_task(request, bank: str, number: int, task: str, team: str | None = None):
    """One task's folder as a tar, as the nodes get it."""
    version = version_of(request, bank, number, team)
    anchors.require_repair(version)
    row = Task.objects.filter(version=version, key=task).first()
    if row is None:
        raise Problem(404, "Not found", f"{version} has no task {task[:200]!r}")
    try:
        packed = files.task_tar(row.payload["task_digest"])
    except storage.BlobMissing as error:
        raise Problem(410, "Task files missing", f"{error}; import the bank again") from None
    return FileResponse(packed, as_attachment=True, filename=f"{task.rpartition('/')[2]}.tar", content_type="application/x-tar")


@router.get("/banks/{bank}/versions/{int:number}/findings", response=list[FindingOut])
def list_findings(request, bank: str, number: int, code: Query[str] = "", team: str | None = None):
    """What is wrong with the version's tasks, errors first, each with its remedy. Counts by code are in the version's `counts`."""
    return findings(version_of(request, bank, number, team), code)


# ---------------------------------------------------------------- anchors
@router.get("/banks/{bank}/versions/{int:number}/anchors", response=AnchorsOut)
def get_anchors(request, bank: str, number: int, team: str | None = None):
    """Whether oracle and nop came out right on every task, and what they earned; broken tasks first."""
    return _anchors(version_of(request, bank, number, team))


@router.post("/banks/{bank}/versions/{int:number}/anchors", response=AnchorsOut)
def record_results(request, bank: str, number: int, payload: NewResults, team: str | None = None):
    """Keep results of anchor agents, all or none; answered with the state they lead to."""
    version = version_of(request, bank, number, team)
    require(request.user, version.bank.team, "bank.prove")
    try:
        results = [anchors.read_result(item) for item in payload.results]
    except InvalidModel as error:
        found = [FieldError(pointer(["results", *item["loc"]]), item["msg"]) for item in error.errors()]
        raise Problem(422, "Invalid request", "; ".join(map(str, found)), found) from None
    anchors.record_anchors(version, results, request.user)
    if payload.finished:
        anchors.finish_proving(version)
    return _anchors(version)


@router.post("/banks/{bank}/versions/{int:number}/anchors/start", response=AnchorsOut)
@idempotent
@limited("launch")
def start_anchors(
    request,
    bank: str,
    number: int,
    team: str | None = None,
    backend: Literal["docker", "process"] = "docker",
    concurrency: int = Query(4, ge=1, le=64),
):
    """Run oracle and nop on every task, in containers; the version is `proving` until they have run, or their run ended otherwise."""
    version = version_of(request, bank, number, team)
    return _anchors(start_proving(request.user, version, backend, concurrency))


def _anchors(version: BankVersion) -> dict:
    anchors.require_repair(version)
    checks = anchors.newest_checks(version)
    found = anchors.summary(version, checks)
    counted = {"state": found.state, "sentence": found.sentence, "tasks": found.tasks, "missing": len(found.missing)}
    since = version.proving_since if found.state == AnchorState.PROVING else None
    run = anchors.proofs(version).values_list("pk", flat=True).first()
    return counted | {"proving_since": since, "run": run, "rows": anchors.rows(version, checks)}


# ---------------------------------------------------------------- warm nodes
@router.get("/banks/{bank}/versions/{int:number}/warmth", response=list[NodeWarmthOut])
def get_warmth(request, bank: str, number: int, team: str | None = None):
    """How long set-ups take on each node, as the newest run that warmed it found; cold tasks first."""
    version = version_of(request, bank, number, team)
    anchors.require_repair(version)
    return warming.nodes(version)


@router.post("/banks/{bank}/versions/{int:number}/warmth/start", response=list[NodeWarmthOut])
@idempotent
@limited("launch")
def start_warming_nodes(request, bank: str, number: int, team: str | None = None, backend: Literal["docker", "process"] = "docker"):
    """Run nop over the version's tasks on every ready node, four at a time, then once more over what failed or was slow."""
    version = version_of(request, bank, number, team)
    start_warming(request.user, version, backend)
    return warming.nodes(version)


@router.post("/banks/{bank}/versions/{int:number}/quarantine", response=AnchorsOut)
def quarantine_task(request, bank: str, number: int, payload: Quarantine, team: str | None = None):
    """Take a task out of training, evaluation and the anchor gate, and say why."""
    version = version_of(request, bank, number, team)
    anchors.quarantine(request.user, version, payload.task, payload.reason)
    return _anchors(version)


@router.post("/banks/{bank}/versions/{int:number}/release", response=AnchorsOut)
def release_task(request, bank: str, number: int, payload: Release, team: str | None = None):
    """Let a quarantined task be drawn again."""
    version = version_of(request, bank, number, team)
    anchors.release(request.user, version, payload.task)
    return _anchors(version)
