"""People, teams, roles, login links and tokens."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection
from django.utils import timezone

from controlplane.accounts import services
from controlplane.accounts.choices import Role
from controlplane.accounts.models import ApiToken, AuditEntry, LoginLink, Membership, Project, Team, User
from controlplane.accounts.roles import VERBS


def token_in(url):
    return url.rsplit("/", 1)[1]


# ---------------------------------------------------------------- the embedded house
def test_the_embedded_owner_is_made_once(db):
    first, second = services.ensure_embedded_owner(), services.ensure_embedded_owner()
    assert first.pk == second.pk
    assert not first.has_usable_password()
    team = Team.objects.get(slug="default")
    assert list(team.projects.values_list("slug", flat=True)) == ["default"]
    assert list(team.memberships.values_list("user__username", "role")) == [("owner", "admin")]


# ---------------------------------------------------------------- teams and members
def test_a_new_team_has_a_project_an_admin_and_an_audit_row(db):
    user = services.create_user("ada")
    team = services.create_team("optics", "Optics", user)
    assert Project.objects.get(team=team).slug == "default"
    assert services.role_in(user, team) == Role.ADMIN
    entry = AuditEntry.objects.get(team=team, verb="team.create")
    assert (entry.actor, entry.kind, entry.object_id) == (user, "team", str(team.pk))


def test_a_taken_team_slug_names_the_field(team):
    with pytest.raises(ValidationError) as caught:
        services.create_team("physics", "Again")
    assert "slug" in caught.value.message_dict


def test_only_an_admin_adds_members(team, owner, teammate, outsider):
    with pytest.raises(PermissionDenied, match="admin"):
        services.add_member(team, outsider, Role.VIEWER, actor=teammate)
    services.add_member(team, outsider, Role.VIEWER, actor=owner)
    assert services.role_in(outsider, team) == Role.VIEWER


def test_adding_a_member_twice_is_refused_in_words(team, owner, teammate):
    with pytest.raises(ValidationError, match="already in physics as member"):
        services.add_member(team, teammate, Role.ADMIN, actor=owner)


def test_an_invited_stranger_gets_a_login_link_and_an_existing_account_does_not(team, owner, outsider):
    membership, link = services.invite(owner, team, "nora", Role.MEMBER)
    assert services.consume_login_link(token_in(link)) == membership.user
    _, link = services.invite(owner, team, "uma", Role.MEMBER)
    assert link is None
    assert not LoginLink.objects.filter(user=outsider).exists()


def test_the_last_admin_can_neither_leave_nor_step_down(team, owner):
    membership = Membership.objects.get(user=owner, team=team)
    with pytest.raises(ValidationError, match="only admin"):
        services.change_role(owner, membership, Role.MEMBER)
    with pytest.raises(ValidationError, match="only admin"):
        services.remove_member(owner, membership)
    assert services.role_in(owner, team) == Role.ADMIN


def test_removing_a_member_revokes_their_tokens_of_this_team_only(team, other_team, owner, teammate):
    services.add_member(other_team, teammate, Role.MEMBER)
    here, _ = services.create_token(teammate, team, "here", ["read"])
    there, _ = services.create_token(teammate, other_team, "there", ["read"])
    services.remove_member(owner, Membership.objects.get(team=team, user=teammate))
    assert services.authenticate_token(here) is None
    assert services.authenticate_token(there) == teammate


# ---------------------------------------------------------------- roles
@pytest.mark.parametrize("verb", sorted(VERBS))
def test_each_verb_needs_exactly_its_role(verb, team, owner, teammate, viewer, outsider):
    holders = {Role.VIEWER: viewer, Role.MEMBER: teammate, Role.ADMIN: owner}
    ranks = list(holders)
    for role, user in holders.items():
        assert services.may(user, team, verb) == (ranks.index(role) >= ranks.index(VERBS[verb])), (role, verb)
    assert not services.may(outsider, team, verb)


def test_an_unknown_verb_is_an_error_and_not_a_permission(team, owner):
    with pytest.raises(ValueError):
        services.may(owner, team, "run.fly")


# ---------------------------------------------------------------- login links
def test_a_login_link_works_once(owner):
    token = token_in(services.create_login_link(owner))
    assert services.consume_login_link(token) == owner
    assert services.consume_login_link(token) is None


def test_looking_at_a_login_link_does_not_burn_it(owner):
    token = token_in(services.create_login_link(owner))
    assert services.login_link_is_good(token) and services.login_link_is_good(token)
    assert services.consume_login_link(token) == owner
    assert not services.login_link_is_good(token)


def test_the_database_keeps_only_the_hash_of_a_link(owner):
    token = token_in(services.create_login_link(owner))
    link = LoginLink.objects.get()
    assert len(token) == len("assay_") + 43
    assert token not in str(vars(link))
    assert link.expires_at - link.created_at <= timedelta(hours=24)


def test_an_expired_link_and_one_of_a_disabled_user_are_refused(owner, teammate):
    expired, disabled = (token_in(services.create_login_link(user)) for user in (owner, teammate))
    LoginLink.objects.filter(user=owner).update(expires_at=timezone.now())
    User.objects.filter(pk=teammate.pk).update(is_active=False)
    assert services.consume_login_link(expired) is None
    assert services.consume_login_link(disabled) is None


@pytest.mark.django_db(transaction=True)
def test_of_twenty_clicks_at_once_one_signs_in(owner):
    token = token_in(services.create_login_link(owner))

    def click(_):
        try:
            return services.consume_login_link(token)
        finally:
            connection.close()

    with ThreadPoolExecutor(20) as pool:
        assert [user for user in pool.map(click, range(20)) if user] == [owner]


def test_a_session_ends_when_its_user_is_disabled_and_stays_ended(client, owner):
    administrator = services.ensure_embedded_owner()
    client.force_login(owner)
    assert client.session["_auth_user_id"] == str(owner.pk)
    services.disable_user(administrator, owner)
    assert not _user_of(client).is_authenticated
    User.objects.filter(pk=owner.pk).update(is_active=True)
    assert not _user_of(client).is_authenticated


def _user_of(client):
    from django.contrib.auth import get_user
    from django.http import HttpRequest

    request = HttpRequest()
    request.session = client.session
    return get_user(request)


def test_a_team_admin_cannot_disable_accounts(owner, teammate):
    with pytest.raises(PermissionDenied):
        services.disable_user(owner, teammate)
    teammate.refresh_from_db()
    assert teammate.is_active


# ---------------------------------------------------------------- tokens
def test_a_token_is_shown_once_and_kept_as_a_hash(team, teammate):
    text, row = services.create_token(teammate, team, "laptop", ["submit", "read"])
    assert len(text) == len("assay_") + 43
    assert row.scopes == ["read", "submit"]
    assert text.startswith(row.prefix) and text not in str(ApiToken.objects.filter(pk=row.pk).values())
    entry = AuditEntry.objects.get(verb="token.create")
    assert (entry.actor, entry.object_id) == (teammate, str(row.pk))
    assert text not in str(entry.data)


@pytest.mark.parametrize("scopes, field", [([], "scopes"), (["everything"], "scopes"), (["read", "root"], "scopes")])
def test_wrong_scopes_are_refused(team, teammate, scopes, field):
    with pytest.raises(ValidationError) as caught:
        services.create_token(teammate, team, "laptop", scopes)
    assert field in caught.value.message_dict
    assert not ApiToken.objects.exists()


def test_a_token_cannot_exceed_its_owners_role(team, viewer, teammate):
    with pytest.raises(PermissionDenied):
        services.create_token(viewer, team, "too much", ["submit"])
    with pytest.raises(PermissionDenied):
        services.create_token(teammate, team, "too much", ["admin"])


def test_a_token_narrows_its_owner_to_its_scope_and_team(team, other_team, owner):
    services.add_member(other_team, owner, Role.ADMIN)
    text, _ = services.create_token(owner, team, "reader", ["read"])
    bearer = services.authenticate_token(text)
    assert bearer == owner
    assert services.role_in(bearer, team) == Role.VIEWER
    assert services.role_in(bearer, other_team) is None
    assert {project.team for project in Project.objects.for_user(owner)} == {team, other_team}
    assert {project.team for project in Project.objects.for_user(bearer)} == {team}


def test_a_demoted_owner_demotes_the_token_at_once(team, owner, teammate):
    text, _ = services.create_token(teammate, team, "robot", ["submit"])
    services.change_role(owner, Membership.objects.get(user=teammate), Role.VIEWER)
    assert services.role_in(services.authenticate_token(text), team) == Role.VIEWER


def test_revoked_expired_unknown_and_disabled_tokens_are_refused(team, owner, teammate):
    text, row = services.create_token(teammate, team, "robot", ["read"])
    assert services.authenticate_token(text) == teammate
    assert services.authenticate_token(text + "x") is None
    ApiToken.objects.filter(pk=row.pk).update(expires_at=timezone.now())
    assert services.authenticate_token(text) is None
    ApiToken.objects.filter(pk=row.pk).update(expires_at=None)
    User.objects.filter(pk=teammate.pk).update(is_active=False)
    assert services.authenticate_token(text) is None
    User.objects.filter(pk=teammate.pk).update(is_active=True)
    services.revoke_token(owner, row)
    assert services.authenticate_token(text) is None


def test_a_teammate_cannot_revoke_anothers_token_but_an_admin_can(team, owner, teammate, viewer):
    _, row = services.create_token(viewer, team, "mine", ["read"])
    with pytest.raises(PermissionDenied):
        services.revoke_token(teammate, row)
    services.revoke_token(owner, row)
    services.revoke_token(owner, row)
    assert AuditEntry.objects.filter(verb="token.revoke", object_id=str(row.pk)).count() == 1


def test_last_use_is_noted(team, teammate):
    text, row = services.create_token(teammate, team, "robot", ["read"])
    services.authenticate_token(text)
    row.refresh_from_db()
    first = row.last_used_at
    assert first is not None
    services.authenticate_token(text)
    row.refresh_from_db()
    assert row.last_used_at == first
