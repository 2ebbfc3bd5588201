"""Writes over nodes and grants."""

from decimal import Decimal

from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.utils import timezone

from controlplane.accounts.roles import may
from controlplane.accounts.services import record
from controlplane.cluster.models import Grant, GrantState, Node, NodeState
from controlplane.runs.changes import append_event, lock_run
from controlplane.telemetry import live

MEMORY_STEP = 1 << 20


@transaction.atomic
def sync_nodes(reports) -> None:
    """Write what Ray reports: new nodes appear, changed capacities are taken over, missing nodes are gone.

    A cordoned node stays cordoned while it lives. `reports` are NodeReport.
    """
    now, known = timezone.now(), {node.name: node for node in Node.objects.select_for_update().order_by("name")}
    before = {name: _shown(node) for name, node in known.items()}
    for report in sorted(reports, key=lambda report: report.name):
        node = known.setdefault(report.name, Node(name=report.name))
        node.address, node.ray_id, node.resource = report.address, report.ray_id, report.resource
        node.cpus, node.gpus, node.memory = Decimal(str(report.cpus)).quantize(Decimal("0.001")), report.gpus, report.memory
        node.state = NodeState.READY if node.state == NodeState.GONE else node.state
        node.last_seen_at = now
        node.save()
    present = {report.name for report in reports}
    Node.objects.exclude(name__in=present).exclude(state=NodeState.GONE).update(state=NodeState.GONE)
    after = {node.name: _shown(node) for node in Node.objects.all()}
    if after != before:
        live.notify_cluster()


def _shown(node: Node) -> tuple:
    return node.state, node.cpus, node.gpus, node.memory // MEMORY_STEP


@transaction.atomic
def set_cordoned(user, node: Node, cordoned: bool) -> Node:
    """Keep new runs off a node, or let them on again; what runs there goes on. Only an admin of a team may."""
    teams = [membership.team for membership in user.memberships.select_related("team") if may(user, membership.team, "node.cordon")]
    if not teams:
        raise PermissionDenied("only an admin may cordon a node")
    source, target = (NodeState.READY, NodeState.CORDONED) if cordoned else (NodeState.CORDONED, NodeState.READY)
    if Node.objects.filter(pk=node.pk, state=source).update(state=target):
        record(user, "node.cordon", node, {"cordoned": cordoned}, team=teams[0])
        live.notify_cluster()
    node.refresh_from_db()
    return node


def begin_release(grant: Grant) -> None:
    """The attempt ended; the grant is held until its processes were seen gone."""
    Grant.objects.filter(pk=grant.pk, state=GrantState.HELD).update(state=GrantState.RELEASING)
    live.notify_cluster()


@transaction.atomic
def release(grant: Grant) -> bool:
    """Give the capacity back. False when another writer did."""
    run = lock_run(grant.attempt.run_id)
    held = Grant.objects.filter(pk=grant.pk, state__in=[GrantState.RELEASING, GrantState.QUARANTINED])
    if not held.update(state=GrantState.RELEASED, released_at=timezone.now(), reason=""):
        return False
    append_event(run, "grant_released", attempt=grant.attempt.number)
    live.notify_cluster()
    return True


@transaction.atomic
def quarantine(grant: Grant, reason: str) -> bool:
    """Keep the capacity from everybody, because something of the attempt may still run. The reason is shown."""
    run = lock_run(grant.attempt.run_id)
    if not Grant.objects.filter(pk=grant.pk, state=GrantState.RELEASING).update(state=GrantState.QUARANTINED, reason=reason):
        return False
    append_event(run, "grant_quarantined", attempt=grant.attempt.number, reason=reason)
    live.notify_cluster()
    return True
