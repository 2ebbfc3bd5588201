"""An adapter's checkpoint is small, its own, and means the same to plain peft as to the learner that wrote it."""

import json

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from runner.contract.bank import Demonstration
from runner.contract.run_config import LoraAdapter, Model, Optimizer, RunConfig, SftStage
from runner.learning import checkpoints
from runner.learning.learner import Learner

PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
SEQUENCE = [5, 9, 14, 3, 22, 17, 8]


def trained(folder, root, rank=4):
    adapter = LoraAdapter(rank=rank, alpha=rank)
    stage = SftStage(steps=3, batch_size=2, optimizer=Optimizer(learning_rate=1e-2))
    learner = Learner(RunConfig(name="x", model=Model(adapter=adapter, max_length=64), stages=[stage]), folder)
    learner.begin_stage(0, [Demonstration(key=f"d{number}", kind="s", prompt=f"which {number}?", completion="B") for number in range(3)])
    for step in range(1, 4):
        learner.learn(step)
    return learner, learner.save(root)


def logprobs(model):
    with torch.no_grad():
        logits = model(torch.tensor([SEQUENCE])).logits[0, :-1]
    return logits.log_softmax(-1)[torch.arange(len(SEQUENCE) - 1), torch.tensor(SEQUENCE[1:])].numpy()


def test_plain_peft_loads_it_and_scores_as_the_learner_does(tiny_qwen3, tmp_path):
    learner, written = trained(tiny_qwen3, tmp_path)
    (expected,) = learner.score([SEQUENCE])
    base = AutoModelForCausalLM.from_pretrained(tiny_qwen3, dtype=torch.float32)
    untouched = logprobs(base)
    adapted = PeftModel.from_pretrained(base, written.path / "adapter").eval()
    np.testing.assert_allclose(logprobs(adapted), expected[1:], atol=1e-4)
    assert np.abs(untouched - expected[1:]).max() > 1e-2, "the adapter does something"
    merged = AutoModelForCausalLM.from_pretrained(checkpoints.export_huggingface(written.path, tmp_path / "merged"), dtype=torch.float32)
    np.testing.assert_allclose(logprobs(merged), expected[1:], atol=1e-4)


def test_it_adapts_every_projection_and_holds_nothing_else(tiny_qwen3, tmp_path):
    learner, written = trained(tiny_qwen3, tmp_path)
    told = json.loads((written.path / "adapter" / "adapter_config.json").read_text())
    assert (told["r"], told["lora_alpha"], {name.rpartition(".")[2] for name in told["target_modules"]}) == (4, 4, PROJECTIONS)
    linear = [module for name, module in learner.network.get_base_model().named_modules() if name.rpartition(".")[2] in PROJECTIONS]
    expected = sum(4 * (module.in_features + module.out_features) for module in linear)
    assert sum(parameter.numel() for parameter in learner.network.parameters() if parameter.requires_grad) == expected
    size = sum(entry.size for entry in written.manifest.files if entry.path.startswith("adapter/adapter_model"))
    assert expected * 4 <= size < expected * 4 + 20_000 and written.manifest.adapter
    assert not any(entry.path.startswith("model/") for entry in written.manifest.files)


def test_the_published_adapter_has_the_published_size():
    """r = 64 over the seven projections of Qwen2.5-1.5B's 28 layers: 73.86 M parameters."""
    hidden, keys, inner = 1536, 256, 8960
    per_layer = 2 * (hidden + hidden) + 2 * (hidden + keys) + 3 * (hidden + inner)
    assert round(64 * per_layer * 28 / 1e6, 2) == 73.86
