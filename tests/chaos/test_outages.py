"""What the services of a real house owe a run while one of them is away under load; only the cluster is stood in for, to save time."""

import time

import pytest

from benchmarks.prove._outages import SOCKET_BACK_S, broker_flushed, database_away
from tests.chaos.follower import Follower
from tests.chaos.house import hold_down, until
from tests.chaos.kills import delivers, stop_and_settle, verdict
from tests.chaos.light import DOCUMENT, light_house

pytestmark = pytest.mark.slow

WEB_AWAY_S, DATABASE_AWAY_S = 10.0, 8.0


@pytest.fixture(scope="module")
def house():
    with light_house() as house:
        yield house


@pytest.fixture(scope="module")
def run(house):
    run = house.launch(DOCUMENT)
    until(lambda: house.step(run) > 10, "the run reports")
    return run


def test_a_page_fills_the_gap_that_the_web_process_left(house, run):
    follower = Follower(house, run)
    until(lambda: follower.heard, "the page hears")
    let_go = hold_down(house, "web", WEB_AWAY_S)
    until(house.web_answers, "the web process answers again")
    back = time.time()
    until(lambda: follower.heard > back, "the page hears again", SOCKET_BACK_S)
    until(lambda: delivers(house, run, let_go), "what was reported meanwhile arrives")
    follower.close()
    steps = {step for _, step in follower.steps}
    assert steps == set(range(1, max(steps) + 1)) and follower.losses > 0 and follower.resets == 0


def test_the_database_is_away_under_load(house, run):
    """Everybody is told to come again, and everything arrives; `./assay prove kills outages` keeps it away for 20 s."""
    database_away(house, run, DATABASE_AWAY_S)


def test_the_broker_forgets_everything(house, run):
    broker_flushed(house, run)


def test_at_last_nothing_is_missing(house, run):
    stop_and_settle(house, run)
    assert verdict(house, run) == []
    assert [attempt["state"] for attempt in house.attempts(run)] == ["stopped"]
