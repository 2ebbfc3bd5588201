"""The checkpoints tab of a run."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from controlplane.checkpoints import peaks, selectors, services
from controlplane.checkpoints.models import Checkpoint
from controlplane.runs.run_views import find_run, page_context


@login_required
@require_safe
def checkpoints(request: HttpRequest, pk) -> HttpResponse:
    run = find_run(request, pk)
    rows = list(selectors.for_run(run).defer("trained_on"))
    names = sorted({name for row in rows for name in row.metrics})
    held = sum(row.size or 0 for row in rows if row.state == "complete")
    context = {"checkpoints": rows, "metrics": names, "held": held, "lost_peaks": peaks.lost_peaks(run)}
    return render(request, "runs/run/checkpoints.html", page_context(request, run, "checkpoints") | context)


@login_required
@require_POST
def pin(request: HttpRequest, pk) -> HttpResponse:
    """Keep a checkpoint whatever retention says, or leave it to retention again."""
    checkpoint = get_object_or_404(Checkpoint.objects.for_user(request.user).select_related("run__project__team"), pk=pk)
    pinned = request.POST.get("pinned") == "1"
    services.set_pinned(request.user, checkpoint, pinned)
    messages.success(request, f"Step {checkpoint.step} is {'pinned' if pinned else 'no longer pinned'}")
    return redirect("run-checkpoints", checkpoint.run_id)
