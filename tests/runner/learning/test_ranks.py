"""Several ranks make the update that one process makes, to the rounding of a sum, and each goes on from the other's checkpoints."""

import os
import resource
import signal
import time
from threading import Event

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from runner.contract.run_config import LearnerSettings, LoraAdapter
from runner.learning import checkpoints, trainer, trainer_state
from runner.learning import learner as module
from runner.learning.acceleration import accelerate
from runner.learning.learner import Learner
from runner.learning.ranks import ALONE
from runner.learning.weights import to_tensor
from tests.runner.learning.several import GONE, on_ranks
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
        self.batches = {}

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
    path = learner.save(root, extra={"best": 0.5}).path if root else None
    return {"history": history, "samples": samples, "weights": learner.weights(), "scores": learner.score(PROBE), "path": path}


def learn_on(ranks, config, folder, batches, until, root=None, resume=None, device="cpu"):
    learner = Learner(config, folder, device=device, ranks=ranks)
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


def numbers(weights):
    return {name: to_tensor(array, weights.dtypes[name]).float().numpy() for name, array in weights.tensors.items()}


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
    ours, theirs = (numbers(side["weights"]) for side in (found, expected))
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, atol=tolerance, err_msg=name)
    for ours, theirs in zip(found["scores"], expected["scores"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance)


@pytest.mark.parametrize("kind", ["full", "lora", "activations computed again"])
def test_two_ranks_learn_what_one_process_learns(tiny_qwen3, tmp_path, sampled, kind):
    asked = (KINDS[kind], tiny_qwen3, sampled(kind), LAST)
    first, second = on_ranks(2, tmp_path / "meeting", learn_on, *asked)
    assert_alike(first, learn_on(ALONE, *asked))
    assert second["history"] == first["history"] and second["weights"] is None


def learn_in_pieces(ranks, *asked):
    trainer._piece_rows = lambda network, hidden: 3
    return learn_on(ranks, *asked)


def learn_compiled(ranks, *asked):
    """As on a GPU, but for the code that comes of it."""
    module.accelerate = lambda network, settings: accelerate(network, LearnerSettings(compile=True), backend="eager")
    return learn_on(ranks, *asked)


@pytest.mark.parametrize("scenario", [learn_in_pieces, learn_compiled])
def test_pieces_of_a_row_and_compiled_layers_change_nothing(tiny_qwen3, tmp_path, scenario):
    asked = (KINDS["full"], tiny_qwen3, {}, 2)
    assert_alike(on_ranks(2, tmp_path / "meeting", scenario, *asked)[0], learn_on(ALONE, *asked))


def test_a_rank_without_a_row_adds_nothing(tiny_qwen3, tmp_path):
    """Two demonstrations for three ranks, computed by two of them."""
    config = run_config()
    config = config.model_copy(update={"stages": [config.stages[0].model_copy(update={"batch_size": 2})]})
    asked = (config, tiny_qwen3, {}, 2)
    assert_alike(on_ranks(3, tmp_path / "meeting", learn_on, *asked)[0], learn_on(ALONE, *asked))


def test_two_ranks_in_bfloat16_round_apart_no_further_than_it_rounds(tiny_qwen3, tmp_path, sampled):
    asked = (KINDS["bfloat16"], tiny_qwen3, sampled("bfloat16"), LAST)
    first, _ = on_ranks(2, tmp_path / "meeting", learn_on, *asked)
    expected = learn_on(ALONE, *asked)
    for step, metrics in expected["history"].items():
        for name in ("sft/loss", "actor/entropy", "actor/grad_norm"):
            if name in metrics:
                assert first["history"][step][name] == pytest.approx(metrics[name], rel=0.05), (step, name)
    assert set(first["weights"].dtypes.values()) == {"bfloat16"}
    ours, theirs = numbers(first["weights"]), numbers(expected["weights"])
    moved = [np.abs(ours[name] - array).mean() for name, array in theirs.items()]
    assert max(moved) < 2e-3, "of steps of 5e-3"


@pytest.mark.parametrize("kind, writers, readers", [("full", 2, 1), ("full", 2, 4), ("full", 1, 2), ("lora", 2, 1), ("bfloat16", 2, 1)])
def test_a_checkpoint_resumes_on_another_number_of_ranks(tiny_qwen3, tmp_path, sampled, kind, writers, readers):
    """Written inside the second stage: moments, reference and, in bfloat16, masters travel."""
    batches, config = sampled(kind), KINDS[kind]

    def on(size, name, *arguments):
        asked = (config, tiny_qwen3, batches, *arguments)
        return learn_on(ALONE, *asked) if size == 1 else on_ranks(size, tmp_path / name, learn_on, *asked)[0]

    before = on(writers, "writers", SFT_STEPS + 1, tmp_path)
    manifest = checkpoints.verify(before["path"])
    assert manifest.topology["learners"] == writers
    shards = {entry.path for entry in manifest.files if entry.path.startswith("trainer/shards/")}
    assert len(shards) == (0 if writers == 1 else writers + 1), "one of each rank, and what says where all lies"
    unbroken, resumed = on(writers, "unbroken", LAST + 1), on(readers, "readers", LAST + 1, None, before["path"])
    unbroken["history"] = {step: unbroken["history"][step] for step in resumed["history"]}
    unbroken["samples"] = {step: unbroken["samples"][step] for step in resumed["samples"]}
    assert len(resumed["history"]) == 2
    assert_alike(resumed, unbroken, tolerance=1e-4 if kind != "bfloat16" else 0.1)


def test_what_several_ranks_wrote_is_a_model_like_any(tiny_llama, tmp_path):
    """Of untied weights; read by transformers, and as the start of another run."""
    first, _ = on_ranks(2, tmp_path / "meeting", learn_on, KINDS["full"], tiny_llama, {}, 2, tmp_path)
    expected = learn_on(ALONE, KINDS["full"], tiny_llama, {}, 2, tmp_path / "alone")
    ours, theirs = (load_file(found["path"] / "model" / "model.safetensors") for found in (first, expected))
    assert ours.keys() == theirs.keys() and "lm_head.weight" in ours
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, atol=1e-5, rtol=1e-4)
    kept, plain = ((found["path"] / "model" / "config.json").read_text() for found in (first, expected))
    assert kept == plain
    model = AutoModelForCausalLM.from_pretrained(checkpoints.export_huggingface(first["path"], tmp_path / "export")).eval()
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([PROBE[0]])).logits[0], -1)[:-1]
    np.testing.assert_allclose(first["scores"][0][1:], table.gather(-1, torch.tensor(PROBE[0][1:])[:, None])[:, 0], atol=1e-5)


