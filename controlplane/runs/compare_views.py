"""Two to ten runs over one another: curves, the configuration keys that differ, final values, paired results."""

import json
import uuid
from itertools import chain

from django.contrib.auth.decorators import login_required
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from controlplane.evals import selectors as evals
from controlplane.runs import selectors
from controlplane.runs.dashboard import ChartSpec
from controlplane.runs.models import Run
from controlplane.runs.run_views import AXES, POINTS_URL, live_info
from controlplane.telemetry.services import HEADLINES
from controlplane.templatetags.ui import COLOURS, colour_index
from runner.contract.metrics import DASHBOARD, lookup

FEWEST, MOST = 2, 10


@login_required
@require_safe
def compare(request: HttpRequest) -> HttpResponse:
    """`runs` lists the identifiers; the first one is what the others are held against unless `baseline` names another."""
    runs = _runs(request)
    context = {"runs": runs, "fewest": FEWEST, "most": MOST}
    if len(runs) >= FEWEST:
        baseline = next((run for run in runs if str(run.pk) == request.GET.get("baseline")), runs[0])
        attempts = {run.pk: list(run.attempts.all()) for run in runs}
        context |= {
            "axes": AXES,
            "baseline": baseline,
            "charts": overlays(runs, request.GET.get("metric", "").strip()),
            "differences": [{"pointer": pointer, "values": values} for pointer, values in selectors.differences(runs).items()],
            "finals": [(lookup(name), [run.latest.get(key, {}) for run in runs]) for name, key in HEADLINES.items()],
            **_held_out(runs, baseline),
            "dashboard": {"runs": [live_info(run, attempts[run.pk]) for run in runs], "points": POINTS_URL, "events": [], "pages": {}},
        }
    return render(request, "compare/compare.html", context)


def _held_out(runs: list[Run], baseline: Run) -> dict:
    """The last evaluation of each run under the protocol that most share, each paired with the baseline's."""
    last = evals.last_by_protocol(runs)
    others = [last[run.pk] for run in runs if run != baseline and run.pk in last]
    comparisons = [evals.paired_with_each(last[baseline.pk], others, column) for column in reversed(evals.COLUMNS)] if baseline.pk in last else []
    found = {one.after.run_id: [] for one in chain(*comparisons)}
    for one in chain(*comparisons):
        found[one.after.run_id] += [one] if one.n else []
    paired = [{"run": run, "evaluation": last.get(run.pk), "comparisons": found.get(run.pk, [])} for run in runs]
    return {"last": last, "paired": paired}


def _runs(request: HttpRequest) -> list[Run]:
    """The wanted runs in the order of the URL, each with the colour it keeps on this page as `colour`."""
    wanted = [text for text in request.GET.get("runs", "").split(",") if text]
    try:
        ids = list(dict.fromkeys(uuid.UUID(text) for text in wanted))
    except ValueError as error:
        raise BadRequest(f"runs: {error}; each must be a run's identifier") from None
    if len(ids) > MOST:
        raise BadRequest(f"runs: {len(ids)} were named; compare at most {MOST}")
    found = {run.pk: run for run in Run.objects.for_user(request.user).filter(pk__in=ids).select_related("project", "owner").prefetch_related("attempts")}
    runs = [found[pk] for pk in ids if pk in found]
    _colour(runs)
    return runs


def _colour(runs: list[Run]) -> None:
    """Each run its own colour for ever, except where two would share one: the later one takes the next that is free."""
    taken: set[int] = set()
    for run in sorted(runs, key=lambda run: (run.created_at, run.pk)):
        run.colour = next(index % COLOURS for index in range(colour_index(run.pk), colour_index(run.pk) + COLOURS) if index % COLOURS not in taken)
        taken.add(run.colour)


def overlays(runs: list[Run], metric: str = "") -> list[ChartSpec]:
    """One chart a metric with a line a run: the dashboard's leading metrics, after the one that was asked for."""
    names = dict.fromkeys(([metric] if metric else []) + [names[0] for _, names in DASHBOARD])
    return [_overlay(runs, name) for name in names]


def _overlay(runs: list[Run], name: str) -> ChartSpec:
    metric = lookup(name)
    lines = [{"run": str(run.pk), "name": name, "label": run.name, "colour": run.colour} for run in runs]
    return ChartSpec(metric.title if metric else name, json.dumps(lines), [metric] if metric else [], unit=metric.unit if metric else "")
