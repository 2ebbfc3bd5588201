"""REST: evaluations of a run, their results, comparisons under one protocol, the leaderboard."""

import json
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Body, Field, Query, Router, Schema, Status

from controlplane.accounts.selectors import team_for
from controlplane.api.idempotency import idempotent
from controlplane.api.pagination import Page, Paging
from controlplane.api.problems import Problem
from controlplane.api.rate_limit import limited
from controlplane.episodes.models import Episode
from controlplane.evals import launching, regrading, results, selectors
from controlplane.evals.models import Evaluation, Protocol
from controlplane.runs.api import FieldErrorOut
from controlplane.runs.models import Run

router = Router(tags=["evaluations"])

Column = Literal["score", "forced"]


class RateOut(Schema):
    """A mean over the n tasks that have a value; a missing one enters nothing."""

    k: float
    n: int
    tasks: int
    rate: float | None
    low: float | None
    high: float | None


class DomainOut(Schema):
    domain: str
    generated: RateOut
    forced: RateOut


class EvaluationOut(Schema):
    id: UUID
    run: UUID = Field(alias="run_id")
    attempt: int
    label: str
    stage: int
    step: int
    policy_version: int | None
    checkpoint: UUID | None = Field(alias="checkpoint_id")
    protocol: str = Field(alias="protocol.hash", description="Only evaluations of one protocol are comparable.")
    summary: dict
    baselines: dict
    created_at: datetime
    generated: RateOut
    forced: RateOut
    parsed: RateOut
    domains: list[DomainOut]


class ResultOut(Schema):
    task: str
    domain: str
    level: str
    score: float | None
    forced: float | None
    parsed: bool | None
    episode: UUID | None


class ComparisonOut(Schema):
    before: UUID
    after: UUID
    column: Column
    n: int
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    better: int
    worse: int
    unpaired: int = Field(description="Tasks without a score on one side; left out.")
    resolved: bool
    sentence: str


class ProtocolOut(Schema):
    hash: str
    document: dict
    runs: int
    created_at: datetime


class LeaderboardOut(Schema):
    protocol: str
    rows: list[EvaluationOut]
    verdict: str


class EvaluationCheckOut(Schema):
    config: dict | None = Field(description="The resolved document; null when something is refused.")
    tasks: list[str]
    trials: int
    errors: list[FieldErrorOut]
    warnings: list[FieldErrorOut]


class EvaluationLaunchedOut(Schema):
    id: UUID
    name: str
    state: str
    total_steps: int = Field(description="Episodes that it will run.")


# ---------------------------------------------------------------- launching
Document = Body[dict[str, Any]]
# The view takes any object, so that what is wrong with it is told field by field.
_DOCUMENT = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/EvaluationConfig"}}}}}


@router.post("/evaluations", response={201: EvaluationLaunchedOut}, openapi_extra=_DOCUMENT)
@idempotent
@limited("launch")
def launch(request: HttpRequest, document: Document, team: str | None = None):
    """Queue an evaluation in containers. It is a run: follow, stop and retry it as one; a retried one goes on where it broke off."""
    return Status(201, launching.launch(request.user, team_for(request.user, team), document))


@router.post("/evaluations/check", response=EvaluationCheckOut)
def check(request: HttpRequest, document: Document, team: str | None = None):
    """Everything that would be refused, and which tasks would be run."""
    checked = launching.check(request.user, team_for(request.user, team), document)
    config = checked.config and checked.config.model_dump(mode="json")
    return {"config": config, **{name: getattr(checked, name) for name in ("tasks", "trials", "errors", "warnings")}}


# ---------------------------------------------------------------- once more
@router.post("/episodes/{uuid:episode_id}/regrade", response={201: EvaluationLaunchedOut})
@idempotent
@limited("launch")
def regrade(request: HttpRequest, episode_id: UUID):
    """Queue a fresh verifier over what the episode delivered; one that fails again leaves the earlier grade."""
    return Status(201, regrading.regrade(request.user, _episode(request, episode_id)))


@router.post("/episodes/{uuid:episode_id}/again", response={201: EvaluationLaunchedOut})
@idempotent
@limited("launch")
def run_again(request: HttpRequest, episode_id: UUID):
    """Queue the task of an evaluation's episode once more, under the evaluation's own config."""
    return Status(201, regrading.run_again(request.user, _episode(request, episode_id)))


