import re

import pytest
from django.test import Client

from controlplane.accounts import services
from controlplane.accounts.models import ApiToken, Membership
from tests.controlplane.pages import faults, read, signed_in


def link_path(user) -> str:
    return "/login/link/" + services.create_login_link(user).rpartition("/")[2]


def test_a_link_signs_in_only_when_its_button_is_pressed(owner):
    path, browser = link_path(owner), Client()
    for _ in range(2):
        page = browser.get(path)
        assert page.status_code == 200 and "Sign in" in page.content.decode() and "_auth_user_id" not in browser.session
    assert browser.post(path).url == "/runs"
    assert browser.session["_auth_user_id"] == str(owner.pk)


def test_a_used_link_says_so(owner):
    path = link_path(owner)
    Client().post(path)
    for answer in (Client().get(path), Client().post(path)):
        assert answer.status_code == 410 and "used or expired" in answer.content.decode()


def test_a_link_is_neither_cached_nor_told_to_other_sites(owner):
    answer = Client().get(link_path(owner))
    assert "no-store" in answer["Cache-Control"]
    # no-referrer would make browsers post Origin: null, which the CSRF check refuses.
    assert answer["Referrer-Policy"] == "strict-origin"


def test_the_login_page_says_where_links_come_from(db):
    html = Client().get("/login").content.decode()
    assert "./assay up" in html and faults(html) == []


@pytest.mark.parametrize("path", ["/runs", "/settings", "/cluster", "/compare", "/house"])
def test_every_page_asks_to_sign_in_first(db, path):
    assert Client().get(path).url == f"/login?next={path}"


def test_the_settings_page_shows_tokens_and_members_within_its_queries(owner, teammate):
    services.create_token(owner, owner.memberships.get().team, "laptop", ["read"])
    html = read(owner, "/settings", queries=10)
    assert "laptop" in html and teammate.username in html


def test_a_new_token_is_shown_once(owner, team):
    browser = signed_in(owner)
    shown = browser.post("/settings/tokens", {"team": team.pk, "name": "ci", "scopes": ["read"]})
    assert "no-store" in shown["Cache-Control"]
    secret = re.search(r"assay_[\w-]{43}", shown.content.decode()).group()
    assert services.authenticate_token(secret) == owner
    assert secret not in browser.get("/settings").content.decode()


def test_a_token_without_a_scope_is_refused_in_words(owner, team):
    browser = signed_in(owner)
    browser.post("/settings/tokens", {"team": team.pk, "name": "ci"})
    assert "choose one or more of" in browser.get("/settings").content.decode()
    assert not ApiToken.objects.exists()


def test_a_token_is_revoked_by_its_owner_and_unknown_to_outsiders(owner, outsider, team):
    _, token = services.create_token(owner, team, "ci", ["read"])
    assert signed_in(outsider).post(f"/settings/tokens/{token.pk}/revoke").status_code == 404
    signed_in(owner).post(f"/settings/tokens/{token.pk}/revoke")
    token.refresh_from_db()
    assert token.revoked_at


def test_no_token_can_be_made_for_a_team_of_others(outsider, team):
    assert signed_in(outsider).post("/settings/tokens", {"team": team.pk, "name": "x", "scopes": ["read"]}).status_code == 404


def test_the_theme_is_stored_with_the_account(owner):
    browser = signed_in(owner)
    assert browser.post("/settings/theme", {"theme": "dark"}).status_code == 204
    assert 'data-theme="dark"' in browser.get("/settings").content.decode()
    refused = browser.post("/settings/theme", {"theme": "<script>"})
    assert refused.status_code == 400 and refused["Content-Type"] == "text/plain"


def test_an_admin_invites_changes_and_removes_members(owner, team):
    browser = signed_in(owner)
    shown = browser.post(f"/settings/teams/{team.pk}/members", {"username": "nina", "role": "viewer"})
    membership = Membership.objects.get(user__username="nina", team=team)
    assert "/login/link/" in shown.content.decode() and "/login/link/" not in browser.get("/settings").content.decode()
    browser.post(f"/settings/members/{membership.pk}/role", {"role": "member"})
    membership.refresh_from_db()
    assert membership.role == "member"
    browser.post(f"/settings/members/{membership.pk}/remove")
    assert not Membership.objects.filter(pk=membership.pk).exists()


def test_a_member_can_manage_nobody(teammate, owner, team):
    browser = signed_in(teammate)
    assert browser.post(f"/settings/teams/{team.pk}/members", {"username": "nina", "role": "admin"}).status_code == 403
    assert browser.post(f"/settings/members/{owner.memberships.get().pk}/remove").status_code == 403
    assert "Add member" not in browser.get("/settings").content.decode()


def test_the_last_admin_stays(owner, team):
    browser = signed_in(owner)
    browser.post(f"/settings/members/{owner.memberships.get().pk}/role", {"role": "viewer"})
    assert "is the only admin" in browser.get("/settings").content.decode()


@pytest.mark.parametrize("path", ["/nowhere", "/runs/00000000-0000-0000-0000-000000000000"])
def test_a_missing_page_shows_the_request_id(owner, path):
    answer = signed_in(owner).get(path)
    html = answer.content.decode()
    assert answer.status_code == 404 and answer["X-Request-ID"] in html and faults(html) == []


def test_a_failure_shows_the_request_id_and_no_trace(owner, monkeypatch):
    monkeypatch.setattr("controlplane.accounts.selectors.tokens_of", lambda user: 1 / 0)
    browser = signed_in(owner)
    browser.raise_request_exception = False
    answer = browser.get("/settings")
    html = answer.content.decode()
    assert answer.status_code == 500 and answer["X-Request-ID"] in html and "ZeroDivisionError" not in html


def test_a_failure_of_the_error_page_itself_is_plain_text(owner, monkeypatch):
    monkeypatch.setattr("controlplane.context.tick_age", lambda: 1 / 0)
    browser = signed_in(owner)
    browser.raise_request_exception = False
    answer = browser.get("/settings")
    assert answer.status_code == 500 and answer["Content-Type"].startswith("text/plain") and answer["X-Request-ID"] in answer.content.decode()


def test_a_stale_form_is_told_apart_from_a_missing_role(owner):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(owner)
    answer = browser.post("/settings/theme", {"theme": "dark"})
    assert answer.status_code == 403 and "The form has expired" in answer.content.decode()
