"""REST of telemetry: its answers fit their schemas, and other teams see nothing."""

import csv
import io
import math

import pytest

from controlplane.runs.models import Run
from controlplane.telemetry.api import LogPage, PointsOut, SamplesOut, SeriesPage
from controlplane.telemetry.services import accept_batch
from tests.controlplane.factories import make_attempt, make_batch, make_samples

pytestmark = pytest.mark.django_db


@pytest.fixture
def filled(run, attempt):
    lines = [{"t": float(n), "component": f"worker-{n % 2}", "level": ("info", "error")[n % 2], "message": f"line {n}"} for n in range(10)]
    series = {
        "critic/score/mean": [(step, step / 10) for step in range(10)],
        "actor/grad_norm": [(0, math.nan), (1, math.inf), (2, 3.0)],
        "perf/total_num_tokens": [(step, 100.0) for step in range(10)],
    }
    accept_batch(attempt, make_batch(0, series, logs=lines, samples=make_samples({"gpu/0/util": [(5.0, 0.5), (6.0, math.nan)]})))
    return Run.objects.get(pk=run.pk)


@pytest.fixture
def browser(client, owner):
    client.force_login(owner)
    return client


def read(browser, run, path, **parameters):
    answer = browser.get(f"/api/v1/runs/{run.pk}/{path}", parameters)
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_points_in_buckets(browser, filled):
    body = read(browser, filled, "points", names=["critic/score/mean", "actor/grad_norm", "unknown"], buckets=5)
    PointsOut.model_validate(body)
    assert (body["cursor"], body["width"], body["from"], body["to"], body["attempts"]) == (1, 2, 0, 9, [{"number": 1, "first_step": 0}])
    score = body["series"]["critic/score/mean"]
    assert (score["start"], score["last"], score["count"]) == ([0, 2, 4, 6, 8], [0.1, 0.3, 0.5, 0.7, 0.9], [2] * 5)
    norm = body["series"]["actor/grad_norm"]
    assert (norm["start"], norm["mean"], norm["min"], norm["last_step"]) == ([0, 2], [None, 3.0], [None, 3.0], [None, 2])
    assert (norm["nan"], norm["positive_infinite"]) == ([1, 0], [1, 0])
    assert body["series"]["unknown"]["start"] == []


def test_wall_and_token_axes(browser, filled):
    wall = read(browser, filled, "points", names=["critic/score/mean"], axis="wall")["series"]["critic/score/mean"]
    assert wall["wall"] == [1000.0 + step for step in range(10)]
    tokens = read(browser, filled, "points", names=["critic/score/mean"], axis="tokens", **{"from": 5, "to": 9})["series"][
        "critic/score/mean"
    ]
    assert tokens["tokens"] == [600.0, 700.0, 800.0, 900.0, 1000.0]


def test_a_mean_beyond_float64_is_a_string(browser, run, attempt):
    accept_batch(attempt, make_batch(0, {"huge": [(0, 1.7e308), (1, 1.7e308)]}))
    assert read(browser, run, "points", names=["huge"], buckets=1, to=1)["series"]["huge"]["mean"] == ["Infinity"]


@pytest.mark.parametrize(
    "parameters",
    [{}, {"names": "x", "buckets": 0}, {"names": "x", "from": 9, "to": 1}, {"names": "x", "from": -1}, {"names": "x", "axis": "y"}],
)
def test_a_nonsensical_question_is_refused(browser, filled, parameters):
    answer = browser.get(f"/api/v1/runs/{filled.pk}/points", parameters)
    assert answer.status_code == 422 and answer.json()["errors"]


def test_names_by_search_with_their_last_value(browser, filled):
    body = read(browser, filled, "series", search="Actor norm")
    SeriesPage.model_validate(body)
    (found,) = body["items"]
    assert (found["name"], found["title"], found["last"]) == ("actor/grad_norm", "Gradient norm", {"x": 2.0, "value": 3.0})
    gpu = read(browser, filled, "series", search="gpu")["items"][0]
    assert (gpu["axis"], gpu["last"]) == ("wall", {"x": 6.0, "value": "NaN"})