def _episode(request: HttpRequest, episode_id: UUID) -> Episode:
    return get_object_or_404(Episode.objects.for_user(request.user).select_related("run__project__team"), pk=episode_id)


# ---------------------------------------------------------------- reading
@router.get("/runs/{uuid:run_id}/evaluations", response=list[EvaluationOut])
def list_evaluations(request: HttpRequest, run_id: UUID):
    """Evaluations of a run, oldest first, with 95 % intervals."""
    return selectors.for_run(get_object_or_404(Run.objects.for_user(request.user).only("pk"), pk=run_id))


@router.get("/evaluations/{uuid:evaluation_id}", response=EvaluationOut)
def get_evaluation(request: HttpRequest, evaluation_id: UUID):
    return selectors.with_rates([_evaluation(request, evaluation_id)])[0]


@router.get("/evaluations/{uuid:evaluation_id}/results", response=Page[ResultOut])
def list_results(request: HttpRequest, evaluation_id: UUID, paging: Query[Paging]):
    """One row a task."""
    return paging.page(_evaluation(request, evaluation_id).results.all(), "task", "id")


_LINES = {"responses": {200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}}}}


@router.get("/evaluations/{uuid:evaluation_id}/results.jsonl", response={200: None}, openapi_extra=_LINES)
def download_results(request: HttpRequest, evaluation_id: UUID):
    """One line a trial, in the published layout; empty for an evaluation that ran in no container."""
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in results.records_of(_evaluation(request, evaluation_id)))
    return _file("".join(lines), "results.jsonl", "application/x-ndjson")


_JSON = {"responses": {200: {"content": {"application/json": {"schema": {"type": "object"}}}}}}


@router.get("/evaluations/{uuid:evaluation_id}/summary.json", response={200: None}, openapi_extra=_JSON)
def download_summary(request: HttpRequest, evaluation_id: UUID):
    """Overall, by category and by family, with 95 % intervals, in the published layout."""
    found = results.summary_of(_evaluation(request, evaluation_id))
    return _file(json.dumps(found, indent=1, ensure_ascii=False), "summary.json", "application/json")


def _file(content: str, name: str, kind: str) -> HttpResponse:
    return HttpResponse(content, content_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


@router.get("/evaluations/{uuid:evaluation_id}/compare/{uuid:other_id}", response=ComparisonOut)
def compare(request: HttpRequest, evaluation_id: UUID, other_id: UUID, column: Column = "forced"):
    """The other evaluation minus this one, paired by task; 409 when their protocols differ."""
    try:
        found = selectors.paired(_evaluation(request, evaluation_id), _evaluation(request, other_id), column)
    except selectors.ProtocolsDiffer as error:
        raise Problem(409, "Not comparable", str(error)) from None
    gap = found.difference
    return {
        "before": found.before.pk,
        "after": found.after.pk,
        "column": column,
        "n": found.n,
        "difference": gap.interval.estimate,
        "low": found.low,
        "high": found.high,
        "p": gap.p,
        "better": gap.better,
        "worse": gap.worse,
        "unpaired": gap.unpaired,
        "resolved": found.resolved,
        "sentence": found.sentence,
    }


@router.get("/protocols", response=list[ProtocolOut])
def list_protocols(request: HttpRequest):
    """Protocols under which your runs were evaluated, newest first."""
    return selectors.protocols(Run.objects.for_user(request.user))[:200]


@router.get("/protocols/{protocol}/leaderboard", response=LeaderboardOut)
def read_leaderboard(request: HttpRequest, protocol: str, column: Column = "forced"):
    """Each run's last evaluation under one protocol, best first."""
    runs = Run.objects.for_user(request.user)
    found = get_object_or_404(Protocol.objects.filter(evaluation__run__in=runs).distinct(), hash=protocol)
    board = selectors.leaderboard(runs, found, column)
    return {"protocol": found.hash, "rows": board.rows, "verdict": board.verdict}


def _evaluation(request: HttpRequest, evaluation_id: UUID) -> Evaluation:
    return get_object_or_404(Evaluation.objects.for_user(request.user).select_related("protocol"), pk=evaluation_id)
