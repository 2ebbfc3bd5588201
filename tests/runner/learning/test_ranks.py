"""Two ranks make the update that one process makes: the same losses, weights, norms and metrics, and they go on from each other's checkpoints."""

import numpy as np
import pytest

from runner.contract.run_config import LearnerSettings, LoraAdapter
from runner.learning.learner import Learner
from runner.learning.ranks import ALONE
from tests.runner.learning.several import on_ranks
from tests.runner.learning.test_learner import DEMONSTRATIONS, SFT_STEPS, Run, run_config

LAST = SFT_STEPS + 2
PROBE = [[1, 40, 41, 7, 9], [1, 2, 3]]
KINDS = {
    "full": run_config(),
    "lora": run_config(LoraAdapter(rank=4)),
    "activations computed again": run_config(learner=LearnerSettings(checkpoint_activations=True)),
    "bfloat16": run_config(dtype="bfloat16"),
}


class Recorded(Run):
    """Keeps what the policy sampled, so that others learn from the same."""

    def __init__(self, config, folder):
        super().__init__(config, folder)
        self.batches, self.trained = {}, {}

    def rollouts(self, step):
        self.batches[step] = super().rollouts(step)
        return self.batches[step]


def learned(learner, batches, until, root=None):
    """Metrics and samples of the steps to `until`, the weights after them and their scores; with `root` the checkpoint, too."""
    history, samples = {}, {}
    for step in range(learner.completed + 1, until + 1):
        if step in (1, SFT_STEPS + 1):
            learner.begin_stage(0 if step == 1 else 1, DEMONSTRATIONS)
        report = learner.learn(step, batches.get(step))
        history[step] = {name: value for name, value in report.metrics.items() if not name.startswith("timing_s/")}
        samples[step] = [(item.episode, item.mask, item.learner_logprob) for item in report.samples]
    written = learner.save(root, extra={"best": 0.5}) if root else None
    return {"history": history, "samples": samples, "weights": learner.weights(), "scores": learner.score(PROBE), "path": written and written.path}


def learn_on(ranks, config, folder, batches, until, root=None, resume=None):
    learner = Learner(config, folder, ranks=ranks)
    if resume:
        assert learner.restore(resume, DEMONSTRATIONS) == {"best": 0.5}
    return learned(learner, batches, until, root)


@pytest.fixture(scope="module")
def sampled(tiny_qwen3):
    """By kind of run, the episodes that one process learned from."""
    found = {}

    def of(kind, folder=tiny_qwen3):
        if kind not in found:
            run = Recorded(KINDS[kind], folder)
            run.go(LAST + 1)
            found[kind] = run.batches
        return found[kind]

    return of


def assert_alike(found, expected, tolerance=1e-4):
    assert found["history"].keys() == expected["history"].keys()
    for step, metrics in expected["history"].items():
        assert found["history"][step] == pytest.approx(metrics, rel=tolerance, abs=tolerance), step
    for step, samples in expected["samples"].items():
        assert [item[0] for item in found["samples"][step]] == [item[0] for item in samples]
        for (_, mask, ours), (_, theirs_mask, theirs) in zip(found["samples"][step], samples, strict=True):
            np.testing.assert_array_equal(mask, theirs_mask)
            np.testing.assert_allclose(ours, theirs, atol=tolerance)
    assert found["weights"].tensors.keys() == expected["weights"].tensors.keys()
    for name, array in expected["weights"].tensors.items():
        np.testing.assert_allclose(found["weights"].tensors[name], array, atol=tolerance, err_msg=name)
    for ours, theirs in zip(found["scores"], expected["scores"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance)


@pytest.mark.parametrize("kind", ["full", "lora", "activations computed again"])
def test_two_ranks_learn_what_one_process_learns(tiny_qwen3, tmp_path, sampled, kind):
    asked = (KINDS[kind], tiny_qwen3, sampled(kind), LAST)
    first, second = on_ranks(2, tmp_path / "meeting", learn_on, *asked)
    assert_alike(first, learn_on(ALONE, *asked))
    assert second["history"] == first["history"] and second["weights"] is None
