"""Business verbs over people, teams, tokens and the audit trail."""

from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth import login
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models, transaction
from django.utils import timezone

from controlplane.accounts.choices import Role, Scope
from controlplane.accounts.models import ApiToken, AuditEntry, LoginLink, Membership, Project, Team, User
from controlplane.accounts.request_id import current_request_id
from controlplane.accounts.roles import may, require, role_in, token_role
from controlplane.accounts.tokens import SHOWN, hash_token, new_token

__all__ = ["may", "require", "role_in"]

LOGIN_LINK_LIFE = timedelta(hours=24)
# `login-link` in the URL conf: GET shows a button and changes nothing, so that a link previewer cannot burn it; POST signs in.
LOGIN_LINK_PATH = "/login/link/{token}"
LAST_USED_RESOLUTION = timedelta(minutes=1)


# ---------------------------------------------------------------- audit
def record(actor: User | None, verb: str, obj: models.Model, data: dict | None = None, team: Team | None = None) -> AuditEntry:
    """Append who did `verb` (such as ``run.stop``) to `obj`; call it inside the transaction that did it.

    The team is found through the object's queryset (`team_path`); give `team` for objects of no single team.
    """
    return AuditEntry.objects.create(
        team=team or team_of(obj),
        actor=actor if actor is not None and actor.is_authenticated else None,
        verb=verb,
        kind=obj._meta.model_name,
        object_id=str(obj.pk),
        data=data or {},
        request_id=current_request_id(),
    )


def team_of(obj: models.Model) -> Team:
    """The team that owns `obj`, followed along its queryset's `team_path`."""
    if isinstance(obj, Team):
        return obj
    path = getattr(type(obj)._default_manager.all(), "team_path", "team")
    for name in path.split("__"):
        obj = getattr(obj, name)
    return obj


# ---------------------------------------------------------------- people and teams
def create_user(username: str, email: str = "", password: str | None = None, name: str = "") -> User:
    """A new person. Without a password only a login link signs them in. Raises ValidationError."""
    user = User(username=username, email=email, first_name=name)
    if password is None:
        user.set_unusable_password()
    else:
        validate_password(password, user)
        user.set_password(password)
    user.full_clean()
    user.save()
    return user


@transaction.atomic
def create_team(slug: str, name: str, owner: User | None = None) -> Team:
    """A team with its first project, `default`; `owner` becomes its admin. Raises ValidationError."""
    team = Team(slug=slug, name=name)
    team.full_clean()
    team.save()
    Project.objects.create(team=team, slug="default", name="Default")
    if owner:
        Membership.objects.create(team=team, user=owner, role=Role.ADMIN)
    record(owner, "team.create", team)
    return team


@transaction.atomic
def create_project(actor: User, team: Team, slug: str, name: str) -> Project:
    """Raises ValidationError for a slug that is malformed or taken."""
    require(actor, team, "project.create")
    project = Project(team=team, slug=slug, name=name)
    project.full_clean()
    project.save()
    record(actor, "project.create", project)
    return project


@transaction.atomic
def add_member(team: Team, user: User, role: Role, actor: User | None = None) -> Membership:
    """Make `user` a member. `actor` None is the house itself. Raises ValidationError when already one."""
    if actor:
        require(actor, team, "member.add")
    membership, created = Membership.objects.get_or_create(team=team, user=user, defaults={"role": Role(role)})
    if not created:
        raise ValidationError({"username": f"{user.username} is already in {team.slug} as {membership.role}; change the role instead"})
    record(actor, "member.add", user, {"role": membership.role}, team=team)
    return membership


@transaction.atomic
def invite(actor: User, team: Team, username: str, role: Role) -> tuple[Membership, str | None]:
    """Add a person by name, making the account when there is none; returns its login link only then.

    A link for an account that exists would let an admin of one team become a member of others.
    """
    require(actor, team, "member.add")
    user = User.objects.filter(username=username).first()
    made = user is None
    if made:
        user = create_user(username)
    membership = add_member(team, user, role, actor)
    return membership, create_login_link(user) if made else None


@transaction.atomic
def change_role(actor: User, membership: Membership, role: Role) -> Membership:
    require(actor, membership.team, "member.change")
    before = membership.role
    _keep_an_admin(membership, Role(role))
    membership.role = Role(role)
    membership.save(update_fields=["role"])
    record(actor, "member.change", membership.user, {"before": before, "after": membership.role}, team=membership.team)
    return membership


@transaction.atomic
def remove_member(actor: User, membership: Membership) -> None:
    """End a membership and revoke the person's tokens of this team."""
    require(actor, membership.team, "member.remove")
    _keep_an_admin(membership, None)
    ApiToken.objects.filter(team=membership.team, user=membership.user, revoked_at=None).update(revoked_at=timezone.now())
    record(actor, "member.remove", membership.user, {"role": membership.role}, team=membership.team)
    membership.delete()


def _keep_an_admin(membership: Membership, role: Role | None) -> None:
    # The team's row is the lock: two admins demoting each other at once must not both succeed.
    Team.objects.select_for_update().get(pk=membership.team_id)
    others = Membership.objects.filter(team=membership.team_id, role=Role.ADMIN, user__is_active=True).exclude(pk=membership.pk)
    if membership.role == Role.ADMIN and role != Role.ADMIN and not others.exists():
        raise ValidationError({"role": f"{membership.user.username} is the only admin of {membership.team.slug}; name another one first"})


