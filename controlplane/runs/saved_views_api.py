"""REST: the saved views of the runs page."""

from datetime import datetime

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema, Status

from controlplane.accounts.selectors import team_for
from controlplane.api.pagination import Page, Paging
from controlplane.api.schemas import Input
from controlplane.runs import saved_views
from controlplane.runs.models import SavedView

router = Router(tags=["saved views"])


class ViewOut(Schema):
    id: int
    name: str
    query: str = Field(description="Of the runs page: /runs?<query> shows the view.")
    owner: str = Field(alias="owner.username")
    team: str | None = Field(description="The team that sees it; null when only its owner does.")
    created_at: datetime

    @staticmethod
    def resolve_team(view: SavedView) -> str | None:
        return view.team.slug if view.team else None


class NewView(Input):
    name: str = Field(min_length=1, max_length=80)
    query: str = Field("", max_length=saved_views.LONGEST, description="Parameters of the runs page, such as state=failed&sort=-reward.")
    team: str | None = Field(None, description="Share it with this team.")


@router.get("/runs/views", response=Page[ViewOut])
def list_views(request: HttpRequest, paging: Query[Paging]):
    """The caller's own views and those that are shared with their teams."""
    return paging.page(saved_views.visible(request.user), "name", "id")


@router.post("/runs/views", response={201: ViewOut})
def save_view(request: HttpRequest, body: NewView):
    """Keep a query under a name, in place of the caller's earlier one of that name."""
    team = team_for(request.user, body.team) if body.team else None
    return Status(201, saved_views.save(request.user, body.name, body.query, team))


@router.delete("/runs/views/{int:view_id}", response={204: None})
def delete_view(request: HttpRequest, view_id: int):
    """One's own; an admin also those shared with the team."""
    saved_views.delete(request.user, get_object_or_404(saved_views.visible(request.user), pk=view_id))
    return Status(204, None)
