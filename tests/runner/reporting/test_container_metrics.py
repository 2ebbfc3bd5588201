"""Where the seconds of container episodes went, and what workers tell of them while they run."""

import pytest

from runner.contract.episode import Author
from runner.contract.metrics import REPAIR_DASHBOARD, lookup
from runner.contract.termination import Termination
from runner.reporting.live import LiveReporter
from runner.reporting.metrics import container_metrics
from runner.reporting.replay import read_connection, write_connection
from runner.rollouts.episodes import Outcome
from runner.rollouts.types import SampleBuilder
from runner.sandbox.base import Health
from runner.sandbox.results import Phase, PhaseEvent


def outcome(termination=Termination.FINISHED, turns=2, **facts) -> Outcome:
    builder = SampleBuilder()
    builder.append([1, 2, 3, 4], Author.STUDENT, [-1.0] * 4)
    sample = builder.build(episode="e", task="t", group=0, index=0, reward=None, termination=termination, policy_version=0, turns=turns)
    return Outcome(order=None, sample=sample, facts=facts)


def test_seconds_and_shares_are_over_container_episodes():
    batch = [
        outcome(
            phases={"admit": 2.0, "env_setup": 10.0, "agent_execution": 4.0, "verifier": 3.0, "regrade": 2.0}, delivered=True, regraded=True
        ),
        outcome(phases={"admit": 0.0, "env_setup": 20.0, "agent_execution": 6.0, "verifier": 3.0}, delivered=False, fetches=["curl x"]),
        outcome(Termination.VERIFIER_TIMEOUT, phases={"admit": 1.0, "env_setup": 30.0}, delivered=True, forks=1),
    ]
    found = container_metrics(batch)
    assert (found["episode/env_setup_s/p50"], found["episode/agent_s/p50"], found["episode/verifier_s/p50"]) == (20.0, 5.0, 4.0)
    assert found["episode/env_setup_s/p95"] == pytest.approx(29.0)
    assert found["episode/tokens_per_turn"] == 2.0 and found["queue/wait_s"] == 1.0
    shares = ("episode/delivered_fraction", "episode/regraded_fraction", "episode/fetched_fraction", "episode/forked_fraction")
    assert [found[name] for name in shares] == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1 / 3])
    assert found["verifier/timeout_fraction"] == pytest.approx(1 / 3)
    assert all(lookup(name) for name in found), [name for name in found if not lookup(name)]


def test_a_run_without_containers_has_none_of_them():
    assert container_metrics([outcome()]) == {}


def test_the_repair_dashboard_is_two_by_four_of_known_metrics():
    names = [name for _, names in REPAIR_DASHBOARD for name in names]
    assert len(REPAIR_DASHBOARD) == 8 and all(lookup(name) for name in names)
    assert names == [
        "termination/finished/score_mean",
        "critic/score/mean",
        "response_length/mean",
        "actor/entropy",
        "rollout_corr/kl",
        "verifier_error/fraction",
        "termination/max_turns_exceeded/fraction",
        "group/zero_variance_fraction",
    ]


def test_nothing_is_told_without_a_control_plane(tmp_path):
    live = LiveReporter("worker-0", tmp_path)
    with live.telling():
        live.phase(PhaseEvent("e", "a", Phase.ADMIT, 1.0))
    assert not (tmp_path / "spool").exists()


def test_episodes_are_counted_by_phase(tmp_path, monkeypatch):
    told = []
    live = LiveReporter("worker-0", tmp_path)
    monkeypatch.setattr(live, "samples", told.append)
    for event in (
        PhaseEvent("a", "1", Phase.ENV_SETUP, 1.0),
        PhaseEvent("b", "1", Phase.ENV_SETUP, 1.0),
        PhaseEvent("a", "1", Phase.ENV_SETUP, 2.0, 1.0),
        PhaseEvent("a", "1", Phase.AGENT_EXECUTION, 2.0),
    ):
        live.phase(event)
    assert [list(values.values()) for values in told] == [[1.0], [2.0], [1.0], [1.0]]
    assert set(told[-1]) == {"sandbox/agent_execution worker-0"} and lookup("sandbox/agent_execution worker-0")
    live.health("node-1", Health(None, containers=3, list_seconds=0.25))
    assert told[-1] == {"docker/containers/node-1": 3.0, "docker/ps_latency_s/node-1": 0.25}
    assert all(lookup(name) for name in told[-1])


def test_a_connection_names_where_task_files_are(tmp_path):
    assert read_connection(tmp_path) is None
    write_connection(tmp_path, "http://house/api/ingest/7/batches", "secret")
    assert read_connection(tmp_path).tasks_url == "http://house/api/ingest/7/tasks"
