"""Reads over nodes, grants and the reconciler's word."""

from dataclasses import dataclass
from datetime import timedelta

from django.db.models import Case, Prefetch, Sum, When
from django.utils import timezone

from controlplane.cluster.allocator import Amount, Bundle, Holding, Request, decide, explain_impossible
from controlplane.cluster.models import Grant, GrantState, Node, NodeState, ReconcilerTick, Share
from controlplane.runs.models import Run
from runner.contract.states import RunState

# Ray was asked at most this long ago; an older capacity grants nothing.
FRESH = timedelta(seconds=30)
LATE_TICK_S = 30.0
HOLDING = [GrantState.HELD, GrantState.RELEASING, GrantState.QUARANTINED]


def capacity(nodes) -> dict[str, Amount]:
    """What each schedulable node of `nodes` has, free or not."""
    fresh = timezone.now() - FRESH
    return {
        node.name: Amount(node.cpus, node.gpus) for node in nodes if node.state == NodeState.READY and node.last_seen_at and node.last_seen_at > fresh
    }


def holdings() -> list[Holding]:
    """Every share that is not yet free again, quarantined ones included."""
    shares = Share.objects.filter(grant__state__in=HOLDING).select_related("node", "grant__attempt__run__project")
    return [
        Holding(share.node.name, Amount(share.cpus, share.gpus), share.grant.attempt.run.name, share.grant.attempt.run.project.team_id)
        for share in shares
    ]


def nodes():
    """Nodes with the shares held on them, for cards."""
    held = Share.objects.filter(grant__state__in=HOLDING).select_related("grant__attempt__run__project").order_by("grant_id", "bundle")
    return Node.objects.prefetch_related(Prefetch("shares", held, to_attr="held_shares"))


def free_of(node: Node) -> Amount:
    """What no share holds of a node read by `nodes()`."""
    held = sum((Amount(share.cpus, share.gpus) for share in node.held_shares), Amount())
    return (Amount(node.cpus, node.gpus) - held).positive


def total_memory() -> int:
    """Bytes over all ready nodes; 0 when none has reported."""
    return Node.objects.filter(state=NodeState.READY).aggregate(total=Sum("memory"))["total"] or 0


def why_impossible(bundles: tuple[Bundle, ...]) -> str | None:
    """The numbers when not even the idle cluster holds the gang. None while no node is known: then nothing can be said."""
    known = {node.name: Amount(node.cpus, node.gpus) for node in Node.objects.exclude(state=NodeState.GONE)}
    return explain_impossible(bundles, known) if known else None


def why_would_wait(bundles: tuple[Bundle, ...], team: int | None = None) -> str | None:
    """The sentence a run of `team` with `bundles` would show if it were first in the queue now; None when it would start."""
    [decision] = decide([Request("forecast", bundles, team=team)], capacity(Node.objects.all()), holdings())
    return None if decision.places else decision.why


def team_ids(user) -> set[int]:
    """Teams whose rows the request may see."""
    teams = set(user.memberships.values_list("team_id", flat=True))
    return teams if user.token is None else teams & {user.token.team_id}


def queue(user) -> list[Run]:
    """The user's waiting runs in the order in which they are considered; `position` counts the runs of every team."""
    waiting = Run.objects.filter(state=RunState.QUEUED).annotate(reserves=Case(When(reservation=None, then=1), default=0))
    places = {key: place for place, key in enumerate(waiting.order_by("reserves", "-priority", "queued_at", "pk").values_list("pk", flat=True), start=1)}
    mine = list(Run.objects.for_user(user).filter(pk__in=places).select_related("project", "owner", "reservation").defer("config", "document"))
    for run in mine:
        run.position = places[run.pk]
    return sorted(mine, key=lambda run: run.position)


def quarantined():
    return Grant.objects.filter(state=GrantState.QUARANTINED).select_related("attempt__run__project").prefetch_related("shares__node")


@dataclass(frozen=True)
class TickAge:
    """How long ago the reconciler spoke; `seconds` is None when it never did."""

    seconds: float | None
    error: str

    @property
    def is_late(self) -> bool:
        return self.seconds is None or self.seconds > LATE_TICK_S


def tick_age() -> TickAge:
    tick = ReconcilerTick.objects.first()
    return TickAge((timezone.now() - tick.at).total_seconds(), tick.error) if tick else TickAge(None, "")