def test_names_page_by_page(browser, filled):
    names, after = [], ""
    while after is not None:
        body = read(browser, filled, "series", limit=1, after=after)
        names, after = names + [item["name"] for item in body["items"]], body["next"]
    assert names == ["actor/grad_norm", "critic/score/mean", "gpu/0/util", "perf/total_num_tokens"]


def test_samples(browser, filled):
    body = read(browser, filled, "samples", names=["gpu/0/util", "none"])
    SamplesOut.model_validate(body)
    assert body["series"] == {"gpu/0/util": [[5.0, 0.5], [6.0, "NaN"]], "none": []}
    assert read(browser, filled, "samples", names=["gpu/0/util"], **{"from": 5.5})["series"]["gpu/0/util"] == [[6.0, "NaN"]]


def test_logs_by_component_level_and_text(browser, filled):
    body = read(browser, filled, "logs")
    LogPage.model_validate(body)
    assert [line["message"] for line in body["items"]] == [f"line {n}" for n in range(10)]
    assert len(read(browser, filled, "logs", component="worker-1")["items"]) == 5
    assert [line["message"] for line in read(browser, filled, "logs", search="LINE 7")["items"]] == ["line 7"]
    assert read(browser, filled, "logs", level="debug")["items"] == []


def test_logs_page_by_page_in_both_directions(browser, filled):
    newest = read(browser, filled, "logs", limit=3)["items"]
    assert [line["message"] for line in newest] == ["line 7", "line 8", "line 9"]
    older = read(browser, filled, "logs", limit=3, before=newest[0]["id"])["items"]
    assert [line["message"] for line in older] == ["line 4", "line 5", "line 6"]
    assert read(browser, filled, "logs", limit=3, after=older[-1]["id"])["items"] == newest


@pytest.mark.django_db(transaction=True)
async def test_csv_holds_every_raw_point_hidden_ones_too(async_client, run, attempt, owner):
    from channels.db import database_sync_to_async

    def fill():
        accept_batch(attempt, make_batch(0, {"loss": [(step, float(step)) for step in range(5)], "=cmd()": [(0, math.nan)]}))
        type(attempt).objects.filter(pk=attempt.pk).update(state="lost", first_step=0)
        second = make_attempt(run, 2, first_step=3)
        accept_batch(second, make_batch(0, {"loss": [(3, 30.0)]}))

    await database_sync_to_async(fill)()
    await async_client.aforce_login(owner)
    answer = await async_client.get(f"/api/v1/runs/{run.pk}/points.csv")
    text = b"".join([part async for part in answer.streaming_content]).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["attempt"], row["step"], row["value"], row["visible"]) for row in rows if row["name"] == "loss"] == [
        ("1", "0", "0.0", "true"),
        ("1", "1", "1.0", "true"),
        ("1", "2", "2.0", "true"),
        ("1", "3", "3.0", "false"),
        ("1", "4", "4.0", "false"),
        ("2", "3", "30.0", "true"),
    ]
    assert [row["value"] for row in rows if row["name"] == "'=cmd()"] == ["nan"]


@pytest.mark.parametrize("path", ["points?names=x", "series", "samples?names=x", "logs", "points.csv"])
def test_another_team_sees_nothing(client, outsider, filled, path):
    client.force_login(outsider)
    assert client.get(f"/api/v1/runs/{filled.pk}/{path}").status_code == 404


def test_two_thousand_names_cost_the_same_queries(browser, run, attempt, django_assert_max_num_queries):
    accept_batch(attempt, make_batch(0, {f"metric/{n:04}": [(0, 1.0)] for n in range(2000)}))
    with django_assert_max_num_queries(6):
        assert len(read(browser, run, "series", limit=1000)["items"]) == 1000