@transaction.atomic
def disable_user(actor: User, user: User) -> None:
    """Lock a person out at once: sessions, login links and tokens all end. Only the house's administrator may."""
    if not actor.is_superuser:
        raise PermissionDenied("only an administrator of this installation may disable an account")
    user.is_active = False
    # Sessions carry a hash of the password field: a new unusable one ends them even if the account is enabled again.
    user.set_unusable_password()
    user.save(update_fields=["is_active", "password"])
    now = timezone.now()
    ApiToken.objects.filter(user=user, revoked_at=None).update(revoked_at=now)
    LoginLink.objects.filter(user=user, used_at=None).update(used_at=now)
    for membership in user.memberships.select_related("team"):
        record(actor, "user.disable", user, team=membership.team)


def ensure_embedded_owner() -> User:
    """The first team, project and admin of an embedded house; the same ones every time."""
    team = Team.objects.filter(slug="default").first() or create_team("default", "Default")
    owner = User.objects.filter(username="owner").first() or create_user("owner", name="Owner")
    if not owner.is_superuser:
        owner.is_superuser = True
        owner.save(update_fields=["is_superuser"])
    if not Membership.objects.filter(team=team, user=owner).exists():
        add_member(team, owner, Role.ADMIN)
    return owner


# ---------------------------------------------------------------- signing in
def create_login_link(user: User) -> str:
    """URL that signs `user` in once within 24 hours."""
    text, hashed = new_token()
    LoginLink.objects.create(user=user, hash=hashed, expires_at=timezone.now() + LOGIN_LINK_LIFE)
    return settings.ASSAY_URL + LOGIN_LINK_PATH.format(token=text)


def login_link_is_good(token: str) -> bool:
    """Whether a POST with `token` would sign in; changes nothing."""
    return _good_links(token).exists()


def consume_login_link(token: str) -> User | None:
    """The link's user, once; None when it is unknown, used, expired or its user is disabled."""
    link = _good_links(token).select_related("user").first()
    # Compare-and-set on the row's own columns: with a join Django writes a subquery, which Postgres does not evaluate
    # again after waiting for the other click, and both would sign in.
    if link is None or not LoginLink.objects.filter(pk=link.pk, used_at=None).update(used_at=timezone.now()):
        return None
    return link.user


def _good_links(token: str):
    return LoginLink.objects.filter(hash=hash_token(token), used_at=None, expires_at__gt=timezone.now(), user__is_active=True)


def sign_in_with_link(request, token: str) -> User | None:
    """Consume `token` and start a session; None when the link is no good."""
    user = consume_login_link(token)
    if user:
        login(request, user)
        _record_for_every_team(user, "user.login", {"by": "link"})
    return user


def _record_for_every_team(user: User, verb: str, data: dict) -> None:
    for membership in user.memberships.select_related("team"):
        record(user, verb, user, data, team=membership.team)


# ---------------------------------------------------------------- API tokens
@transaction.atomic
def create_token(user: User, team: Team, name: str, scopes: list[str], expires: datetime | None = None) -> tuple[str, ApiToken]:
    """The secret, shown only now, and its row. A token never exceeds its owner's role. Raises ValidationError."""
    scopes = [scope for scope in Scope.values if scope in scopes] if set(scopes) <= set(Scope.values) else []
    if not scopes:
        raise ValidationError({"scopes": f"choose one or more of {', '.join(Scope.values)}"})
    if expires and expires <= timezone.now():
        raise ValidationError({"expires": f"{expires.isoformat()} has passed; choose a time to come"})
    # Else a leaked read-only token could give itself a longer life.
    require(user, team, token_role(scopes) if user.token is None else Role.ADMIN)
    text, hashed = new_token()
    token = ApiToken(team=team, user=user, name=name, prefix=text[:SHOWN], hash=hashed, scopes=scopes, expires_at=expires)
    token.full_clean()
    token.save()
    record(user, "token.create", token, {"name": name, "scopes": scopes, "expires": expires and expires.isoformat()})
    return text, token


def authenticate_token(text: str) -> User | None:
    """The active owner of a live token, with `user.token` set to the row; None otherwise.

    `user.token` is what limits every query and every role check of the request to the token's team and scopes.
    """
    now = timezone.now()
    live = ApiToken.objects.select_related("user", "team").filter(hash=hash_token(text), revoked_at=None, user__is_active=True)
    token = live.filter(models.Q(expires_at=None) | models.Q(expires_at__gt=now)).first()
    if token is None or not Membership.objects.filter(team=token.team_id, user=token.user_id).exists():
        return None
    if token.last_used_at is None or now - token.last_used_at > LAST_USED_RESOLUTION:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    token.user.token = token
    return token.user


@transaction.atomic
def revoke_token(actor: User, token: ApiToken) -> None:
    """End a token at once. Its owner may, and an admin of its team."""
    require(actor, token.team, "token.revoke" if token.user_id == actor.pk else Role.ADMIN)
    if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=timezone.now()):
        record(actor, "token.revoke", token, {"name": token.name})
        token.refresh_from_db(fields=["revoked_at"])
