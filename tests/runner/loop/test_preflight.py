"""What only a node can refuse: storage, memory, disk, busy GPUs, engines, lengths."""

import shutil
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from runner import preflight
from runner.assignment import Assignment, Refused, local_grant, open_bank
from runner.contract.parse import parse
from runner.reporting.devices import Device
from runner.reporting.heartbeat import Component


def test_storage_that_cannot_be_written_is_refused(assignment, monkeypatch):
    preflight.check_storage(assignment)
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(PermissionError("read-only")))
    with pytest.raises(Refused, match="read-only"):
        preflight.check_storage(assignment)


def test_parameters_are_counted_from_headers(tiny_qwen3):
    from transformers import AutoModelForCausalLM

    expected = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_pretrained(tiny_qwen3).parameters())
    assert preflight.count_parameters(tiny_qwen3) == expected


def gang_on(*readings):
    """A gang of two processes on one GPU, whose memory in use is the next of `readings`, in GiB, each time it is asked for."""
    left = [None if gib is None else int(gib * 2**30) for gib in readings]

    def devices():
        told = Device(3, "GPU-3", "H", 0.0, left.pop(0) if len(left) > 1 else left[0], 141 << 30, 30.0, 70.0, 0)
        return {"learner": [told], "worker-0": [told]}

    return SimpleNamespace(devices=devices, components={name: Component(1, 1.0, "node-1", gpus=("3",)) for name in ("learner", "worker-0")})


def test_a_gpu_that_somebody_uses_is_refused_once_and_by_name(document, monkeypatch):
    monkeypatch.setattr(preflight, "FREED_WITHIN_S", 0.0)
    with pytest.raises(Refused) as refused:
        preflight.check_devices(gang_on(40.0), parse(document))
    told = "GPU 3 on node-1 has 40.00 GiB in use before the run has begun; end what uses it, cordon its node, ask for fewer, or set share_gpus"
    assert str(refused.value) == told and refused.value.pointer == "/resources/gpus"


def test_a_gpu_that_is_about_to_be_free_is_waited_for(document, monkeypatch):
    monkeypatch.setattr(preflight, "ASK_EVERY_S", 0.0)
    preflight.check_devices(gang_on(40.0, 12.0, 0.5), parse(document))
    preflight.check_devices(gang_on(None), parse(document))
    preflight.check_devices(SimpleNamespace(devices=dict, components={}), parse(document))


def test_a_gpu_that_somebody_uses_is_shared_where_the_run_says_so(document, monkeypatch):
    monkeypatch.setattr(preflight, "FREED_WITHIN_S", 0.0)
    preflight.check_devices(gang_on(40.0), parse({**document, "resources": {"share_gpus": True}}))


def test_a_disk_too_small_for_the_checkpoints_is_refused(assignment, tiny_qwen3, monkeypatch):
    assignment.storage.mkdir(parents=True)
    preflight.check_room(assignment, tiny_qwen3)
    size = preflight.count_parameters(tiny_qwen3) * 12
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, int(3 * size * 1.2) - 1))
    with pytest.raises(Refused) as refused:
        preflight.check_room(assignment, tiny_qwen3)
    assert refused.value.pointer == "/checkpoints/keep_last" and refused.value.value == 2


def test_too_little_memory_is_refused(assignment, tiny_qwen3, monkeypatch):
    assignment.storage.mkdir(parents=True)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1 << 20))
    with pytest.raises(Refused) as refused:
        preflight.check_room(assignment, tiny_qwen3)
    assert refused.value.pointer == "/resources/rollout_workers"


def generating(document, tmp_path, problems, **resources):
    """A run on vLLM, a gang whose workers find `problems`, and what the workers were asked."""
    config = parse({**document, "engine": {"type": "vllm"}, "resources": {"rollout_workers": 2, **resources}})
    asked = []

    def scatter(method, arguments):
        assert method == "engine_problems"
        asked.extend(arguments)
        return problems

    gang = SimpleNamespace(device="cuda" if config.resources.gpus else "cpu", scatter=scatter)
    return gang, Assignment("r", "7", 1, config, tmp_path, local_grant(config), tmp_path), asked


def test_a_worker_without_the_engine_is_named_with_the_field(document, tmp_path):
    gang, assignment, _ = generating(document, tmp_path, [[], [("type", "vllm is not installed on this node")]])
    with pytest.raises(Refused, match="worker-1: vllm is not installed") as refused:
        preflight.check_generation(gang, assignment)
    assert (refused.value.pointer, refused.value.value) == ("/engine/type", "vllm")


@pytest.mark.parametrize(("gpus", "device", "sharing"), [(0, "cpu", 2), (1, "cuda", 2), (2, "cuda", 1), (3, "cuda", 1)])
def test_each_worker_is_asked_beside_those_it_shares_memory_with(document, tmp_path, gpus, device, sharing):
    gang, assignment, asked = generating(document, tmp_path, [[], []], gpus=gpus)
    preflight.check_generation(gang, assignment)
    assert asked == [(device, sharing)] * 2


def test_nobody_is_asked_about_transformers(assignment):
    preflight.check_generation(SimpleNamespace(), assignment)


def test_the_longest_prompt_is_named(config, bank_file):
    bank = open_bank(bank_file.read_bytes(), config)
    lengths = {task.key: 10 for task in [*bank.train, *bank.held_out]}
    gang = SimpleNamespace(count=2, scatter=lambda method, arguments: [[lengths[key] for key in keys] for (keys,) in arguments])
    preflight.check_lengths(gang, bank, config)
    lengths["eval-25"] = 255
    with pytest.raises(Refused, match="'eval-25'.*255 tokens.*at least 257") as refused:
        preflight.check_lengths(gang, bank, config)
    assert refused.value.pointer == "/model/max_length"


def test_a_task_that_is_not_used_is_not_measured(document, bank_file):
    config = parse({**document, "evaluation": {"type": "none"}, "environment": {"type": "quiz", "train_limit": 3}})
    measured = []
    gang = SimpleNamespace(count=2, scatter=lambda method, arguments: [measured.extend(keys) or [1] * len(keys) for (keys,) in arguments])
    preflight.check_lengths(gang, open_bank(bank_file.read_bytes(), config), config)
    assert len(measured) == 3 and all(key.startswith("train-") for key in measured)
