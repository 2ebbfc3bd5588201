"""A session ends when its person is disabled, changes the password or leaves; and what signed somebody in once never does again."""

import pytest
from django.test import Client

from controlplane.accounts import services as accounts
from controlplane.accounts.models import LoginLink
from tests.controlplane.callers import Caller
from tests.strangers.test_pages import signed_in, to_login

pytestmark = pytest.mark.django_db


@pytest.fixture
def root(db):
    user = accounts.create_user("root")
    user.is_superuser = True
    user.save()
    return user


def opens(client: Client) -> bool:
    return not to_login(client.get("/settings"))


def test_disabling_ends_sessions_tokens_and_links_at_once(teammate, team, root):
    client = signed_in(teammate)
    secret, _ = accounts.create_token(teammate, team, "t", ["read"])
    link = accounts.create_login_link(teammate)
    assert opens(client)
    accounts.disable_user(root, teammate)
    assert not opens(client)
    assert Caller(secret).send("GET", "/me").status_code == 401
    assert Client().post(link.partition("/login")[1] + link.partition("/login")[2]).status_code == 410
    # Also when the account comes back: the old cookie and the old token are dead for good.
    teammate.refresh_from_db()
    teammate.is_active = True
    teammate.save()
    assert not opens(client) and Caller(secret).send("GET", "/me").status_code == 401


def test_a_new_password_ends_the_sessions_of_the_old_one(teammate):
    client = signed_in(teammate)
    teammate.set_password("a new and long passphrase")
    teammate.save()
    assert not opens(client)


def test_a_login_link_signs_in_once_and_makes_a_new_session(teammate):
    client = Client()
    client.get("/login")
    before = client.cookies.get("sessionid")
    path = "/login" + accounts.create_login_link(teammate).partition("/login")[2]
    assert client.get(path).status_code == 200 and not opens(client), "a previewer's GET signs nobody in"
    assert client.post(path).status_code == 302 and opens(client)
    assert before is None or client.cookies["sessionid"].value != before.value
    assert Client().post(path).status_code == 410
    assert LoginLink.objects.get().used_at


def test_signing_out_ends_the_session_on_the_server(teammate):
    client = signed_in(teammate)
    stolen = Client()
    stolen.cookies["sessionid"] = client.cookies["sessionid"].value
    assert opens(stolen)
    client.post("/logout")
    assert not opens(stolen)


def test_leaving_a_team_closes_its_rows_to_the_open_session(teammate, owner, team, world):
    client = signed_in(teammate)
    path = f"/runs/{world['run_id']}"
    assert client.get(path).status_code == 200
    accounts.remove_member(owner, teammate.memberships.get(team=team))
    assert client.get(path).status_code == 404


def test_a_form_of_another_site_is_refused(owner, world):
    client = Client(enforce_csrf_checks=True)
    client.force_login(owner)
    assert client.post(f"/runs/{world['run_id']}/stop").status_code == 403
    assert client.post(f"/api/v1/runs/{world['run_id']}/stop", content_type="application/json").status_code == 403
