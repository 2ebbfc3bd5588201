"""One real run that is hurt in every way, one after the other, and goes on; nothing that it reported is lost or told twice.

Everything is real: Postgres, broker, web, workers, Ray, driver, learner, rollout worker. The whole matrix of deaths and moments is
`./assay prove kills`.
"""

import json
import time

import httpx
import pytest

from runner.contract.events import CONTENT_TYPE, Batch, encode_batch
from tests.chaos.follower import Follower
from tests.chaos.house import ChaosHouse, hold_down, until, visible_steps
from tests.chaos.kills import DOCUMENT, KINDS, delivers, reach, stop_and_settle, strike, verdict
from tests.controlplane.factories import make_points
from tests.e2e.house import served

pytestmark = [pytest.mark.slow, pytest.mark.ray]

WEB_AWAY_S = 20.0
SOCKET_BACK_S = 5.0


@pytest.fixture(scope="module")
def house():
    with served(ChaosHouse) as house:
        yield house


@pytest.fixture(scope="module")
def run(house):
    run = house.launch(DOCUMENT)
    reach(house, run, "sft")
    return run


@pytest.fixture(scope="module")
def follower(house, run):
    follower = Follower(house, run)
    yield follower
    follower.close()


def newest(house, run) -> dict:
    return house.attempts(run)[-1]


@pytest.mark.parametrize("kind", ["web", "postgres", "worker", "bulk", "beat"])
def test_a_service_dies_and_the_run_does_not_notice(house, run, follower, kind):
    strike(house, run, KINDS[kind])
    assert [attempt["state"] for attempt in house.attempts(run)] == ["running"]


def test_the_broker_dies_and_the_page_misses_nothing(house, run, follower):
    strike(house, run, KINDS["broker"])
    back = time.time()
    until(lambda: follower.heard > back, "a frame comes through the new broker", SOCKET_BACK_S)


def test_the_web_process_is_away_under_a_healthy_run(house, run, follower):
    let_go = hold_down(house, "web", WEB_AWAY_S)
    until(house.web_answers, "the web process answers again")
    until(lambda: delivers(house, run, let_go), "what the run reported meanwhile arrives")
    assert newest(house, run)["state"] == "running"
    assert not house.rows("SELECT 1 FROM runs_runevent WHERE run_id = %s AND kind = 'contact_lost'", run), "its silence is not the runner's"


def test_a_rollout_worker_dies_and_is_replaced(house, run):
    reach(house, run, "grpo")
    strike(house, run, KINDS["rollout worker"])
    until(lambda: any("was lost and is replaced" in line for *_, line in house.journal(run, 1)), "the driver says so")


def test_the_learner_dies_and_the_next_attempt_goes_on(house, run):
    strike(house, run, KINDS["learner"])
    lost = house.attempts(run)[-2]
    assert lost["exit_record"]["outcome"] == "lost" and "learner" in lost["reason"]


def test_the_driver_dies_and_its_ghost_is_fenced(house, run):
    attempt = newest(house, run)
    connection = json.loads((house.run_folder(run) / "attempts" / str(attempt["number"]) / "connection.json").read_text())
    strike(house, run, KINDS["driver"])
    with httpx.Client(headers={"Authorization": f"Bearer {connection['token']}"}, trust_env=False) as ghost:
        base = connection["url"].rpartition("/")[0]
        told = {
            "heartbeat": {"phase": "training", "step": 10**6, "components": {}},
            "state": {"state": "running", "phase": "training", "first_step": 1},
            "checkpoints": {
                "checkpoint": "8a4bb5bd-7c6a-4d3e-9d1a-000000000000",
                "stage": 1,
                "step": 10**6,
                "path": "/",
                "state": "complete",
            },
            "exit": {"outcome": "succeeded", "step": 10**6},
        }
        assert {what: ghost.post(f"{base}/{what}", json=body).status_code for what, body in told.items()} == dict.fromkeys(told, 409)
        late = Batch(emitter="ghost", sequence=0, points=make_points({"ghost/late": [(1, 1.0)]}))
        answer = ghost.post(connection["url"], content=encode_batch(late), headers={"Content-Type": CONTENT_TYPE})
    assert answer.status_code == 200 and answer.json()["accepted"] == 1, "its data is welcome, its word is not"
    fenced, open_one = house.attempts(run)[-2:]
    assert fenced["writes_fenced"] == len(told) and fenced["state"] == "lost" and open_one["state"] == "running"


@pytest.mark.parametrize("kind", ["ray head", "front"])
def test_the_ground_goes_and_the_next_attempt_goes_on(house, run, kind):
    strike(house, run, KINDS[kind])


def test_stopped_at_last_its_slots_are_free_and_nothing_is_missing(house, run, follower):
    stop_and_settle(house, run)
    assert verdict(house, run) == []
    assert len(house.attempts(run)) == 5 and [attempt["state"] for attempt in house.attempts(run)] == ["lost"] * 4 + ["stopped"]
    seen = {step for _, step in follower.steps}
    until(lambda: {step for _, step in follower.steps} >= set(visible_steps(house, run)), "the page was sent every step", SOCKET_BACK_S)
    assert follower.resets == 0 and seen
