"""What costs is bounded: how often, how large, and how long."""

import time

import pytest
from django.db import OperationalError, connection

from controlplane import settings as configuration
from controlplane.api import rate_limit
from controlplane.episodes.selectors import MAX_DIFF_CHARACTERS, compare_words
from tests.strangers.test_pages import signed_in

pytestmark = pytest.mark.django_db
COSTLY_FORMS = {
    "launch": ("/launch", {"/name": "x", "/stages/0/type": "sft", "token": "0" * 32}),
    "import": ("/banks", {"source": "hub", "location": "none", "token": "0" * 32}),
    "token": ("/settings/tokens", {"team": "{team}", "name": "x"}),
    "invite": ("/settings/teams/{team}/members", {"username": "", "role": "viewer"}),
}
COSTLY_CALLS = {
    "launch": ("/runs", {}),
    "import": ("/banks/imports", {"environment": "quiz", "source": "hub"}),
    "token": ("/tokens", {"name": "x", "scopes": ["read"]}),
    "invite": ("/teams/physics/members", {"username": "zoe"}),
}


@pytest.fixture(autouse=True)
def small_buckets(fresh_buckets, monkeypatch):
    monkeypatch.setattr(rate_limit, "BUCKETS", dict.fromkeys(rate_limit.BUCKETS, rate_limit.Bucket(burst=3, per_minute=0.01)))


def test_every_bucket_is_tried_here():
    assert set(COSTLY_FORMS) == set(COSTLY_CALLS) == set(rate_limit.BUCKETS)


@pytest.mark.parametrize("name", sorted(COSTLY_FORMS))
def test_a_form_that_costs_is_limited_to_each_person(name, owner, teammate, team):
    path, body = COSTLY_FORMS[name]
    path, body = path.format(team=team.pk), {key: value.format(team=team.pk) for key, value in body.items()}
    browser = signed_in(owner)
    answers = [browser.post(path, body) for _ in range(4)]
    assert [answer.status_code == 429 for answer in answers] == [False, False, False, True]
    assert int(answers[-1]["Retry-After"]) > 0
    assert signed_in(teammate).post(path, body).status_code != 429, "one person's haste is not another's"


@pytest.mark.parametrize("name", sorted(COSTLY_CALLS))
def test_a_call_that_costs_shares_its_bucket_with_the_form(name, owner, team, as_token):
    path, body = COSTLY_CALLS[name]
    caller = as_token(owner, "admin")
    form, fields = COSTLY_FORMS[name]
    browser = signed_in(owner)
    for _ in range(3):
        browser.post(form.format(team=team.pk), {key: value.format(team=team.pk) for key, value in fields.items()})
    assert caller.send("POST", path, body).status_code == 429


def test_reading_is_not_limited(owner):
    browser = signed_in(owner)
    assert {browser.get("/launch").status_code for _ in range(6)} == {200}


def test_a_query_of_the_web_process_ends_after_its_time():
    options = configuration.database("postgresql://a:b@h/d", pool=8)["OPTIONS"]
    assert options["options"] == f"-c statement_timeout={configuration.STATEMENT_MS}"
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 100")
        with pytest.raises(OperationalError, match="statement timeout"):
            cursor.execute("SELECT pg_sleep(5)")


def test_comparing_two_enormous_turns_takes_no_time():
    left = " ".join(str(number % 100) for number in range(MAX_DIFF_CHARACTERS * 10))
    began = time.process_time()
    assert compare_words(left, left[::-1]) == [("changed", left, left[::-1])]
    assert time.process_time() - began < 5
    assert compare_words(left, left) == [("equal", left, left)]
