"""What a page without a session answers to a script, and the way back after signing in."""

import pytest
from django.test import Client

from controlplane.accounts import services
from tests.controlplane.pages import signed_in

pytestmark = pytest.mark.django_db

HERE = "http://testserver/runs?q=heat&state=failed#row"
BACK = "/login?next=%2Fruns%3Fq%3Dheat%26state%3Dfailed"


def link_path(user) -> str:
    return "/login/link/" + services.create_login_link(user).rpartition("/")[2]


@pytest.mark.parametrize("method", ["get", "post"])
def test_htmx_is_told_where_to_sign_in_instead_of_being_led_there(method):
    answer = getattr(Client(), method)(
        "/cluster" if method == "get" else "/launch/check", headers={"HX-Request": "true", "HX-Current-URL": HERE}
    )
    assert answer.status_code == 401 and answer["HX-Redirect"] == BACK
    assert answer["Content-Type"].startswith("text/plain") and "no-store" in answer["Cache-Control"]


def test_our_own_fetch_is_told_too():
    answer = Client().get("/runs/rows", headers={"X-Requested-With": "XMLHttpRequest"})
    assert answer.status_code == 401 and answer["HX-Redirect"] == "/login"


@pytest.mark.parametrize(
    "elsewhere",
    [
        "https://evil.example/runs",
        "//evil.example/runs",
        "javascript:alert(1)",
        "http://testserver//evil.example",
        "x",
        "http://[",
        "/" * 3000,
    ],
)
def test_the_way_back_never_leads_to_another_site(elsewhere, owner):
    assert Client().get("/cluster", headers={"HX-Request": "true", "HX-Current-URL": elsewhere})["HX-Redirect"] == "/login"
    assert signed_in(owner).get("/login", {"next": elsewhere}).url == "/runs"
    browser = Client()
    browser.get("/login", {"next": elsewhere})
    assert browser.post(link_path(owner)).url == "/runs"


def test_a_form_sent_without_a_session_leads_back_to_its_page_not_to_its_action():
    answer = Client().post("/runs/bulk", headers={"Referer": HERE})
    assert answer.status_code == 302 and answer.url == BACK


def test_signing_in_leads_back_to_the_page_that_was_wanted(owner):
    browser = Client()
    wanted = browser.get("/runs?q=heat&state=failed")
    browser.get(wanted.url)
    assert browser.post(link_path(owner)).url == "/runs?q=heat&state=failed"
    assert browser.post(link_path(owner)).url == "/runs", "once"


def test_a_changed_cookie_is_no_way_back(owner):
    browser = Client()
    browser.cookies["next"] = "/settings"
    assert browser.post(link_path(owner)).url == "/runs"


def test_whoever_signed_in_elsewhere_is_led_on_at_once(owner):
    assert signed_in(owner).get("/login", {"next": "/cluster"}).url == "/cluster"


def test_a_refusal_of_a_part_is_said_in_words(owner):
    answer = signed_in(owner).get("/runs", {"sort": "password"}, headers={"HX-Request": "true"})
    assert answer.status_code == 400 and answer["Content-Type"].startswith("text/plain")
    assert "could not be read" in answer.content.decode() and "<" not in answer.content.decode()
