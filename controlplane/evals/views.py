"""The evaluation tab of a run: every held-out pass with its intervals, and the first against the last, task by task."""

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.evals import selectors
from controlplane.runs.run_views import find_run, live_info, page_context


@login_required
@require_GET
def evaluation(request: HttpRequest, pk) -> HttpResponse:
    run = find_run(request, pk)
    context = page_context(request, run, "evaluation")
    context |= {"protocols": selectors.report(run), "run_info": live_info(run, context["attempts"])}
    return render(request, "runs/run/evaluation.html", context)
