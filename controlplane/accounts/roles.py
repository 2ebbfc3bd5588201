"""Who may do what: one table of verbs, and the check that reads it."""

from django.core.exceptions import PermissionDenied

from controlplane.accounts.choices import Role, Scope
from controlplane.accounts.models import Membership

RANK = {Role.VIEWER: 0, Role.MEMBER: 1, Role.ADMIN: 2}
SCOPE_ROLE = {Scope.READ: Role.VIEWER, Scope.SUBMIT: Role.MEMBER, Scope.ADMIN: Role.ADMIN}

# The least role of each verb. The audit trail uses the same names.
VERBS: dict[str, Role] = {
    "bank.read": Role.VIEWER,
    "bank.import": Role.MEMBER,
    # Names a file of the server: the reader sees what the server may read.
    "bank.import-path": Role.ADMIN,
    "bank.archive": Role.MEMBER,
    "bank.prove": Role.MEMBER,
    "bank.warm": Role.MEMBER,
    "bank.quarantine": Role.MEMBER,
    "run.read": Role.VIEWER,
    "run.launch": Role.MEMBER,
    "run.stop": Role.MEMBER,
    "run.resume": Role.MEMBER,
    "run.archive": Role.MEMBER,
    "run.prioritise": Role.MEMBER,
    "run.tag": Role.MEMBER,
    "view.share": Role.MEMBER,
    # Another member's; one's own always.
    "view.delete": Role.ADMIN,
    "checkpoint.pin": Role.MEMBER,
    "checkpoint.delete": Role.MEMBER,
    "episode.label": Role.MEMBER,
    "alert.close": Role.MEMBER,
    "alert.limit": Role.ADMIN,
    "node.cordon": Role.ADMIN,
    "token.create": Role.VIEWER,
    "token.revoke": Role.VIEWER,
    "member.read": Role.VIEWER,
    "member.add": Role.ADMIN,
    "member.change": Role.ADMIN,
    "member.remove": Role.ADMIN,
    "project.create": Role.MEMBER,
}


def role_in(user, team) -> Role | None:
    """The role that `user` may exercise in `team`, or None for an outsider.

    A request that came with an API token never exceeds the token: another team's rows are closed to it, and
    its highest scope caps the owner's role.
    """
    if not user.is_authenticated or not user.is_active:
        return None
    held = Membership.objects.filter(user=user, team=team).values_list("role", flat=True).first()
    if held is None or user.token is None:
        return held and Role(held)
    if user.token.team_id != team.pk:
        return None
    granted = token_role(user.token.scopes)
    return min(Role(held), granted, key=RANK.get)


def token_role(scopes: list[str]) -> Role:
    """The role that a token's highest scope lets it exercise: admin includes submit includes read."""
    return max((SCOPE_ROLE[Scope(scope)] for scope in scopes), key=RANK.get)


def may(user, team, role) -> bool:
    """Whether `user` holds at least `role` in `team`. `role` is a Role or a verb of VERBS."""
    return may_each(user, team, role)[0]


def may_each(user, team, *roles) -> list[bool]:
    """`may` of each of `roles`, in one look at the membership."""
    held = role_in(user, team)
    return [held is not None and RANK[held] >= RANK[VERBS.get(role) or Role(role)] for role in roles]


def require(user, team, role) -> None:
    """Raise PermissionDenied unless `user` holds at least `role` (a Role or a verb of VERBS) in `team`."""
    if not may(user, team, role):
        needed = VERBS.get(role) or Role(role)
        raise PermissionDenied(f"needs the role {needed.value} in team {team.slug}; ask one of its admins")
