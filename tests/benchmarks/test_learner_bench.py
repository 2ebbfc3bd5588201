"""The learner benchmark's own arithmetic, its smallest run, and that it measures nothing where it cannot."""

import importlib.util
import json

import pytest

from benchmarks import learner
from runner.learning.trainer import plan


def test_a_machine_without_gpu_is_told_so_and_keeps_no_record(monkeypatch):
    monkeypatch.setattr(learner, "why_not", lambda: "torch finds no GPU on this machine")
    monkeypatch.setattr(learner, "publish", lambda found: pytest.fail("a record was written"))
    with pytest.raises(SystemExit) as ended:
        learner.main()
    assert ended.value.code not in (0, None) and "no GPU" in ended.value.code and "no record" in ended.value.code


def test_the_work_of_a_step_by_hand():
    shape = learner.Shape("x", hidden=8, intermediate=16, layers=2, vocabulary=100, heads=4, head_size=2)
    # Queries 8 x 8, keys and values 8 x 4 each, output 8 x 8; gate, up and down 8 x 16 each; output layer 8 x 100.
    assert shape.parameters == 2 * (64 + 32 + 32 + 64 + 3 * 128) + 800
    # Causal: half of each square; two products forward and four backward, 2 operations each.
    assert shape.flops([10, 4]) == 6 * shape.parameters * 14 + 2 * 6 * 8 * (100 + 16)


def test_the_shapes_are_those_of_qwen3():
    small, large = learner.Size().shapes
    assert small.parameters == pytest.approx(0.596e9, rel=1e-3) and large.parameters == pytest.approx(1.72e9, rel=1e-3)


def test_lengths_have_their_mean_and_their_longest():
    lengths = learner.mixed_batch(learner.Size())
    assert max(lengths) == 16_384 and len(lengths) == 16 and sum(lengths) == pytest.approx(16 * 2048, rel=0.01)


def test_sequences_share_nothing_and_weigh_one():
    sequences = learner.sequences_of([40, 24, 24], 300)
    assert sum(float(item.weight.sum()) for item in sequences) == pytest.approx(1)
    assert [int(item.mask.argmax()) for item in sequences] == [10, 6, 6]
    assert sum(bundle.tokens for row in plan(sequences, 100) for bundle in row) == 88


def test_kernels_are_told_apart():
    kernels = {
        "ncclDevKernel_AllGather_RING_LL": 128.0,
        "void pytorch_flash::flash_fwd_kernel": 1.0,
        "cudnn_generated_fort_native_sdpa_sm90": 2.0,
        "nvjet_tst_128x256": 4.0,
        "_normalise": 8.0,
        "triton_red_fused_mul": 16.0,
        "FusedAdamMathFunctor": 32.0,
        "vectorized_elementwise_kernel": 64.0,
    }
    found = learner.by_kind(kernels, 260.0)
    expected = {"communication": 128.0, "attention": 3.0, "vocabulary": 8.0, "matrix products": 4.0, "optimizer": 32.0, "compiled": 16.0, "other": 64.0}
    assert found == {**expected, "step": 260.0}


def test_the_smallest_run_measures_every_side_and_keeps_nothing(monkeypatch, capsys):
    monkeypatch.setattr(learner, "publish", lambda found: pytest.fail("a record was written"))
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "trl" else find_spec(name))
    learner.main(["--tiny"])
    equal, mixed = map(json.loads, capsys.readouterr().out.splitlines())
    assert equal["name"] == "learner_mfu" and equal["also"]["2 x 16"]["tokens_per_s"] > 0
    assert mixed["name"] == "learner" and mixed["peer"] is None and "not installed" in mixed["also"]["trl"]["left_out"]
    assert mixed["ours"] == mixed["also"]["ours"]["tokens_per_s"] > 0
    assert mixed["also"]["plain_transformers"]["tokens_per_s"] > 0
