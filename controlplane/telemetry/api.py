"""REST: series by name, exact buckets, wall-clock samples, log lines, and every point as CSV."""

from typing import Annotated, Literal
from uuid import UUID

import numpy as np
from django.http import HttpRequest, StreamingHttpResponse
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema

from controlplane.api.problems import Problem
from controlplane.columns import column_response
from controlplane.runs.models import Run
from controlplane.telemetry import selectors
from controlplane.telemetry.buckets import Buckets
from controlplane.telemetry.delta import log_row
from controlplane.telemetry.selectors import Chart
from controlplane.telemetry.text import json_number
from runner.contract.metrics import lookup
from runner.contract.parse import FieldError

router = Router(tags=["telemetry"])

MAX_STEP = 2**53
Number = float | Literal["NaN", "Infinity", "-Infinity"]


# ---------------------------------------------------------------- answers
class Last(Schema):
    x: float = Field(description="Step, or Unix seconds for a series over the wall clock.")
    value: Number


class SeriesOut(Schema):
    name: str
    axis: Literal["step", "wall"]
    title: str | None = Field(description="From the metrics dictionary; null for a name it does not have.")
    unit: str
    population: str
    last: Last | None


class SeriesPage(Schema):
    items: list[SeriesOut]
    next: str | None = Field(description="Pass as `after` for the next page.")


class AttemptPart(Schema):
    number: int
    first_step: int


class BucketColumns(Schema):
    """Equally long columns, one row for each bucket that holds a value. Over finite values; null where a bucket has none."""

    start: list[int]
    min: list[float | None]
    max: list[float | None]
    mean: list[Number | None]
    last: list[float | None]
    last_step: list[int | None]
    count: list[int]
    nan: list[int]
    positive_infinite: list[int]
    negative_infinite: list[int]
    wall: list[float] | None = Field(None, description="Newest Unix seconds in the bucket; with axis=wall.")
    tokens: list[float | None] | None = Field(None, description="Tokens of the run until the bucket's end; with axis=tokens.")


class PointsOut(Schema):
    cursor: int = Field(description="The run's live cursor these buckets are exact at.")
    width: int
    first: int = Field(alias="from")
    last: int = Field(alias="to")
    started_at: float | None
    attempts: list[AttemptPart]
    series: dict[str, BucketColumns]


class SamplesOut(Schema):
    series: dict[str, list[Annotated[list[Number], Field(min_length=2, max_length=2)]]] = Field(
        description="Pairs of Unix seconds and value."
    )


class LogLineOut(Schema):
    id: int
    t: float
    component: str
    level: str
    message: str
    attempt: int


class LogPage(Schema):
    items: list[LogLineOut]


# ---------------------------------------------------------------- questions
class SeriesQuery(Schema):
    search: str = Field("", max_length=200, description="Words that the name must hold.")
    after: str = Field("", max_length=200)
    limit: int = Field(100, ge=1, le=1000)


class PointsQuery(Schema):
    names: list[str] = Field(min_length=1, max_length=50)
    buckets: int = Field(600, ge=1, le=selectors.MAX_BUCKETS, description="At most so many; 1, 2, 5, 10, 20, 100, 200, 500, … steps wide.")
    first: int | None = Field(None, ge=0, le=MAX_STEP, alias="from")
    last: int | None = Field(None, ge=0, le=MAX_STEP, alias="to")
    axis: Literal["step", "wall", "tokens"] = "step"


class ExportQuery(Schema):
    # Django reads at most a thousand parameters.
    names: list[str] = Field([], max_length=500)


class SamplesQuery(Schema):
    names: list[str] = Field(min_length=1, max_length=50)
    first: float | None = Field(None, alias="from")
    last: float | None = Field(None, alias="to")
    limit: int = Field(5000, ge=1, le=20_000)


class LogQuery(Schema):
    search: str = Field("", max_length=200)
    component: list[str] = Field([], max_length=50)
    level: list[Literal["debug", "info", "warning", "error"]] = Field([], max_length=4)
    attempt: int | None = Field(None, ge=1, le=32767)
    before: int | None = Field(None, ge=0, lt=2**63, description="Lines older than this id; without before and after, the newest.")
    after: int | None = Field(None, ge=0, lt=2**63, description="Lines newer than this id.")
    limit: int = Field(200, ge=1, le=2000)


# ---------------------------------------------------------------- endpoints
@router.get("/runs/{uuid:run_id}/series", response=SeriesPage)
def list_series(request: HttpRequest, run_id: UUID, query: Query[SeriesQuery]):
    """Names of a run's series, with their last value."""
    found = selectors.search_names(_run(request, run_id), query.search, query.after, query.limit)
    items = [_series(name) for name in found]
    return {"items": items, "next": found[-1].name if len(found) == query.limit else None}


