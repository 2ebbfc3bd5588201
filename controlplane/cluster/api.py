"""REST: nodes with what is free of them, and the queue with its reasons."""

from datetime import datetime
from uuid import UUID

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from controlplane.api.pagination import Page, Paging
from controlplane.cluster import selectors
from controlplane.cluster.models import Node, Share

router = Router(tags=["cluster"])


class ShareOut(Schema):
    run: UUID | None = Field(description="Null for a run of a team you are not in.")
    bundle: str
    cpus: float
    gpus: int
    state: str = Field(alias="grant.state")


class NodeOut(Schema):
    id: int
    name: str
    address: str
    state: str
    cpus: float
    gpus: int
    memory: int
    free_cpus: float
    free_gpus: int
    last_seen_at: datetime | None
    shares: list[ShareOut] = Field(alias="shown_shares")


class QueueOut(Schema):
    run: UUID = Field(alias="pk")
    name: str
    position: int = Field(description="Over the runs of every team, from 1.")
    priority: int
    waiting: str
    queued_at: datetime


class QueuePage(Schema):
    items: list[QueueOut]


@router.get("/nodes", response=Page[NodeOut])
def list_nodes(request: HttpRequest, paging: Query[Paging]):
    """Every node that Ray has reported, those that are gone included."""
    page = paging.page(selectors.nodes(), "name", "id")
    teams = selectors.team_ids(request.user)
    return {**page, "items": [_shown(node, teams) for node in page["items"]]}


def _shown(node: Node, teams: set[int]) -> Node:
    free = selectors.free_of(node)
    node.free_cpus, node.free_gpus = float(free.cpus), free.gpus
    node.shown_shares = [_share(share, teams) for share in node.held_shares]
    return node


def _share(share: Share, teams: set[int]) -> Share:
    run = share.grant.attempt.run
    share.run = run.pk if run.project.team_id in teams else None
    return share


@router.get("/queue", response=QueuePage)
def list_queue(request: HttpRequest):
    """Your waiting runs in the order in which they are considered, each with what it waits for."""
    return {"items": selectors.queue(request.user)}
