"""What a run's charts show: the default twelve, every other metric by search, and the marks in the lane below them."""

import json
from collections import Counter
from dataclasses import dataclass

from django.urls import reverse

from controlplane.alerts.models import Incident
from controlplane.runs.models import Run
from controlplane.telemetry.delta import event_row
from controlplane.telemetry.models import Axis, Series
from runner.contract.metrics import DASHBOARD, REPAIR_DASHBOARD, SCIENCEWORLD_DASHBOARD, Metric, lookup

# Parts of a whole: drawn as stacked areas.
STACKED = {"Terminations", "Step time"}
OPENING = {"harbor": REPAIR_DASHBOARD, "scienceworld": SCIENCEWORLD_DASHBOARD}
WARM_START = ("Warm start", ("sft/loss",))
MOST_FOUND = 120
MOST_NAMED = 5
MOST_MARKS = 300
MARKED = ("checkpoint", "evaluation", "stage_started")


@dataclass(frozen=True)
class ChartSpec:
    """One chart: its lines as the page's JSON, and the dictionary's entries behind its help. `wall` runs over seconds, not steps."""

    title: str
    lines: str
    metrics: list[Metric]
    stacked: bool = False
    unit: str = ""
    wall: bool = False

    @property
    def crowded(self) -> bool:
        """Whether its lines are too many for their names to stand in the legend."""
        return len(json.loads(self.lines)) > MOST_NAMED


def chart(title: str, names: tuple[str, ...], wall: bool = False) -> ChartSpec:
    metrics = [lookup(name) or Metric(name, name, "reported by the run; not in the dictionary") for name in names]
    lines = [{"name": name, "label": _label(metric, title)} for name, metric in zip(names, metrics, strict=True)]
    return ChartSpec(title, json.dumps(lines), metrics, title in STACKED, metrics[0].unit, wall)


def _label(metric: Metric, title: str) -> str:
    return metric.title.removeprefix(title).lstrip(",–- ").removeprefix("Ended ") or metric.title


def default_charts(run: Run) -> list[ChartSpec]:
    """The dashboard of the metrics dictionary, after the warm start's loss where the run has one; some environments open with their 2 × 4."""
    head = (WARM_START,) if "sft" in run.method else ()
    head = (*OPENING.get(run.environment, ()), *head)
    shown = {title for title, _ in head}
    return [chart(title, names) for title, names in (*head, *(item for item in DASHBOARD if item[0] not in shown))]


@dataclass(frozen=True)
class Group:
    """Metrics that share the first part of their path."""

    name: str
    count: int


def metric_groups(run: Run) -> list[Group]:
    names = Series.objects.filter(run=run).values_list("name", flat=True)
    counts = Counter(name.partition("/")[0] for name in names)
    return [Group(name, count) for name, count in sorted(counts.items())]


def found_charts(run: Run, search: str = "", group: str = "") -> tuple[list[ChartSpec], int]:
    """Charts of the metrics whose path holds every word of `search` and begins with `group`; and how many more there are."""
    rows = Series.objects.filter(run=run)
    if group:
        rows = rows.filter(name__regex=rf"^{_escaped(group)}(/|$)")
    for word in search.split():
        rows = rows.filter(name__icontains=word)
    found = list(rows.order_by("name", "axis").values_list("name", "axis"))
    return [chart(name, (name,), axis == Axis.WALL) for name, axis in found[:MOST_FOUND]], max(0, len(found) - MOST_FOUND)


def _escaped(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter == "_" else f"\\{letter}" for letter in text)


# ---------------------------------------------------------------- the lane
def marked_events(run: Run) -> list[dict]:
    """What is marked below the charts, as live frames carry events; incidents take negative ids, so that the two never meet."""
    events = [event_row(event) for event in run.events.filter(kind__in=MARKED).select_related("actor").order_by("-id")[:MOST_MARKS]]
    return events + [_incident_row(incident) for incident in Incident.objects.filter(run=run).order_by("-id")[:MOST_MARKS]]


def _incident_row(incident: Incident) -> dict:
    data = {"message": incident.message}
    return {"id": -incident.pk, "kind": "incident", "step": incident.opened_step, "at": incident.opened_at.isoformat(), "data": data}


def mark_pages(run: Run) -> dict[str, str]:
    """Where a click on each kind of mark leads."""
    names = {"checkpoint": "run-checkpoints", "evaluation": "run-evaluation", "stage": "run-audit", "incident": "run-audit"}
    return {kind: reverse(name, args=[run.pk]) for kind, name in names.items()}
