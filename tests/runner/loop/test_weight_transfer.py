"""A real run whose weights go from the learner to the workers by one broadcast; in the middle a worker is killed."""

import re

import psutil
import pytest

from tests.runner.loop.conftest import finish, start
from tests.runner.loop.test_run import log_has, wait_for_log

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def broadcast(tmp_path_factory, document, bank_file, ray_address):
    """The run of every other test here, with its weights going another way; worker-1 is killed after step 5."""
    out = tmp_path_factory.mktemp("broadcast")
    process = start(out, {**document, "resources": {**document["resources"], "weight_transfer": "collective"}}, bank_file, ray_address)
    wait_for_log(process, out, "step 5 ")
    log = (out / "attempts" / "1" / "driver.log").read_text()
    psutil.Process(int(re.search(r"worker-1 is process (\d+)", log).group(1))).kill()
    return finish(process, out)


def test_what_is_learned_does_not_depend_on_the_way_of_the_weights(broadcast, unbroken):
    assert broadcast.status == 0, broadcast.output[-4000:]
    # Lost episodes are told of besides; those that took their place are the same.
    about = ("actor/", "rollout_corr/", "sft/", "val/")
    found, expected = ({key: value for key, value in run.points().items() if key[0].startswith(about)} for run in (broadcast, unbroken))
    assert {key: (value, expected.get(key)) for key, value in found.items() if value != expected.get(key)} == {}
    assert found.keys() == expected.keys()


def test_every_push_took_its_time_and_arrived(broadcast):
    points = broadcast.points()
    took = [value for (name, _), value in points.items() if name == "timing_s/weight_transfer"]
    gaps = [value for (name, _), value in points.items() if name == "weight_sync/probe_difference"]
    assert len(took) == len(gaps) == 5 and min(took) > 0 and max(gaps) < 1e-4


def test_the_killed_worker_came_back_and_the_others_met_it_anew(broadcast):
    assert log_has(broadcast.out, "worker-1 was lost and is replaced")