def learn_while_writing(ranks, config, folder, batches, root):
    """The same checkpoint, written at once and beside the two steps that follow."""
    learner = Learner(config, folder, ranks=ranks)
    learned(learner, batches, SFT_STEPS + 1)
    learner.save(root / "at once", extra={"best": 0.5})
    # Nothing is written before the steps have been made.
    made = Event()
    learner._writer.submit(made.wait)
    learner.begin_save(root / "beside", extra={"best": 0.5})
    with pytest.raises(RuntimeError, match="is being written"):
        learner.begin_save(root / "beside")
    after = learned(learner, batches, SFT_STEPS + 3)
    assert learner.saved() is None
    made.set()
    while not (written := learner.saved()):
        time.sleep(0.01)
    return after, written.manifest.step


@pytest.mark.parametrize("kind, size", [("full", 1), ("full", 2), ("lora", 2), ("bfloat16", 1)])
def test_a_checkpoint_written_beside_the_next_steps_is_that_of_its_own(tiny_qwen3, tmp_path, sampled, kind, size):
    asked = (KINDS[kind], tiny_qwen3, sampled(kind), tmp_path)
    (after, step), *_ = on_ranks(2, tmp_path / "meeting", learn_while_writing, *asked) if size > 1 else [learn_while_writing(ALONE, *asked)]
    assert step == SFT_STEPS + 1
    paths = [tmp_path / name / f"step_{step}" for name in ("at once", "beside")]
    files = [{entry.path: entry for entry in checkpoints.verify(path).files} for path in paths]
    assert files[0].keys() == files[1].keys()
    weights = [path for path in files[0] if path.endswith(("model.safetensors", "reference.safetensors"))]
    assert weights and all(files[0][path] == files[1][path] for path in weights)
    resumed = [learn_on(ALONE, *asked[:3], SFT_STEPS + 3, None, path) for path in paths]
    assert_alike(*resumed, tolerance=0)
    if size == 1:
        resumed[0]["history"], resumed[0]["samples"] = after["history"], after["samples"]
        assert_alike(after, resumed[0], tolerance=0)


def save_with_one_gone(ranks, folder, root):
    """The second rank is killed where it would write its part; what the first is told, and what it leaves."""
    learner = Learner(KINDS["full"], folder, ranks=ranks)
    learner.begin_stage(0, DEMONSTRATIONS)
    learner.learn(1)
    learner.save(root)
    learner.learn(2)
    if ranks.rank == 1:
        trainer_state.dcp.save = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(Exception) as caught:
        learner.save(root)
    return type(caught.value).__mro__, sorted(path.name for path in root.iterdir())


def test_a_rank_killed_while_it_writes_leaves_the_checkpoint_before(tiny_qwen3, tmp_path):
    root = tmp_path / "checkpoints"
    (kind, left), second = on_ranks(2, tmp_path / "meeting", save_with_one_gone, tiny_qwen3, root)
    assert second == GONE and Exception in kind, "an actor lives through an Exception only"
    assert left == ["step_1"] and checkpoints.latest(root) == root / "step_1"


def save_without_room(ranks, folder, root):
    learner = Learner(KINDS["full"], folder, ranks=ranks)
    learner.begin_stage(0, DEMONSTRATIONS)
    learner.learn(1)
    if ranks.rank == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    with pytest.raises(OSError) as caught:
        learner.save(root)
    return str(caught.value), list(root.iterdir())


def test_a_rank_that_cannot_write_its_part_is_named_on_all_ranks(tiny_qwen3, tmp_path):
    (first, left), (second, _) = on_ranks(2, tmp_path / "meeting", save_without_room, tiny_qwen3, tmp_path / "checkpoints")
    assert first == second and first.startswith("shards of the checkpoint: rank 1: ") and left == []
