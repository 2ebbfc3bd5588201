"""What is said of episodes in simulators: a lost one is an error, never a failure."""

from types import SimpleNamespace

import pytest

from runner.contract.metrics import SCIENCEWORLD_DASHBOARD, lookup
from runner.contract.termination import Termination
from runner.reporting.simulators import simulator_metrics


def outcome(success=None, termination=Termination.FINISHED, worker="worker-0", **facts):
    evidence = {} if success is None else {"success": success, "ambiguous": 2}
    sample = SimpleNamespace(reward=None if success is None else 1.0, termination=termination)
    return SimpleNamespace(sample=sample, evidence=evidence, termination=termination, worker=worker, facts=facts)


def test_success_is_over_graded_episodes_and_errors_over_all_tries():
    lost = outcome(termination=Termination.ENV_TIMEOUT, worker="worker-1", restarts=1)
    found = simulator_metrics([outcome(True, restarts=2, step_ms_p95=4.0), outcome(False, restarts=3, step_ms_p95=6.0), lost, outcome(False)])
    assert found["episode/success_rate"] == pytest.approx(1 / 3) and found["env/error_fraction"] == 0.25
    assert found["env/restart_count"] == 4 and found["env/step_ms_p95"] == 5.0 and found["episode/ambiguous_mean"] == 2
    assert all(lookup(name) for name in found)


def test_without_a_graded_episode_there_is_no_success_rate():
    found = simulator_metrics([outcome(termination=Termination.REPLAY_MISMATCH)])
    assert found["env/error_fraction"] == 1.0 and "episode/success_rate" not in found


def test_episodes_elsewhere_say_nothing():
    assert simulator_metrics([outcome(), outcome(termination=Termination.VERIFIER_ERROR)]) == {} == simulator_metrics([])


def test_every_chart_of_the_page_is_in_the_dictionary():
    assert len(SCIENCEWORLD_DASHBOARD) == 8 and all(lookup(name) for _, names in SCIENCEWORLD_DASHBOARD for name in names)
