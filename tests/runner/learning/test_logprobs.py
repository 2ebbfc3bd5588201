"""Log-probs in chunks: equal to the naive computation, forward and backward, in bounded memory."""

import pytest
import torch

import runner.learning.logprobs as logprobs_module
from runner.learning.logprobs import chunk_rows, logprobs_of


def problem(count=37, width=12, vocabulary=50, bias=False, dtype=torch.float32):
    torch.manual_seed(0)
    output = torch.nn.Linear(width, vocabulary, bias=bias).to(dtype)
    hidden = torch.randn(count, width, dtype=dtype, requires_grad=True)
    return hidden, output, torch.randint(0, vocabulary, (count,)), torch.rand(count) + 0.5


def naive(hidden, output, targets, temperature):
    table = torch.log_softmax(output(hidden).float() / temperature[:, None], -1)
    return table.gather(-1, targets[:, None])[:, 0], -(table.exp() * table).sum(-1)


@pytest.fixture(params=[50, 7 * 50, 10_000])
def chunk_elements(request, monkeypatch):
    monkeypatch.setattr(logprobs_module, "CHUNK_ELEMENTS", request.param)


@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_equal_the_naive_ones(chunk_elements, bias):
    hidden, output, targets, temperature = problem(bias=bias)
    upstream = torch.randn(len(hidden))
    expected, entropy = naive(hidden, output, targets, temperature)
    parameters = [hidden, *output.parameters()]
    wanted = torch.autograd.grad((expected * upstream).sum(), parameters)
    got, got_entropy = logprobs_of(hidden, output, targets, temperature)
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(got_entropy, entropy, atol=1e-5, rtol=0)
    for left, right in zip(torch.autograd.grad((got * upstream).sum(), parameters), wanted, strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-5)


def test_the_gradient_passes_gradcheck_against_finite_differences():
    hidden, output, targets, temperature = problem(count=5)
    weight = output.weight
    got = torch.autograd.grad(logprobs_of(hidden, output, targets, temperature)[0].sum(), weight)[0]
    delta = 1e-2
    with torch.no_grad():
        for place in ((0, 0), (3, 7), (int(targets[0]), 2)):
            weight[place] += delta
            above = naive(hidden, output, targets, temperature)[0].sum()
            weight[place] -= 2 * delta
            below = naive(hidden, output, targets, temperature)[0].sum()
            weight[place] += delta
            assert got[place].item() == pytest.approx(((above - below) / (2 * delta)).item(), abs=2e-2)


def test_no_tensor_of_a_batch_s_logits_ever_exists(monkeypatch):
    """Neither forward nor backward makes a tensor larger than a chunk of logits or the output layer."""
    from torch.utils._python_dispatch import TorchDispatchMode

    monkeypatch.setattr(logprobs_module, "CHUNK_ELEMENTS", 4 * 500)
    hidden, output, targets, temperature = problem(count=640, width=3, vocabulary=500)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for value in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(value, torch.Tensor):
                    largest = max(largest, value.numel())
            return result

    with Watch():
        logprobs_of(hidden, output, targets, temperature)[0].sum().backward()
    assert 4 * 500 <= largest <= 640 * 4
    assert largest < 640 * 500 / 100


def test_a_chunk_holds_at_least_one_row():
    assert chunk_rows(10**9) == 1 and chunk_rows(10**9, "cuda") == 1


def test_a_chunk_on_a_gpu_is_large_and_whole_tiles():
    assert chunk_rows(151_936, "cuda") == 3456 == 27 * 128


def test_what_fits_in_one_chunk_is_made_once(monkeypatch):
    made = []
    logits = logprobs_module._logits
    monkeypatch.setattr(logprobs_module, "_logits", lambda *parts: made.append(len(parts[0])) or logits(*parts))
    for elements, expected in ((37 * 50, [37]), (20 * 50, [20, 17, 20, 17])):
        monkeypatch.setattr(logprobs_module, "CHUNK_ELEMENTS", elements)
        made.clear()
        hidden, *others = problem()
        logprobs_of(hidden, *others)[0].sum().backward()
        assert made == expected


def test_a_frozen_output_layer_gets_no_gradient():
    hidden, output, targets, temperature = problem()
    output.requires_grad_(False)
    logprobs_of(hidden, output, targets, temperature)[0].sum().backward()
    assert output.weight.grad is None and hidden.grad is not None


def test_bfloat16_is_scored_in_float32():
    hidden, output, targets, temperature = problem(dtype=torch.bfloat16)
    got, entropy = logprobs_of(hidden, output, targets, temperature)
    expected, _ = naive(hidden, output, targets, temperature)
    assert got.dtype is torch.float32 and entropy.dtype is torch.float32
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)


def test_an_impossible_token_has_no_share_in_the_entropy():
    output = torch.nn.Linear(1, 3)
    with torch.no_grad():
        output.weight.zero_()
        output.bias.copy_(torch.tensor([0.0, 0.0, float("-inf")]))
    _, entropy = logprobs_of(torch.zeros(1, 1), output, torch.tensor([0]), torch.ones(1))
    assert entropy.item() == pytest.approx(0.693147, abs=1e-5)
