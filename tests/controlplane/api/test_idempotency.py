"""The same key and body get the same answer; the thing is done once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from controlplane.accounts.models import IdempotencyKey, Project, User
from controlplane.api import rate_limit
from controlplane.api.rate_limit import Bucket

pytestmark = [pytest.mark.urls("tests.controlplane.api.urls"), pytest.mark.django_db]


def post(caller, slug="optics", key="k1"):
    return caller.send("POST", "/things", {"slug": slug}, headers={"Idempotency-Key": key} if key else {})


@pytest.fixture
def caller(as_token, owner):
    return as_token(owner, "submit")


def made():
    return list(Project.objects.exclude(slug="default").values_list("slug", flat=True))


def test_a_repeat_gets_the_stored_answer_and_makes_nothing(caller):
    first, second = post(caller), post(caller)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.content == second.content
    assert (first.get("Idempotency-Replayed"), second.get("Idempotency-Replayed")) == (None, "true")
    assert made() == ["optics"]


def test_another_body_under_the_same_key_is_a_conflict(caller):
    post(caller)
    answer = post(caller, slug="waves")
    assert answer.status_code == 409
    assert "use a new key" in answer.json()["detail"]
    assert made() == ["optics"]


def test_without_a_key_each_post_counts(caller):
    assert [post(caller, slug=slug, key=None).status_code for slug in ("a", "b")] == [201, 201]
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize("slug, status", [("refused", 409), ("half", 500)])
def test_a_failure_leaves_nothing_and_frees_the_key(caller, slug, status):
    assert post(caller, slug=slug).status_code == status
    assert (made(), IdempotencyKey.objects.count()) == ([], 0)
    assert post(caller, slug="optics").status_code == 201


def test_keys_belong_to_their_user_and_team(caller, as_token, owner, teammate, other_team):
    from controlplane.accounts import services

    post(caller)
    assert post(as_token(teammate, "submit"), slug="waves").status_code == 201
    services.add_member(other_team, owner, "admin")
    assert post(as_token(owner, "submit", team=other_team), slug="tides").status_code == 201
    assert sorted(made()) == ["optics", "tides", "waves"]


@pytest.mark.parametrize("key", ["", "two words", "x" * 121, "é"])
def test_a_malformed_key_is_refused(caller, key):
    answer = caller.send("POST", "/things", {"slug": "optics"}, headers={"Idempotency-Key": key})
    assert answer.status_code == 400
    assert made() == []


def test_a_stranger_learns_nothing_from_a_key(caller, client):
    post(caller)
    answer = client.post("/api/v1/things", {"slug": "optics"}, content_type="application/json", headers={"Idempotency-Key": "k1"})
    assert answer.status_code == 401


def test_a_replay_costs_nothing(caller, monkeypatch):
    monkeypatch.setitem(rate_limit.BUCKETS, "launch", Bucket(burst=2, per_minute=0.1))
    assert [post(caller).status_code for _ in range(5)] == [201] * 5
    assert post(caller, slug="waves", key="k2").status_code == 201
    assert post(caller, slug="tides", key="k3").status_code == 429


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("round", range(3))
def test_a_hundred_parallel_posts_make_one_row(as_token, owner, round):
    caller_token = as_token(owner, "submit")

    def shoot(_):
        try:
            answer = post(caller_token)
            return answer.status_code, answer.content
        finally:
            connection.close()

    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(shoot, range(100)))
    assert len(set(answers)) == 1 and answers[0][0] == 201, set(answers)
    assert made() == ["optics"]
    assert IdempotencyKey.objects.count() == 1
    assert User.objects.count() == 1
