"""A run on another engine than transformers: to its end where vLLM is installed, refused with the field where it is not."""

import importlib.util

import pytest

from tests.runner.loop.conftest import finish, start
from tests.runner.tiny_models import save_tiny

pytestmark = [pytest.mark.ray, pytest.mark.slow]

HAS_VLLM = importlib.util.find_spec("vllm") is not None
ENGINE = {"type": "vllm", "memory_fraction": 0.08, "max_sequences": 16}


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed here: nothing to refuse")
def test_a_node_without_vllm_refuses_the_run_before_a_model_is_loaded(tmp_path, document, bank_file, ray_address):
    run = finish(start(tmp_path, {**document, "engine": ENGINE}, bank_file, ray_address), tmp_path)
    error = run.record["error"]
    assert run.status != 0 and (error["pointer"], error["value"]) == ("/engine/type", "vllm")
    assert "vllm is not installed" in error["message"] and "requirements-gpu.txt" in error["message"]
    assert not run.points() and not run.episodes()


@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed here; requirements-gpu.txt names it")
def test_a_run_on_vllm_learns_pushes_and_proves_each_push(tmp_path, document, bank_file, ray_address):
    # A processor's attention kernels ask for heads of 32.
    folder = save_tiny(tmp_path / "model", head_dim=32)
    changes = {"engine": ENGINE, "model": {"source": {"type": "path", "path": str(folder)}, "max_length": 256}}
    resources = {**document["resources"], "rollout_workers": 1}
    run = finish(
        start(tmp_path / "run", {**document, **changes, "resources": resources}, bank_file, ray_address), tmp_path / "run", seconds=1200
    )
    assert run.status == 0, run.output[-4000:]
    assert run.record["outcome"] == "succeeded" and run.record["step"] == 8
    gaps = [value for (name, _), value in run.points().items() if name == "weight_sync/probe_difference"]
    assert len(gaps) == 5 and 0 <= max(gaps) < 1e-3
    versions = {data["policy_version"] for told in run.episodes().values() for data in told.get("finished", ())}
    assert versions >= {3, 4, 5, 6, 7}
    assert {event["data"]["label"] for event in run.events("evaluation")} >= {"before stage 0", "after stage 1"}
