"""Real runs whose learner is two processes: one is killed in the middle, and the next attempt goes on from what both had written."""

import math
import re

import psutil
import pytest

from runner.learning import checkpoints
from tests.runner.loop.conftest import finish, start
from tests.runner.loop.test_run import log_has, wait_for_log

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared_out(document):
    """Two steps of a warm start, then four of GRPO, by two learner processes that write their checkpoints beside the steps and send what both hold."""
    stages = [{**stage, "steps": steps} for stage, steps in zip(document["stages"], (2, 4), strict=True)]
    resources = {"rollout_workers": 1, "worker_cpus": 0.5, "learner_cpus": 0.5, "learner_threads": 1, "learner_processes": 2, "weight_transfer": "collective"}
    return {**document, "stages": stages, "evaluation": {"type": "none"}, "checkpoints": {"every_steps": 1, "in_background": True}, "resources": resources}


@pytest.fixture(scope="module")
def killed(tmp_path_factory, shared_out, bank_file, ray_address):
    """The first attempt, whose second learner process is killed after step 3."""
    out = tmp_path_factory.mktemp("several")
    process = start(out, shared_out, bank_file, ray_address)
    wait_for_log(process, out, "step 3 ")
    log = (out / "attempts" / "1" / "driver.log").read_text()
    psutil.Process(int(re.search(r"learner-1 is process (\d+)", log).group(1))).kill()
    return finish(process, out)


def test_a_lost_process_of_the_learner_loses_the_attempt(killed):
    assert killed.status == 1 and killed.record["outcome"] == "lost", killed.output
    assert "the learner's process learner-1 is gone" in killed.record["reason"]
    assert re.search(r"the learner's 2 processes meet at \S+:\d+", (killed.out / "attempts" / "1" / "driver.log").read_text())


def test_the_next_attempt_goes_on_to_the_end(killed, shared_out, bank_file, ray_address):
    last = checkpoints.latest(killed.out / "checkpoints" / "attempt_1")
    begin = checkpoints.verify(last)
    assert begin.step >= 1 and begin.topology["learners"] == 2
    resumed = finish(start(killed.out, shared_out, bank_file, ray_address, "--resume", str(last)), killed.out, number=2)
    assert resumed.status == 0 and resumed.record["outcome"] == "succeeded", resumed.output
    points = resumed.points()
    for step in range(begin.step + 1, 7):
        assert math.isfinite(points["actor/grad_norm", step]) and abs(points["rollout_corr/kl", step]) < 1e-5
        assert points["weight_sync/probe_difference", step] < 1e-4
    assert sum(points["actor/grad_norm", step] > 0 for step in range(begin.step + 1, 7)) > 0
    assert checkpoints.verify(killed.out / "checkpoints" / "attempt_2" / "step_6").topology["learners"] == 2
    trained = [event["trained"] for event in resumed.episodes().values() if "trained" in event]
    assert len(trained) == 16 * (6 - begin.step), "what both processes made of the episodes comes back whole"
    assert log_has(killed.out, "learner-1 is process", number=2)
