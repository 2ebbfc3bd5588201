"""Weights that are pushed are proved to have arrived."""

import numpy as np
import pytest

from runner.assignment import open_bank
from runner.reporting.emitter import Emitter
from runner.rollouts.dispatcher import Dispatcher
from runner.sync import WeightSync, WeightSyncError


class FakeGang:
    """Scores are what `learner` and `workers` say; versions likewise."""

    count = 2

    def __init__(self, version=4, drift=0.0):
        self.version, self.drift, self.pushes, self.asleep = version, drift, 0, True

    def wake(self):
        self.asleep = False

    def ask_learner(self, method, *arguments):
        return method, arguments

    def wait(self, reference):
        return [np.array([np.nan, -1.0], np.float32)]

    def push_weights(self):
        assert not self.asleep
        self.pushes += 1
        return [4, self.version]

    def every_worker(self, method, *arguments):
        answers = {
            "probe": [[[1, 2]]] * 2,
            "score": [[np.array([np.nan, -1.0])], [np.array([np.nan, -1.0 + self.drift])]],
        }
        return answers[method]


def sync_of(gang, config, tmp_path, bank_file):
    dispatcher = Dispatcher(gang, "7")
    return WeightSync(
        gang, dispatcher, Emitter(tmp_path / "spool", "driver"), open_bank(bank_file.read_bytes(), config), config
    ), dispatcher


def test_a_push_measures_the_difference_and_happens_once_a_version(config, tmp_path, bank_file):
    gang = FakeGang(drift=5e-4)
    sync, dispatcher = sync_of(gang, config, tmp_path, bank_file)
    told = sync.push(4)
    assert told["weight_sync/probe_difference"] == pytest.approx(5e-4, rel=1e-3) and dispatcher.version == 4
    assert told["timing_s/weight_transfer"] >= 0
    assert sync.push(4) == {} and gang.pushes == 1


@pytest.mark.parametrize("gang", [FakeGang(drift=2e-3), FakeGang(drift=float("nan")), FakeGang(version=3)])
def test_workers_that_do_not_hold_the_weights_end_the_run(config, tmp_path, bank_file, gang):
    sync, dispatcher = sync_of(gang, config, tmp_path, bank_file)
    with pytest.raises(WeightSyncError, match="weight_sync"):
        sync.push(4)
    assert dispatcher.version == 0


@pytest.mark.parametrize(("dtype", "difference"), [("float32", 0.4), ("bfloat16", 0.1)])
def test_a_single_token_decides_in_float32_and_the_mean_in_bfloat16(config, tmp_path, bank_file, dtype, difference):
    sync, _ = sync_of(FakeGang(), config.model_copy(update={"model": config.model.model_copy(update={"dtype": dtype})}), tmp_path, bank_file)
    held, off = np.array([np.nan, -1, -1, -1, -1]), np.array([np.nan, -1, -1, -1.4, -1])
    assert sync._difference([held], [[held], [off]]) == pytest.approx(difference)
