"""The services of a real house die and are away under load; only the cluster is stood in for, so that much can be tried in little time."""

import time

import pytest

from benchmarks.prove._outages import broker_flushed, database_away
from tests.chaos.follower import Follower
from tests.chaos.house import hold_down, until
from tests.chaos.kills import KINDS, delivers, stop_and_settle, strike, verdict
from tests.chaos.light import DOCUMENT, light_house

pytestmark = pytest.mark.slow

SOCKET_BACK_S = 5.0


@pytest.fixture(scope="module")
def house():
    with light_house() as house:
        yield house


@pytest.fixture(scope="module")
def run(house):
    run = house.launch(DOCUMENT)
    until(lambda: house.step(run) > 10, "the run reports")
    return run


@pytest.mark.parametrize("kind", ["web", "postgres", "worker", "bulk", "beat"])
def test_a_service_dies_and_the_run_goes_on(house, run, kind):
    figures = strike(house, run, KINDS[kind])
    print(figures)
    assert [attempt["state"] for attempt in house.attempts(run)] == ["running"]


def test_the_broker_dies_and_the_page_misses_nothing(house, run):
    follower = Follower(house, run)
    until(lambda: follower.heard, "the page hears")
    print(strike(house, run, KINDS["broker"]))
    back = time.time()
    until(lambda: follower.heard > back, "a frame comes through the new broker", SOCKET_BACK_S)
    follower.close()
    steps = {step for _, step in follower.steps}
    assert steps == set(range(1, max(steps) + 1)) and follower.losses == 0


def test_the_web_process_is_away_and_the_page_fills_its_gap(house, run):
    follower = Follower(house, run)
    until(lambda: follower.heard, "the page hears")
    let_go = hold_down(house, "web", 10.0)
    until(house.web_answers, "the web process answers again")
    back = time.time()
    until(lambda: follower.heard > back, "the page hears again", SOCKET_BACK_S)
    until(lambda: delivers(house, run, let_go), "what was reported meanwhile arrives")
    follower.close()
    steps = {step for _, step in follower.steps}
    assert steps == set(range(1, max(steps) + 1)) and follower.losses > 0 and follower.resets == 0


def test_a_killed_driver_is_replaced_by_one_attempt(house, run):
    print(strike(house, run, KINDS["driver"]))
    assert [attempt["state"] for attempt in house.attempts(run)] == ["lost", "running"]


def test_the_database_is_away_under_load(house, run):
    print(database_away(house, run, 8.0))


def test_the_broker_forgets_everything(house, run):
    print(broker_flushed(house, run))


def test_at_last_nothing_is_missing(house, run):
    stop_and_settle(house, run)
    assert verdict(house, run) == []
