"""REST: who am I, my tokens, my teams' members and projects, the audit trail."""

from datetime import datetime
from typing import Literal

from django.shortcuts import get_object_or_404
from pydantic import AwareDatetime
from ninja import Field, Query, Router, Schema, Status

from controlplane.accounts import services
from controlplane.accounts.choices import Role, Scope
from controlplane.accounts.models import ApiToken, AuditEntry, Membership, Project
from controlplane.accounts.selectors import team_for
from controlplane.api.pagination import Page, Paging
from controlplane.api.rate_limit import limited
from controlplane.api.schemas import Input

router = Router(tags=["accounts"])

ScopeName = Literal[tuple(Scope.values)]
RoleName = Literal[tuple(Role.values)]
SLUG = r"^[a-z0-9][a-z0-9_-]*$"


class TeamRole(Schema):
    team: str
    role: str


class Me(Schema):
    username: str
    teams: list[TeamRole]
    scopes: list[str] | None = Field(description="Scopes of the token this request came with; null for a session.")


class TokenOut(Schema):
    id: int
    team: str = Field(alias="team.slug")
    name: str
    prefix: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class NewToken(Input):
    name: str = Field(min_length=1, max_length=80)
    scopes: list[ScopeName] = Field(min_length=1)
    team: str | None = None
    expires: AwareDatetime | None = None


class FreshToken(Schema):
    secret: str = Field(description="Shown now and never again.")
    token: TokenOut


class MemberOut(Schema):
    id: int
    username: str = Field(alias="user.username")
    role: str


class NewMember(Input):
    username: str = Field(min_length=1, max_length=150, pattern=r"^[\w.@+-]+$")
    role: RoleName = "member"


class RoleChange(Input):
    role: RoleName


class Invited(Schema):
    member: MemberOut
    login_link: str | None = Field(description="Signs the new account in once, within 24 hours; null for an account that existed.")


class ProjectOut(Schema):
    id: int
    team: str = Field(alias="team.slug")
    slug: str
    name: str
    created_at: datetime


class NewProject(Input):
    slug: str = Field(min_length=1, max_length=50, pattern=SLUG)
    name: str = Field(min_length=1, max_length=120)
    team: str | None = None


class AuditOut(Schema):
    id: int
    at: datetime
    actor: str | None
    verb: str
    kind: str
    object_id: str
    data: dict
    request_id: str

    @staticmethod
    def resolve_actor(entry):
        return entry.actor and entry.actor.username


@router.get("/me", response=Me)
def me(request):
    """The caller and what it may do."""
    memberships = request.user.memberships.select_related("team").order_by("team__slug")
    token = request.user.token
    if token:
        memberships = memberships.filter(team=token.team)
    teams = [{"team": m.team.slug, "role": services.role_in(request.user, m.team)} for m in memberships]
    return {"username": request.user.username, "teams": teams, "scopes": token and token.scopes}


# ---------------------------------------------------------------- tokens
@router.get("/tokens", response=Page[TokenOut])
def list_tokens(request, paging: Query[Paging]):
    """The caller's own tokens, newest first."""
    return paging.page(ApiToken.objects.for_user(request.user).filter(user=request.user).select_related("team"), "-id")


@router.post("/tokens", response={201: FreshToken})
@limited("token")
def create_token(request, payload: NewToken):
    """A new token. Its secret is in this answer and nowhere else. A token itself needs the scope admin to make one."""
    team = team_for(request.user, payload.team)
    secret, token = services.create_token(request.user, team, payload.name, payload.scopes, payload.expires)
    return Status(201, {"secret": secret, "token": token})


@router.delete("/tokens/{int:token_id}", response={204: None})
def revoke_token(request, token_id: int):
    """End a token at once; repeating it changes nothing. An admin may end those of the team."""
    services.revoke_token(request.user, get_object_or_404(ApiToken.objects.for_user(request.user), pk=token_id))
    return Status(204, None)


# ---------------------------------------------------------------- members and projects
@router.get("/teams/{slug:team}/members", response=Page[MemberOut])
def list_members(request, team: str, paging: Query[Paging]):
    """People of a team and their roles."""
    return paging.page(Membership.objects.filter(team=team_for(request.user, team)).select_related("user"), "id")


@router.post("/teams/{slug:team}/members", response={201: Invited})
@limited("invite")
def add_member(request, team: str, payload: NewMember):
    """Add a person by name; a name that nobody has yet gets an account and a one-time login link."""
    membership, link = services.invite(request.user, team_for(request.user, team), payload.username, payload.role)
    return Status(201, {"member": membership, "login_link": link})


def _membership(request, team: str, member_id: int) -> Membership:
    return get_object_or_404(Membership.objects.select_related("team", "user"), team=team_for(request.user, team), pk=member_id)


@router.patch("/teams/{slug:team}/members/{int:member_id}", response=MemberOut)
def change_role(request, team: str, member_id: int, payload: RoleChange):
    """Give a member another role; a team keeps at least one admin."""
    return services.change_role(request.user, _membership(request, team, member_id), payload.role)


@router.delete("/teams/{slug:team}/members/{int:member_id}", response={204: None})
def remove_member(request, team: str, member_id: int):
    """End a membership and the person's tokens of this team."""
    services.remove_member(request.user, _membership(request, team, member_id))
    return Status(204, None)


@router.get("/projects", response=Page[ProjectOut])
def list_projects(request, paging: Query[Paging]):
    return paging.page(Project.objects.for_user(request.user).select_related("team"), "id")


@router.post("/projects", response={201: ProjectOut})
def create_project(request, payload: NewProject):
    return Status(201, services.create_project(request.user, team_for(request.user, payload.team), payload.slug, payload.name))


# ---------------------------------------------------------------- audit
@router.get("/audit", response=Page[AuditOut])
def list_audit(request, paging: Query[Paging], kind: str | None = None, object_id: str | None = None, verb: str | None = None):
    """Who did what, newest first."""
    entries = AuditEntry.objects.for_user(request.user).select_related("actor")
    given = {"kind": kind, "object_id": object_id, "verb": verb}
    return paging.page(entries.filter(**{name: value for name, value in given.items() if value is not None}), "-id")
