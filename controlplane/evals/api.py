"""REST: evaluations of a run, their results, comparisons under one protocol, the leaderboard."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema

from controlplane.api.pagination import Page, Paging
from controlplane.api.problems import Problem
from controlplane.evals import selectors
from controlplane.evals.models import Evaluation, Protocol
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
