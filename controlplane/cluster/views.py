"""The cluster page: nodes and what is held of them, the queue with its reasons, the reconciler's word."""

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from controlplane.accounts.choices import Role
from controlplane.cluster import selectors, services
from controlplane.cluster.models import Node, NodeState
from controlplane.runs.models import Run
from runner.contract.states import RunState


@login_required
@require_safe
def cluster(request: HttpRequest) -> HttpResponse:
    """The page, or only its content when the live topic says that something changed."""
    mine = set(request.user.memberships.values_list("team_id", flat=True))
    nodes = [_card(node, mine) for node in selectors.nodes()]
    context = {
        "nodes": nodes,
        "queue": _queue(request.user),
        "others_waiting": Run.objects.filter(state=RunState.QUEUED).exclude(project__team__in=mine).count(),
        "quarantined": [(grant, grant.attempt.run.project.team_id in mine) for grant in selectors.quarantined()],
        "total": _total([card["node"] for card in nodes if card["node"].state != NodeState.GONE]),
        "may_cordon": request.user.memberships.filter(role=Role.ADMIN).exists(),
    }
    return render(request, "cluster/_content.html" if request.headers.get("HX-Request") else "cluster/cluster.html", context)


def _total(nodes: list[Node]) -> dict:
    """What the machines that are there have, cordoned ones included."""
    return {"cpus": sum(node.cpus for node in nodes), "gpus": sum(node.gpus for node in nodes)}


def _queue(user):
    """The user's waiting runs, in the order in which they are considered."""
    return Run.objects.for_user(user).filter(state=RunState.QUEUED).select_related("project", "owner", "reservation").order_by("-priority", "queued_at")


def _card(node: Node, teams: set[int]) -> dict:
    """A node with its bars; what other teams hold is counted, not named."""
    free = selectors.free_of(node)
    shares = [{"share": share, "run": share.grant.attempt.run, "mine": share.grant.attempt.run.project.team_id in teams} for share in node.held_shares]
    bars = [_bar("CPUs", node.cpus - free.cpus, node.cpus), _bar("GPUs", node.gpus - free.gpus, node.gpus)]
    if node.disk_total:
        bars.append(_bar("Disk", node.disk_total - (node.disk_free or 0), node.disk_total, is_size=True))
    # A driver tells of the GPUs of its own node.
    devices = [{**device, "held": held} for held in shares if held["share"].bundle == "driver" for device in held["share"].grant.attempt.devices]
    return {"node": node, "bars": [bar for bar in bars if bar["total"]], "shares": shares, "devices": devices}


def _bar(label: str, used, total, is_size: bool = False) -> dict:
    fraction = float(used) / float(total) if total else 0.0
    return {"label": label, "used": used, "total": total, "fraction": round(fraction, 4), "is_size": is_size, "level": "over" if fraction > 0.95 and is_size else ""}


@login_required
@require_POST
def cordon(request: HttpRequest, pk: int) -> HttpResponse:
    node = get_object_or_404(Node, pk=pk)
    cordoned = request.POST.get("cordoned") == "1"
    services.set_cordoned(request.user, node, cordoned)
    messages.success(request, f"{node.name} {'takes no new runs' if cordoned else 'takes runs again'}")
    return redirect("cluster")
