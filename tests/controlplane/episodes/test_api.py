"""REST of episodes: its answers fit their schemas, and other teams see nothing."""

import uuid

import numpy as np
import pytest

from controlplane import storage
from controlplane.accounts.services import create_token
from controlplane.episodes.api import EpisodeDetail, FacetsOut, TokensOut
from controlplane.episodes.models import Episode
from controlplane.episodes.services import record_events
from runner.contract.episode import write_trace
from tests.controlplane.factories import make_event

pytestmark = pytest.mark.django_db


@pytest.fixture
def episode(attempt):
    id = uuid.uuid4()
    trace = storage.put(
        write_trace(
            {"token_id": np.arange(5), "logprob": np.array([-0.5, np.nan, -1, -2, -3]), "author": np.full(5, 2), "mask": np.ones(5)}
        )
    )
    record_events(
        attempt,
        [
            make_event(id, "started", task="t-1", step=3),
            make_event(id, "turn", 0, index=0, role="user", author="environment", text="Why?"),
            make_event(id, "turn", 1, index=1, role="assistant", author="student", text="Because."),
            make_event(id, "finished", termination="finished", sampled=trace),
            make_event(id, "graded", score=None, reason="verifier died"),
        ],
    )
    return Episode.objects.get(pk=id)


@pytest.fixture
def browser(client, owner):
    client.force_login(owner)
    return client


def test_a_list_with_its_conditions(browser, run, episode):
    body = browser.get(f"/api/v1/runs/{run.pk}/episodes?missing=true&termination=finished").json()
    assert [item["id"] for item in body["items"]] == [str(episode.pk)]
    assert body["items"][0]["score"] is None and body["next"] is None
    assert browser.get(f"/api/v1/runs/{run.pk}/episodes?missing=false").json()["items"] == []


def test_pages_follow_each_other_without_a_gap(browser, run, attempt):
    record_events(attempt, [make_event(uuid.uuid4(), "started", task="t", step=number % 3, group=number % 2) for number in range(25)])
    seen, cursor = [], ""
    while cursor is not None:
        body = browser.get(f"/api/v1/runs/{run.pk}/episodes", {"limit": 4, **({"cursor": cursor} if cursor else {})}).json()
        seen += [item["id"] for item in body["items"]]
        cursor = body["next"]
    assert len(seen) == len(set(seen)) == 25


def test_an_unknown_condition_value_is_refused_by_name(browser, run):
    answer = browser.get(f"/api/v1/runs/{run.pk}/episodes?termination=exploded")
    assert answer.status_code == 422 and "termination" in answer.json()["errors"][0]["pointer"]


def test_facets(browser, run, episode):
    body = browser.get(f"/api/v1/runs/{run.pk}/episodes/facets").json()
    FacetsOut.model_validate(body)
    assert (body["episodes"], body["graded"], body["mean_reward"]) == (1, 0, None)
    assert body["facets"]["termination"] == [{"value": "finished", "episodes": 1}]


def test_one_episode(browser, episode):
    body = browser.get(f"/api/v1/episodes/{episode.pk}").json()
    EpisodeDetail.model_validate(body)
    assert (body["grade_reason"], body["score"], body["state"]) == ("verifier died", None, "done")


def test_turns_page_by_page(browser, episode):
    first = browser.get(f"/api/v1/episodes/{episode.pk}/turns?limit=1").json()
    assert [turn["text"] for turn in first["items"]] == ["Why?"]
    second = browser.get(f"/api/v1/episodes/{episode.pk}/turns?limit=1&after={first['next']}").json()
    assert [turn["text"] for turn in second["items"]] == ["Because."]


def test_tokens_of_a_range(browser, episode):
    body = browser.get(f"/api/v1/episodes/{episode.pk}/tokens?from=0&to=3").json()
    TokensOut.model_validate(body)
    assert (body["total"], body["from"], body["to"]) == (5, 0, 3)
    assert body["logprob"] == [-0.5, None, -1.0] and body["advantage"] is None


def test_an_episode_without_tokens_says_why(browser, episode):
    Episode.objects.filter(pk=episode.pk).update(sampled="")
    answer = browser.get(f"/api/v1/episodes/{episode.pk}/tokens")
    assert answer.status_code == 404 and "no tokens were recorded" in answer.json()["detail"]


def test_siblings_and_comparison(browser, attempt, episode):
    other = uuid.uuid4()
    record_events(
        attempt,
        [
            make_event(other, "started", task="t-1", step=3, sample=1),
            make_event(other, "turn", 0, role="user", author="environment", text="Why not?"),
        ],
    )
    assert len(browser.get(f"/api/v1/episodes/{episode.pk}/siblings").json()) == 2
    pairs = browser.get(f"/api/v1/episodes/{episode.pk}/compare/{other}").json()
    assert [pair["kind"] for pair in pairs] == ["changed", "left"]


def test_an_export_is_a_download(browser, episode):
    answer = browser.get(f"/api/v1/episodes/{episode.pk}/export")
    assert "attachment" in answer.headers["Content-Disposition"]
    assert answer.json()["turns_text"][1]["text"] == "Because."


def label(client, user, team, episode, scope="submit", **body):
    token, _ = create_token(user, team, "test", [scope])
    return client.post(
        f"/api/v1/episodes/{episode.pk}/labels", body, content_type="application/json", headers={"Authorization": f"Bearer {token}"}
    )


def test_members_label_and_viewers_read(client, team, teammate, viewer, episode):
    assert label(client, teammate, team, episode, name="reward hack").status_code == 201
    assert label(client, viewer, team, episode, "read", name="x").status_code == 403
    assert label(client, teammate, team, episode).status_code == 422
    client.force_login(viewer)
    assert [item["name"] for item in client.get(f"/api/v1/episodes/{episode.pk}/labels").json()] == ["reward hack"]


@pytest.mark.parametrize("path", ["", "/turns", "/tokens", "/siblings", "/labels", "/export", "/compare/{id}"])
def test_another_team_sees_nothing(client, outsider, run, episode, path):
    client.force_login(outsider)
    assert client.get(f"/api/v1/episodes/{episode.pk}{path.format(id=episode.pk)}").status_code == 404
    assert client.get(f"/api/v1/runs/{run.pk}/episodes").status_code == 404


def test_a_list_costs_the_same_queries_however_long(browser, run, attempt, django_assert_max_num_queries):
    record_events(attempt, [make_event(uuid.uuid4(), "started", task="t", step=1) for _ in range(100)])
    with django_assert_max_num_queries(5):
        browser.get(f"/api/v1/runs/{run.pk}/episodes?limit=100")
