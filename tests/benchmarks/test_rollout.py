"""The rollout benchmark's own arithmetic, and that it measures nothing where it cannot."""

import numpy as np
import pytest

from benchmarks import rollout, rollout_truth


def test_a_machine_without_gpu_is_told_so_and_keeps_no_record(monkeypatch, tmp_path):
    monkeypatch.setattr(rollout, "why_not", lambda: "torch finds no GPU on this machine")
    monkeypatch.setattr(rollout, "publish", lambda found: pytest.fail("a record was written"))
    with pytest.raises(SystemExit) as ended:
        rollout.main()
    assert ended.value.code not in (0, None) and "no GPU" in ended.value.code and "no record" in ended.value.code


def test_what_is_missing_is_named(monkeypatch):
    import torch

    monkeypatch.setattr(rollout.importlib.util, "find_spec", lambda name: None if name == "vllm" else object())
    assert "vllm is not installed" in rollout.why_not()
    monkeypatch.setattr(rollout.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no GPU" in rollout.why_not()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert rollout.why_not() == ""


def test_the_longest_sequence_of_either_measurement_fits():
    assert rollout.Size().longest == 512 + 10 * 232
    assert rollout.Size(length=4000).longest == 8000


def test_differences_by_hand():
    found = rollout_truth.differences(np.array([0.0, np.log(2.0)]))
    assert found["mean_abs"] == pytest.approx(np.log(2) / 2) and found["max_abs"] == pytest.approx(np.log(2))
    assert found["k3"] == pytest.approx((1 - np.log(2)) / 2)
    assert found["ess"] == pytest.approx(9 / (5 * 2))
