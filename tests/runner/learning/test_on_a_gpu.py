"""What only a GPU does: the vocabulary's kernels, and attention by stretches, against float32 done plainly."""

import numpy as np
import pynvml
import pytest
import torch

from runner.learning.logprobs import logprobs_of
from runner.models import attention
from runner.models.attention import Block, Layout
from runner.reporting.devices import Devices

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("vocabulary", [300, 5000, 151_936])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_entropies_and_gradients(vocabulary, bias, dtype):
    torch.manual_seed(0)
    output = torch.nn.Linear(64, vocabulary, bias=bias, device="cuda", dtype=dtype)
    hidden = (4 * torch.randn(200, 64, device="cuda")).to(dtype).requires_grad_()
    targets, temperature = torch.randint(0, vocabulary, (200,), device="cuda"), torch.rand(200, device="cuda") + 0.5
    upstream = torch.randn(200, device="cuda")
    parameters = [hidden, *output.parameters()]
    found, entropy = logprobs_of(hidden, output, targets, temperature)
    gradients = torch.autograd.grad((found * upstream).sum(), parameters)

    exact = [tensor.detach().double().requires_grad_() for tensor in parameters]
    table = torch.log_softmax(torch.nn.functional.linear(*exact) / temperature.double()[:, None], -1)
    expected = table.gather(-1, targets[:, None])[:, 0]
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(entropy.double(), -(table.exp() * table).sum(-1), atol=1e-3, rtol=0)
    share = 1e-4 if dtype is torch.float32 else 2e-2
    for ours, theirs in zip(gradients, torch.autograd.grad((expected * upstream).sum(), exact), strict=True):
        torch.testing.assert_close(ours.double(), theirs, atol=share * float(theirs.abs().max()), rtol=0)


def test_an_impossible_token_has_no_share():
    output = torch.nn.Linear(1, 3, device="cuda")
    with torch.no_grad():
        output.weight.zero_()
        output.bias.copy_(torch.tensor([0.0, 0.0, float("-inf")]))
    found, entropy = logprobs_of(torch.zeros(1, 1, device="cuda"), output, torch.tensor([0], device="cuda"), torch.ones(1, device="cuda"))
    assert entropy.item() == pytest.approx(np.log(2), abs=1e-5) and found.item() == pytest.approx(-np.log(2), abs=1e-5)


@pytest.mark.parametrize(
    "blocks",
    [
        [Block(2048, [])] * 3,
        [Block(4000, []), Block(2500, []), Block(2300, []), Block(100, []), Block(700, [30, 500]), Block(5, [])],
        [Block(40, []), Block(9, [4, 2])],
    ],
    ids=["equal", "mixed", "short"],
)
def test_attention_by_stretches(blocks):
    layout, generator = Layout(blocks), torch.Generator("cuda").manual_seed(0)
    tokens = sum(block.tokens for block in blocks)
    shapes = [(1, tokens, heads, 128) for heads in (16, 8, 8)]
    states = [torch.randn(shape, generator=generator, device="cuda").bfloat16().requires_grad_() for shape in shapes]
    upstream = torch.randn(shapes[0], generator=generator, device="cuda")
    found = attention.packed_sdpa(torch.nn.Identity(), *(state.transpose(1, 2) for state in states), None, layout=layout)[0]
    exact = [state.detach().float().requires_grad_() for state in states]
    expected = attention._packed(*(state.transpose(1, 2) for state in exact), layout, None).transpose(1, 2)
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=0)
    ours = torch.autograd.grad((found.float() * upstream).sum(), states)
    for left, right in zip(ours, torch.autograd.grad((expected * upstream).sum(), exact), strict=True):
        torch.testing.assert_close(left.float(), right, atol=2e-2 * float(right.abs().max()), rtol=0)


def test_the_driver_tells_of_its_gpus():
    devices = Devices().read()
    assert len(devices) == pynvml.nvmlDeviceGetCount() >= 1
    [first] = Devices().read(["0"])
    _, total = torch.cuda.mem_get_info(0)
    assert first.memory_total == pytest.approx(total, rel=0.02) and 0 <= first.utilisation <= 100 and 0 < first.temperature < 120
