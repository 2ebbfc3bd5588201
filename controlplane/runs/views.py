"""The list of runs: one page, its live rows, and what is done to several runs at once."""

import uuid

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import BadRequest, ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from controlplane.accounts.choices import Role
from controlplane.accounts.models import Team
from controlplane.page_errors import whole
from controlplane.runs import columns, listing, recipes, saved_views, services
from controlplane.runs.exceptions import Conflict
from controlplane.runs.models import Run
from controlplane.telemetry.services import HEADLINES
from controlplane.telemetry.sparklines import sparklines
from runner.contract.metrics import lookup

MOST_COMPARED = 10
# What a folded row measures: key, heading, decimals, and the dictionary's entry behind it.
MEASURES = [
    (key, label, decimals, lookup(next(name for name, short in HEADLINES.items() if short == key)))
    for key, label, decimals in (
        ("reward", "Reward", 3),
        ("forced_choice", "Forced choice", 3),
        ("accuracy", "Accuracy", 3),
        ("verifier_error", "Verifier err.", 3),
        ("length", "Length", 1),
    )
]
BULK = {
    "stop": (lambda user, run, tag: services.request_stop(user, run), "asked to stop"),
    "archive": (lambda user, run, tag: services.archive(user, [run]), "archived"),
    "restore": (lambda user, run, tag: services.archive(user, [run], archived=False), "restored"),
    "tag": (lambda user, run, tag: services.retag(user, run, [*run.tags, tag]), "tagged"),
    "untag": (lambda user, run, tag: services.retag(user, run, [one for one in run.tags if one != tag]), "freed of the tag"),
}


def _rows(runs: list[Run], shown: list[columns.Column]) -> list[dict]:
    """A run with the newest values of its measured columns, and its sparkline where that is a column."""
    wants_trend = any(column.key == "trend" for column in shown)
    lines = sparklines([run.pk for run in runs], listing.REWARD) if wants_trend else {}
    return [{"run": run, "spark": lines.get(run.pk), "cells": [(column, _value(run, column)) for column in shown]} for run in runs]


def _value(run: Run, column: columns.Column) -> float | None:
    return run.latest.get(column.key, {}).get("value") if column.is_measured else None


@login_required
@require_safe
def run_list(request: HttpRequest) -> HttpResponse:
    """The whole page, or only the table when htmx asks for it; with `group=seed` a row is a recipe and its seeds."""
    try:
        filters = listing.RunFilters.parse(request.GET)
        by_seed = request.GET.get("group") == "seed"
        shown = columns.chosen(request.GET)
        context = (_seeds_context if by_seed else _runs_context)(request, filters, shown)
    except listing.InvalidFilter as error:
        raise BadRequest(str(error)) from None
    total, facets = listing.facets(request.user, filters)
    context |= {
        "filters": filters,
        "by_seed": by_seed,
        "facets": facets,
        "total": total,
        "columns": shown,
        "rows_query": columns.query(shown),
        "offered": columns.COLUMNS,
        "usual": ",".join(columns.USUAL),
        "most_compared": MOST_COMPARED,
    }
    context |= _views_context(request)
    partial = request.headers.get("HX-Request") and not request.headers.get("HX-History-Restore-Request")
    return render(request, "runs/_update.html" if partial else "runs/list.html", context)


def _runs_context(request: HttpRequest, filters: listing.RunFilters, shown: list[columns.Column]) -> dict:
    page = listing.page(request.user, filters, request.GET.get("cursor"))
    return {"page": page, "rows": _rows(page.runs, shown)}


def _seeds_context(request: HttpRequest, filters: listing.RunFilters, shown: list[columns.Column]) -> dict:
    """Runs folded by recipe; pages are numbered, because the aggregates have no stable key to go on from."""
    offset = whole("cursor", request.GET.get("cursor") or "0")
    groups, more = recipes.groups(request.user, filters, offset)
    return {
        "groups": groups,
        "measures": MEASURES,
        "next_offset": offset + len(groups) if more else None,
        "recipes": recipes.count(request.user, filters),
    }


def _views_context(request: HttpRequest) -> dict:
    """The saved views, and which of them the page shows now."""
    now = saved_views.kept(request.GET)
    views = list(saved_views.visible(request.user))
    memberships = request.user.memberships.exclude(role=Role.VIEWER).select_related("team")
    return {
        "views": views,
        "query": now,
        "view": next((view for view in views if view.query == now), None),
        "shareable": [one.team for one in memberships],
    }


@login_required
@require_safe
def run_rows(request: HttpRequest) -> HttpResponse:
    """Fresh rows of the runs in `ids`, for the live list to patch in place."""
    ids = _ids(request.GET.get("ids", "").split(","))[: listing.PAGE]
    try:
        shown = columns.chosen(request.GET)
    except listing.InvalidFilter as error:
        raise BadRequest(str(error)) from None
    return render(request, "runs/_rows.html", {"rows": _rows(listing.by_ids(request.user, ids), shown)})


def _ids(texts: list[str]) -> list[uuid.UUID]:
    try:
        return [uuid.UUID(text) for text in texts if text]
    except ValueError as error:
        raise BadRequest(f"ids: {error}; each must be a run's identifier") from None


@login_required
@require_POST
def bulk(request: HttpRequest) -> HttpResponse:
    """Stop, archive, restore, tag or untag the selected runs; each is checked on its own and refusals are named."""
    action = request.POST.get("action")
    if action not in BULK:
        raise BadRequest(f"action: {action!r} is none of {', '.join(BULK)}")
    act, past = BULK[action]
    tag = request.POST.get("tag", "").strip()
    if action in ("tag", "untag") and not tag:
        raise BadRequest("tag: empty; name the tag")
    runs = Run.objects.for_user(request.user).filter(pk__in=_ids(request.POST.get("ids", "").split(",")))
    done = sum(_attempted(request, act, run, tag) for run in runs)
    if done:
        messages.success(request, f"{done} run{'s' if done != 1 else ''} {past}")
    return redirect(request.POST.get("next") if request.POST.get("next", "").startswith("/runs") else reverse("runs"))


def _attempted(request: HttpRequest, act, run: Run, tag: str) -> bool:
    try:
        act(request.user, run, tag)
    except (Conflict, ValidationError) as error:
        messages.error(request, f"{run.name}: {' '.join(error.messages) if isinstance(error, ValidationError) else error}")
        return False
    return True


# ---------------------------------------------------------------- saved views
@login_required
@require_POST
def save_view(request: HttpRequest) -> HttpResponse:
    """Keep the posted query under a name; lead back to it."""
    team = (
        get_object_or_404(Team, memberships__user=request.user, pk=whole("team", request.POST["team"]))
        if request.POST.get("team")
        else None
    )
    try:
        view = saved_views.save(request.user, request.POST.get("name", ""), request.POST.get("query", ""), team)
    except ValidationError as error:
        messages.error(request, " ".join(error.messages))
        return redirect("runs")
    messages.success(request, f"View {view.name} is saved{f' for {team.name}' if team else ''}")
    return redirect(f"{reverse('runs')}?{view.query}")


@login_required
@require_POST
def delete_view(request: HttpRequest, pk: int) -> HttpResponse:
    view = get_object_or_404(saved_views.visible(request.user), pk=pk)
    saved_views.delete(request.user, view)
    messages.success(request, f"View {view.name} is deleted")
    return redirect("runs")
