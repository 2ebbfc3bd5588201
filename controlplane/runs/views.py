"""The list of runs: one page, its live rows, and what is done to several runs at once."""

import uuid

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from controlplane.runs import listing, services
from controlplane.runs.exceptions import Conflict
from controlplane.runs.models import Run
from controlplane.telemetry.sparklines import sparklines
from controlplane.telemetry.services import HEADLINES
from runner.contract.metrics import lookup

COLUMNS = {HEADLINES[name]: lookup(name) for name in (listing.REWARD, "response_length/mean", "verifier_error/fraction")}
MOST_COMPARED = 10
BULK = {
    "stop": (services.request_stop, "asked to stop"),
    "archive": (lambda user, run: services.archive(user, [run]), "archived"),
    "restore": (lambda user, run: services.archive(user, [run], archived=False), "restored"),
}


def _rows(runs: list[Run]) -> list[dict]:
    """A run with its sparkline and the headline values of its latest step."""
    lines = sparklines([run.pk for run in runs], listing.REWARD)
    return [{"run": run, "spark": lines.get(run.pk), **{key: run.latest.get(key, {}).get("value") for key in COLUMNS}} for run in runs]


@login_required
@require_safe
def run_list(request: HttpRequest) -> HttpResponse:
    """The whole page, or only the table when htmx asks for it."""
    try:
        filters = listing.RunFilters.parse(request.GET)
        page = listing.page(request.user, filters, request.GET.get("cursor"))
    except listing.InvalidFilter as error:
        raise BadRequest(str(error)) from None
    total, facets = listing.facets(request.user, filters)
    context = {
        "filters": filters,
        "facets": facets,
        "total": total,
        "page": page,
        "rows": _rows(page.runs),
        "columns": COLUMNS,
        "most_compared": MOST_COMPARED,
    }
    partial = request.headers.get("HX-Request") and not request.headers.get("HX-History-Restore-Request")
    return render(request, "runs/_update.html" if partial else "runs/list.html", context)


@login_required
@require_safe
def run_rows(request: HttpRequest) -> HttpResponse:
    """Fresh rows of the runs in `ids`, for the live list to patch in place."""
    ids = _ids(request.GET.get("ids", "").split(","))[: listing.PAGE]
    return render(request, "runs/_rows.html", {"rows": _rows(listing.by_ids(request.user, ids))})


def _ids(texts: list[str]) -> list[uuid.UUID]:
    try:
        return [uuid.UUID(text) for text in texts if text]
    except ValueError as error:
        raise BadRequest(f"ids: {error}; each must be a run's identifier") from None


@login_required
@require_POST
def bulk(request: HttpRequest) -> HttpResponse:
    """Stop, archive or restore the selected runs; each is checked on its own and refusals are named."""
    action = request.POST.get("action")
    if action not in BULK:
        raise BadRequest(f"action: {action!r} is none of {', '.join(BULK)}")
    act, past = BULK[action]
    runs = Run.objects.for_user(request.user).filter(pk__in=_ids(request.POST.get("ids", "").split(",")))
    done = sum(_attempted(request, act, run) for run in runs)
    if done:
        messages.success(request, f"{done} run{'s' if done != 1 else ''} {past}")
    return redirect(request.POST.get("next") if request.POST.get("next", "").startswith("/runs") else reverse("runs"))


def _attempted(request: HttpRequest, act, run: Run) -> bool:
    try:
        act(request.user, run)
    except Conflict as error:
        messages.error(request, f"{run.name}: {error}")
        return False
    return True
