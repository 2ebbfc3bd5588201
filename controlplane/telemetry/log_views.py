"""The log tab of a run: filtered, searched, paged backwards, and followed live by the page's script."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from controlplane.page_errors import whole
from controlplane.runs.run_views import find_run, page_context
from controlplane.telemetry.models import LogLine
from controlplane.telemetry.selectors import search_logs
from runner.contract.events import LOG_LEVELS

PAGE = 200


@login_required
@require_safe
def logs(request: HttpRequest, pk) -> HttpResponse:
    """The newest lines, or with `before` the page above them for htmx to put on top."""
    run = find_run(request, pk)
    wanted = _wanted(request)
    lines = search_logs(run, **wanted, limit=PAGE + 1)
    older, lines = len(lines) > PAGE, lines[-PAGE:]
    partial = "before" in wanted
    context = {} if partial else page_context(request, run, "logs") | {"components": components(run)}
    context |= {
        "run": run,
        "lines": lines,
        "older": older,
        "levels": LOG_LEVELS,
        "chosen_levels": wanted["levels"],
        "chosen_components": wanted["components"],
    }
    return render(request, "runs/run/_lines.html" if partial or request.headers.get("HX-Request") else "runs/run/logs.html", context)


def _wanted(request: HttpRequest) -> dict:
    """`search_logs`' arguments from the query."""
    # A menu left at "all" sends a blank.
    chosen = {name: [value for value in request.GET.getlist(name) if value] for name in ("component", "level")}
    wanted = {"search": request.GET.get("q", "").strip(), "components": chosen["component"], "levels": chosen["level"]}
    for name in ("before", "attempt"):
        if text := request.GET.get(name):
            wanted[name] = whole(name, text)
    return wanted


def components(run) -> list[str]:
    return list(LogLine.objects.filter(run=run).order_by("component").values_list("component", flat=True).distinct())
