"""Queries of the runs page that people keep under a name, for themselves or for their team."""

from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Q, QuerySet
from django.http import QueryDict

from controlplane.accounts.models import Team
from controlplane.accounts.roles import may, require
from controlplane.runs import columns
from controlplane.runs.listing import InvalidFilter, RunFilters
from controlplane.runs.models import SavedView

PASSING = ("cursor", "selected")
"""Parameters that say where somebody is, not what they look for."""

LONGEST = 2000


def visible(user) -> QuerySet:
    """The user's own views and those shared with their teams, by name; of a token's caller, with the token's team alone."""
    shared = Q(team__memberships__user=user)
    views = SavedView.objects.filter(Q(owner=user) | shared)
    if user.token is not None:
        views = views.filter(Q(team=None) | Q(team=user.token.team_id))
    return views.select_related("owner", "team").distinct().order_by("name", "id")


def kept(query: QueryDict | str) -> str:
    """`query` as it is stored: in one order, without blanks and PASSING. Raises ValidationError when the runs page would refuse it."""
    given = QueryDict(query) if isinstance(query, str) else query
    pairs = sorted((name, value) for name, values in given.lists() for value in values if value and name not in PASSING)
    stored = QueryDict(mutable=True)
    for name, value in pairs:
        stored.appendlist(name, value)
    try:
        RunFilters.parse(stored)
        columns.chosen(stored)
    except InvalidFilter as error:
        raise ValidationError({"query": str(error)}) from None
    return stored.urlencode()


def save(user, name: str, query: str, team: Team | None = None) -> SavedView:
    """Keep `query` as the user's view `name`, in place of an earlier one of that name. Sharing takes a member of `team`."""
    name, query = name.strip(), kept(query)
    if not name or len(name) > SavedView._meta.get_field("name").max_length:
        raise ValidationError({"name": f"{name!r:.100}: a view needs a name of 1 to 80 characters"})
    if len(query) > LONGEST:
        raise ValidationError({"query": f"{len(query)} characters; a view keeps at most {LONGEST}"})
    if team:
        require(user, team, "view.share")
    return SavedView.objects.update_or_create(owner=user, name=name, defaults={"query": query, "team": team})[0]


def delete(user, view: SavedView) -> None:
    """For its owner, and for admins of the team that it is shared with."""
    if view.owner_id != user.pk and not (view.team and may(user, view.team, "view.delete")):
        raise PermissionDenied(f"the view {view.name} is {view.owner.username}'s")
    view.delete()
