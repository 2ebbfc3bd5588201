"""Real runs whose weights go from the learner to the workers by one broadcast: they learn what others learn, whoever is killed."""

import re

import psutil
import pytest

from tests.runner.loop.conftest import finish, start
from tests.runner.loop.test_run import log_has, wait_for_log

TAKEN = ("timing_s/", "perf/", "cpu/", "memory/")

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def run_by(tmp_path_factory, document, bank_file, ray_address):
    """Runs two steps of a warm start and four of GRPO with its weights going `way`; `watch` is told of process and folder."""
    stages = [{**stage, "steps": steps} for stage, steps in zip(document["stages"], (2, 4), strict=True)]
    base = {**document, "stages": stages, "evaluation": {"type": "none"}}

    def run(way, watch=lambda process, out: None, **resources):
        out = tmp_path_factory.mktemp("way")
        asked = {**document["resources"], "worker_cpus": 0.3, "learner_cpus": 0.4, "weight_transfer": way, **resources}
        process = start(out, {**base, "resources": asked}, bank_file, ray_address)
        watch(process, out)
        return finish(process, out)

    return run


@pytest.fixture(scope="module")
def by_the_object_store(run_by):
    return run_by("object_store")


def assert_the_same(run, other, about=("",)):
    """Both found the same numbers `about` something; what a step took is another matter."""
    assert run.status == 0 and other.status == 0, run.output[-4000:] + other.output[-4000:]
    found, expected = (
        {key: value for key, value in one.points().items() if key[0].startswith(about) and not key[0].startswith(TAKEN)} for one in (run, other)
    )
    assert {key: (value, expected.get(key)) for key, value in found.items() if value != expected.get(key)} == {}
    assert found.keys() == expected.keys()


def test_the_way_of_the_weights_changes_nothing_that_is_learned(run_by, by_the_object_store):
    run = run_by("collective")
    assert_the_same(run, by_the_object_store)
    transfers = [value for (name, _), value in run.points().items() if name == "timing_s/weight_transfer"]
    assert len(transfers) == 4 and min(transfers) > 0
    assert not log_has(run.out, "through the object store")


def test_a_worker_that_is_killed_comes_back_with_the_current_weights(run_by, by_the_object_store):
    def kill_a_worker(process, out):
        wait_for_log(process, out, "step 3 ")
        log = (out / "attempts" / "1" / "driver.log").read_text()
        psutil.Process(int(re.search(r"worker-1 is process (\d+)", log).group(1))).kill()

    run = run_by("collective", kill_a_worker)
    assert log_has(run.out, "worker-1 was lost and is replaced")
    # Its lost episodes are told of besides; those that took their place are the same.
    assert_the_same(run, by_the_object_store, ("actor/", "rollout_corr/", "weight_sync/"))


def test_a_learner_of_two_processes_sends_what_both_hold(run_by):
    run = run_by("collective", learner_processes=2)
    assert run.status == 0, run.output[-4000:]
    gaps = [value for (name, _), value in run.points().items() if name == "weight_sync/probe_difference"]
    assert len(gaps) == 4 and max(gaps) < 1e-4 and not log_has(run.out, "through the object store")
