"""What the settings page reads about people, teams and tokens."""

from django.core.exceptions import ValidationError
from django.db.models import Model, Prefetch

from controlplane.accounts.models import ApiToken, AuditEntry, Membership, Team, User
from controlplane.accounts.roles import may


def tokens_of(user: User) -> list[ApiToken]:
    """The person's own tokens, newest first, live ones before revoked ones."""
    tokens = ApiToken.objects.for_user(user).filter(user=user).select_related("team").order_by("-id")
    return sorted(tokens, key=lambda token: token.revoked_at is not None)


def memberships_of(user: User) -> list[Membership]:
    """The teams that `user` is in, each with all its members as `team.people` and whether `user` may change them."""
    people = Prefetch("team__memberships", Membership.objects.select_related("user").order_by("user__username"), to_attr="people")
    mine = list(user.memberships.select_related("team").prefetch_related(people).order_by("team__name"))
    for membership in mine:
        membership.manages = may(user, membership.team, "member.change")
    return mine


def team_for(user: User, slug: str | None = None) -> Team:
    """The team that a request means: the one it names, its token's, or the only one of the user.

    Raises Team.DoesNotExist for a team the user is not in, ValidationError when the choice is open.
    """
    teams = Team.objects.filter(memberships__user=user)
    if user.token is not None:
        teams = teams.filter(pk=user.token.team_id)
    if slug:
        return teams.get(slug=slug)
    found = list(teams.order_by("slug")[:2])
    if len(found) > 1:
        raise ValidationError({"team": "you are in several teams; name one"})
    if not found:
        raise Team.DoesNotExist("you are in no team")
    return found[0]


def audit_of(user: User, obj: Model):
    """What was done to `obj`, newest first."""
    entries = AuditEntry.objects.for_user(user).filter(kind=obj._meta.model_name, object_id=str(obj.pk))
    return entries.select_related("actor").order_by("-id")
