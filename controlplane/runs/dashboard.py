"""What a run's charts show: the default twelve, every other metric by search, and the marks in the lane below them."""

import json
from collections import Counter
from dataclasses import dataclass

from django.urls import NoReverseMatch, reverse

from controlplane.alerts.models import Incident
from controlplane.checkpoints.models import Checkpoint
from controlplane.evals.models import Evaluation
from controlplane.runs.models import Run
from controlplane.telemetry.models import Axis, Series
from runner.contract.metrics import DASHBOARD, Metric, lookup
from runner.contract.states import CheckpointState

# Parts of a whole: drawn as stacked areas.
STACKED = {"Terminations", "Step time"}
WARM_START = ("Warm start", ("sft/loss",))
MOST_FOUND = 120
MOST_MARKS = 300


@dataclass(frozen=True)
class ChartSpec:
    """One chart: its lines as the page's JSON, and the dictionary's entries behind its help."""

    title: str
    lines: str
    metrics: list[Metric]
    stacked: bool = False
    unit: str = ""


def chart(title: str, names: tuple[str, ...]) -> ChartSpec:
    metrics = [lookup(name) or Metric(name, name, "reported by the run; not in the dictionary") for name in names]
    lines = [{"name": name, "label": _label(metric, title)} for name, metric in zip(names, metrics, strict=True)]
    return ChartSpec(title, json.dumps(lines), metrics, title in STACKED, metrics[0].unit)


def _label(metric: Metric, title: str) -> str:
    return metric.title.removeprefix(title).lstrip(",–- ") or metric.title


def default_charts(run: Run) -> list[ChartSpec]:
    """The dashboard of the metrics dictionary, after the warm start's loss where the run has one."""
    head = (WARM_START,) if "sft" in run.method else ()
    return [chart(title, names) for title, names in (*head, *DASHBOARD)]


@dataclass(frozen=True)
class Group:
    """Metrics that share the first part of their path."""

    name: str
    count: int


def metric_groups(run: Run) -> list[Group]:
    names = Series.objects.filter(run=run, axis=Axis.STEP).values_list("name", flat=True)
    counts = Counter(name.partition("/")[0] for name in names)
    return [Group(name, count) for name, count in sorted(counts.items())]


def found_charts(run: Run, search: str = "", group: str = "") -> tuple[list[ChartSpec], int]:
    """Charts of the metrics whose path holds every word of `search` and begins with `group`; and how many more there are."""
    rows = Series.objects.filter(run=run, axis=Axis.STEP)
    if group:
        rows = rows.filter(name__regex=rf"^{_escaped(group)}(/|$)")
    for word in search.split():
        rows = rows.filter(name__icontains=word)
    names = list(rows.order_by("name").values_list("name", flat=True))
    return [chart(name, (name,)) for name in names[:MOST_FOUND]], max(0, len(names) - MOST_FOUND)


def _escaped(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter == "_" else f"\\{letter}" for letter in text)


# ---------------------------------------------------------------- the lane
def marks(run: Run) -> list[dict]:
    """What happened, as {kind, step, wall, text, url}, oldest first."""
    return sorted([*_checkpoints(run), *_evaluations(run), *_incidents(run), *_stages(run)], key=lambda mark: mark["wall"])[-MOST_MARKS:]


def _mark(kind: str, step: int | None, at, text: str, page: str, run: Run) -> dict:
    try:
        url = reverse(page, args=[run.pk])
    except NoReverseMatch:
        url = ""
    return {"kind": kind, "step": step, "wall": at.timestamp(), "text": text, "url": url}


def _checkpoints(run: Run):
    for row in Checkpoint.objects.filter(run=run, state=CheckpointState.COMPLETE).only("step", "created_at").order_by("-step")[:MOST_MARKS]:
        yield _mark("checkpoint", row.step, row.created_at, f"Checkpoint at step {row.step}", "run-checkpoints", run)


def _evaluations(run: Run):
    for row in Evaluation.objects.filter(run=run).only("step", "label", "created_at").order_by("-step")[:MOST_MARKS]:
        yield _mark("evaluation", row.step, row.created_at, f"Evaluation {row.label}", "run-evaluation", run)


def _incidents(run: Run):
    for row in Incident.objects.filter(run=run).order_by("-id")[:MOST_MARKS]:
        yield _mark("incident", row.opened_step, row.opened_at, row.message, "run-audit", run)


def _stages(run: Run):
    for row in run.events.filter(kind="stage_started").order_by("-id")[:MOST_MARKS]:
        yield _mark("stage", row.step, row.at, f"Stage {row.data.get('stage', '')} {row.data.get('type', '')} begins", "run-audit", run)
