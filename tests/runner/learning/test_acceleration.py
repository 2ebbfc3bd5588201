"""Compiled or computed again, layers give the hidden states and gradients they gave before."""

import numpy as np
import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend

from runner.contract.run_config import LearnerSettings, LoraAdapter, Model
from runner.learning.acceleration import accelerate
from runner.learning.packing import alone, hidden_states, pack, share_prefixes
from runner.learning.weights import trainable
from runner.models.loading import ModelError, load_model
from tests.runner.tiny_models import save_tiny

LAYERS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("deep"), num_hidden_layers=LAYERS)


def rows():
    """Rows of other lengths, numbers of sequences and kinds of block."""
    generator = np.random.default_rng(0)
    groups = [[generator.integers(3, 290, length) for length in lengths] for lengths in ([5, 17, 9], [30, 2], [40])]
    prompt = generator.integers(3, 290, 20)
    shared = [np.concatenate([prompt, tail]) for tail in ([5, 6, 7], [8])]
    return [pack(group, alone(group), "cpu") for group in groups] + [pack(shared, share_prefixes(shared, [20, 20], 100), "cpu")]


def outcome(network, row):
    network.zero_grad(set_to_none=True)
    hidden = hidden_states(network, row)
    hidden.square().sum().backward()
    return hidden.detach(), {name: parameter.grad for name, parameter in trainable(network).items()}


def assert_same_outcomes(folder, model, settings, **how):
    plain, changed = (load_model(folder, model, seed=0) for _ in range(2))
    accelerate(changed, settings, **how)
    for row in rows():
        expected, found = outcome(plain, row), outcome(changed, row)
        torch.testing.assert_close(found[0], expected[0], atol=1e-5, rtol=0)
        for name, gradient in expected[1].items():
            torch.testing.assert_close(found[1][name], gradient, atol=1e-4 * float(gradient.abs().max()), rtol=0, msg=name)


@pytest.mark.parametrize("adapter", [None, LoraAdapter(rank=4)], ids=["full", "lora"])
def test_activations_computed_again_change_nothing(folder, adapter):
    model = Model(max_length=64) if adapter is None else Model(max_length=64, adapter=adapter)
    assert_same_outcomes(folder, model, LearnerSettings(checkpoint_activations=True))


@pytest.mark.slow
def test_one_compilation_serves_all_layers_and_rows(folder):
    compiled = []

    def counted(graph, inputs):
        compiled.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    torch._dynamo.reset()
    settings = LearnerSettings(compile=True, checkpoint_activations=True)
    assert_same_outcomes(folder, Model(max_length=64), settings, backend=counted)
    # Before attention and after it, in the layer and in its attention; the first layer's input may be told apart.
    assert 4 <= len(compiled) < LAYERS


def elements_kept(network, row):
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: sizes.append(tensor.numel()) or tensor, lambda tensor: tensor):
        hidden_states(network, row)
    return sum(sizes)


def test_fewer_activations_are_kept(folder):
    network, row = load_model(folder, Model(max_length=64), seed=0), rows()[2]
    every = elements_kept(network, row)
    accelerate(network, LearnerSettings(checkpoint_activations=True))
    assert elements_kept(network, row) < every / 5


def test_a_model_without_layers_is_refused():
    network = torch.nn.Module()
    network.base_model = torch.nn.Linear(2, 2)
    accelerate(network, LearnerSettings())
    with pytest.raises(ModelError, match="turn compile and checkpoint_activations off"):
        accelerate(network, LearnerSettings(checkpoint_activations=True))
