"""The page of one run: header and tabs, what its charts need, and what may be done to it."""

import json
from collections.abc import Callable

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from controlplane.accounts.idempotency import once_per_form
from controlplane.accounts.models import AuditEntry
from controlplane.accounts.roles import may
from controlplane.alerts.selectors import health_tiles
from controlplane.api.rate_limit import limited_page
from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.selectors import resume_point
from controlplane.page_errors import whole
from controlplane.runs import dashboard, selectors, services
from controlplane.runs.exceptions import Conflict
from controlplane.runs.forms.text import as_cli, as_python, as_yaml
from controlplane.runs.models import Attempt, Run
from controlplane.telemetry.delta import run_state
from runner.contract.states import CheckpointState, RunState

ENDED = (RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.LOST)
RESUMABLE = (RunState.FAILED, RunState.STOPPED, RunState.LOST)
EVENTS_SHOWN = 200
# RUN is replaced by the page's script with each run's identifier.
POINTS_URL = "/api/v1/runs/RUN/points"
AXES = (("step", "Step"), ("wall", "Time"), ("tokens", "Tokens"))


def find_run(request: HttpRequest, pk) -> Run:
    """The run, or 404 also for those who may not see it. One query, with what every tab shows of it."""
    found = Run.objects.for_user(request.user).select_related("project__team", "owner", "parent")
    return get_object_or_404(found, pk=pk)


def page_context(request: HttpRequest, run: Run, tab: str) -> dict:
    """What the header and the tabs need."""
    attempts = list(run.attempts.all())
    return {
        "run": run,
        "tab": tab,
        "attempts": attempts,
        "attempt": attempts[-1] if attempts else None,
        "elapsed": elapsed(run),
        "gpu_hours": gpu_hours(run, attempts),
        "eta": run_state(run, attempts)["eta_s"],
        "run_info": live_info(run, attempts),
        "may_work": may(request.user, run.project.team, "run.stop"),
        "live": run.state not in ENDED,
        "can_resume": run.state in RESUMABLE and resume_point(run) is not None,
        "can_retry": run.state in RESUMABLE,
        "counts": _counts(run),
    }


def elapsed(run: Run) -> float | None:
    """Seconds since the run first started, up to its end."""
    return ((run.ended_at or timezone.now()) - run.started_at).total_seconds() if run.started_at else None


def gpu_hours(run: Run, attempts: list[Attempt]) -> float | None:
    """Of all attempts, from their submission to their end; None for a run that asks for no GPU."""
    gpus = json.loads(run.config).get("resources", {}).get("gpus", 0)
    held = (((attempt.ended_at or timezone.now()) - attempt.submitted_at).total_seconds() for attempt in attempts if attempt.submitted_at)
    return gpus * sum(held) / 3600 if gpus else None


def _counts(run: Run) -> dict:
    kept = Q(checkpoints__state__in=[CheckpointState.COMPLETE, CheckpointState.WRITING])
    return Run.objects.filter(pk=run.pk).aggregate(
        checkpoints=Count("checkpoints", kept, distinct=True), evaluations=Count("evaluations", distinct=True)
    )


# ---------------------------------------------------------------- overview
@login_required
@require_safe
def overview(request: HttpRequest, pk) -> HttpResponse:
    run = find_run(request, pk)
    if run.is_evaluation:
        return redirect("run-evaluation", run.pk)
    context = page_context(request, run, "overview")
    context |= {
        "tiles": health_tiles(run),
        "axes": AXES,
        "charts": dashboard.default_charts(run),
        "groups": dashboard.metric_groups(run),
        "dashboard": {
            "runs": [context["run_info"]],
            "points": POINTS_URL,
            "events": dashboard.marked_events(run),
            "pages": dashboard.mark_pages(run),
        },
    }
    return render(request, "runs/run/overview.html", context)


def live_info(run: Run, attempts: list[Attempt]) -> dict:
    """What the page's script must know to draw and follow a run."""
    started = [{"number": attempt.number, "first_step": attempt.first_step} for attempt in attempts if attempt.first_step is not None]
    return {"id": str(run.pk), "cursor": run.seq, "live": run.state not in ENDED, "attempts": started}