def _series(found: selectors.SeriesName) -> dict:
    metric = lookup(found.name)
    last = {"x": found.last[0], "value": json_number(found.last[1])} if found.last else None
    title, unit, population = (metric.title, metric.unit, metric.population) if metric else (None, "", "")
    return {"name": found.name, "axis": found.axis, "title": title, "unit": unit, "population": population, "last": last}


@router.get("/runs/{uuid:run_id}/points", response=PointsOut, by_alias=True)
def read_points(request: HttpRequest, run_id: UUID, query: Query[PointsQuery]):
    """Exact buckets of several series; empty buckets are left out, unknown names have none."""
    run = _run(request, run_id)
    try:
        chart = selectors.read_chart(run, query.names, query.buckets, query.first, query.last, tokens=query.axis == "tokens")
    except ValueError as error:
        raise Problem(422, "Invalid request", str(error), [FieldError("/from", str(error), query.first)]) from None
    return column_response(points_document(run, chart, query.axis))


def points_document(run: Run, chart: Chart, axis: str) -> dict:
    """PointsOut with numpy columns, in which NaN means that there is no value."""
    return {
        "cursor": chart.cursor,
        "width": chart.width,
        "from": chart.first,
        "to": chart.last,
        "started_at": run.started_at.timestamp() if run.started_at else None,
        "attempts": [{"number": part.attempt, "first_step": part.first} for part in chart.segments],
        "series": {name: _columns(chart, found, axis) for name, found in chart.series.items()},
    }


def _columns(chart: Chart, found: Buckets, axis: str) -> dict:
    parts = found.parts
    columns = {
        "start": found.start,
        "min": parts.minimum,
        "max": parts.maximum,
        "mean": _with_infinities(found.mean),
        "last": parts.last_value,
        "last_step": [step if step >= 0 else None for step in parts.last_step.tolist()],
        "count": parts.count,
        "nan": parts.nan,
        "positive_infinite": parts.positive_infinite,
        "negative_infinite": parts.negative_infinite,
    }
    if axis == "wall":
        columns["wall"] = parts.last_wall
    if axis == "tokens":
        columns["tokens"] = _tokens_until(chart, found.start)
    return columns


def _with_infinities(values: np.ndarray) -> np.ndarray | list:
    """A mean is infinite where its sum left float64: that is a value, and is written as a string."""
    if not np.isinf(values).any():
        return values
    return [None if np.isnan(value) else json_number(value) for value in values.tolist()]


def _tokens_until(chart: Chart, start: np.ndarray) -> np.ndarray:
    totals = np.concatenate([[0.0], np.cumsum(chart.tokens.parts.total)])
    return chart.tokens_before + totals[np.searchsorted(chart.tokens.start, start, side="right")]


_CSV = {"responses": {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}}


@router.get("/runs/{uuid:run_id}/points.csv", response={200: str}, openapi_extra=_CSV)
def export_points(request: HttpRequest, run_id: UUID, query: Query[ExportQuery]):
    """Every raw point as CSV (name, attempt, step, value, wall, visible), streamed; all series unless `names` are given."""
    run = _run(request, run_id)
    headers = {"Content-Disposition": f'attachment; filename="points-{run.pk}.csv"'}
    return StreamingHttpResponse(selectors.export_csv(run, query.names), content_type="text/csv; charset=utf-8", headers=headers)


@router.get("/runs/{uuid:run_id}/samples", response=SamplesOut)
def read_samples(request: HttpRequest, run_id: UUID, query: Query[SamplesQuery]):
    """Raw samples of wall-clock series, the newest `limit` of each."""
    found = selectors.read_samples(_run(request, run_id), query.names, query.first, query.last, query.limit)
    return {"series": {name: [(wall, json_number(value)) for wall, value in rows] for name, rows in found.items()}}


@router.get("/runs/{uuid:run_id}/logs", response=LogPage)
def read_logs(request: HttpRequest, run_id: UUID, query: Query[LogQuery]):
    """Log lines in order of arrival."""
    lines = selectors.search_logs(
        _run(request, run_id),
        search=query.search,
        components=query.component,
        levels=query.level,
        attempt=query.attempt,
        before=query.before,
        after=query.after,
        limit=query.limit,
    )
    return {"items": [log_row(line) for line in lines]}


def _run(request: HttpRequest, run_id: UUID) -> Run:
    return get_object_or_404(Run.objects.for_user(request.user).defer("document", "config"), pk=run_id)