@login_required
@require_safe
def header(request: HttpRequest, pk) -> HttpResponse:
    """Header and health strip, read again when the run changed."""
    run = find_run(request, pk)
    context = page_context(request, run, request.GET.get("tab", "overview"))
    if context["tab"] == "overview":
        context["tiles"] = health_tiles(run)
    return render(request, "runs/run/_header.html", context)


@login_required
@require_safe
def metrics(request: HttpRequest, pk) -> HttpResponse:
    """Charts of one group of metrics, or of those a search finds."""
    run = find_run(request, pk)
    search, group = request.GET.get("q", "").strip(), request.GET.get("group", "")
    if not search and not group:
        return render(request, "runs/run/_groups.html", {"run": run, "groups": dashboard.metric_groups(run)})
    charts, more = dashboard.found_charts(run, search, group)
    return render(request, "runs/run/_found.html", {"run": run, "charts": charts, "more": more, "search": search})


# ---------------------------------------------------------------- config and audit
@login_required
@require_safe
def config(request: HttpRequest, pk) -> HttpResponse:
    """The resolved document as the runner gets it, and how it differs from its parent's."""
    run = find_run(request, pk)
    document = selectors.resolved_document(run)
    context = page_context(request, run, "config")
    written = [("yaml", "YAML", as_yaml(document)), ("json", "JSON", json.dumps(document, indent=2, ensure_ascii=False))]
    launched = [("cli", "Command line", as_cli(document)), ("python", "Python", as_python(document))]
    context |= {
        "forms": written if run.is_evaluation else written + launched,
        "difference": selectors.difference_from_parent(run),
    }
    return render(request, "runs/run/config.html", context)


@login_required
@require_safe
def audit(request: HttpRequest, pk) -> HttpResponse:
    """The run's own events and what people did to it."""
    run = find_run(request, pk)
    events = run.events.select_related("actor").order_by("-id")
    if before := request.GET.get("before"):
        events = events.filter(id__lt=whole("before", before))
    shown = list(events[: EVENTS_SHOWN + 1])
    entries = AuditEntry.objects.for_user(request.user).filter(kind="run", object_id=str(run.pk)).select_related("actor").order_by("-id")
    context = page_context(request, run, "audit")
    context |= {
        "events": shown[:EVENTS_SHOWN],
        "older": len(shown) > EVENTS_SHOWN and shown[EVENTS_SHOWN - 1].pk,
        "entries": entries[:EVENTS_SHOWN],
    }
    return render(request, "runs/run/audit.html", context)


# ---------------------------------------------------------------- actions
def _act(request: HttpRequest, run: Run, verb, said: str) -> HttpResponse:
    try:
        verb()
        messages.success(request, said)
    except Conflict as error:
        messages.error(request, str(error))
    return redirect("run", run.pk)


def _once(request: HttpRequest, verb: Callable[[], Run]) -> Callable[[], object]:
    """A new attempt for each form, not for each time it is sent: a short attempt may have ended before the second time."""
    return lambda: once_per_form(request, lambda: str(verb().pk))


@login_required
@require_POST
def stop(request: HttpRequest, pk) -> HttpResponse:
    run = find_run(request, pk)
    return _act(request, run, lambda: services.request_stop(request.user, run), f"{run.name} was asked to stop")


@login_required
@require_POST
@limited_page("launch")
def resume(request: HttpRequest, pk) -> HttpResponse:
    """Continue from the newest complete checkpoint, or from the one that was chosen."""
    run, chosen = find_run(request, pk), request.POST.get("checkpoint")
    checkpoint = get_object_or_404(Checkpoint.objects.for_user(request.user).filter(run=run), pk=chosen) if chosen else None
    return _act(request, run, _once(request, lambda: services.resume(request.user, run, checkpoint)), f"{run.name} is queued to continue")


@login_required
@require_POST
@limited_page("launch")
def retry(request: HttpRequest, pk) -> HttpResponse:
    run = find_run(request, pk)
    return _act(request, run, _once(request, lambda: services.retry(request.user, run)), f"{run.name} is queued again")


@login_required
@require_POST
def archive(request: HttpRequest, pk) -> HttpResponse:
    run, archived = find_run(request, pk), request.POST.get("archived") != "0"
    word = "archived" if archived else "back in the list"
    return _act(request, run, lambda: services.archive(request.user, [run], archived), f"{run.name} is {word}")
