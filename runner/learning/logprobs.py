"""Log-probs and entropies of chosen tokens without ever holding a batch's logits.

The output layer is applied to a few rows at a time, forward and again in backward; what is kept between the two
is hidden states only, and the logits where one piece holds them all. Memory for logits is bounded by CHUNK_ELEMENTS,
not by batch or sequence length.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from runner.learning.packing import alone, hidden_states, pack, plan_rows
from runner.models.loading import head

# Logits that may exist at once. A GPU needs large pieces to be busy.
CHUNK_ELEMENTS = 1 << 22
GPU_CHUNK_ELEMENTS = 1 << 29


def chunk_rows(vocabulary: int, device: str = "cpu") -> int:
    """Positions whose logits may exist at once on a kind of device; on a GPU a multiple of 128, which its tiles are."""
    if device == "cpu":
        return max(1, CHUNK_ELEMENTS // vocabulary)
    rows = GPU_CHUNK_ELEMENTS // vocabulary
    return max(1, rows if rows < 128 else rows - rows % 128)


def _chunks(hidden: Tensor, weight: Tensor) -> list[slice]:
    size = chunk_rows(len(weight), hidden.device.type)
    return [slice(start, start + size) for start in range(0, len(hidden), size)]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # Rounding to bfloat16 alone costs a log-prob 0.02 nats; a GPU's product is summed in float32 anyway.
    if not hidden.is_cuda or hidden.dtype is torch.float32:
        return torch.nn.functional.linear(hidden, weight, bias)
    logits = torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return logits if bias is None else logits.add_(bias)


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    return logits.float() / temperature[:, None]


def _normalise(logits: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    log_probs = torch.log_softmax(_scaled(logits, temperature), -1)
    chosen = log_probs.gather(-1, targets[:, None])[:, 0]
    return chosen, -torch.special.xlogy(log_probs.exp(), log_probs.exp()).sum(-1), torch.zeros_like(chosen)


def _slope(logits: Tensor, targets: Tensor, temperature: Tensor, log_sums: Tensor, grad: Tensor, dtype: torch.dtype) -> Tensor:
    # d log p(target) / d logits = (one_hot(target) − p) / temperature
    probs = torch.softmax(_scaled(logits, temperature), -1)
    probs.neg_().scatter_add_(-1, targets[:, None], torch.ones_like(probs[:, :1]))
    return probs.mul_((grad / temperature)[:, None]).to(dtype)


def _softmax_of(hidden: Tensor) -> tuple[Callable, Callable]:
    """The two functions above, or their kernels on a GPU."""
    if not hidden.is_cuda:
        return _normalise, _slope
    from runner.learning import vocabulary_kernels

    return vocabulary_kernels.normalise, vocabulary_kernels.slope


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, temperature):
        normalise, _ = _softmax_of(hidden)
        logprobs, entropies, log_sums = (torch.empty(len(hidden), dtype=torch.float32, device=hidden.device) for _ in range(3))
        chunks, logits = _chunks(hidden, weight), None
        for rows in chunks:
            logits = _logits(hidden[rows], weight, bias)
            logprobs[rows], entropies[rows], log_sums[rows] = normalise(logits, targets[rows], temperature[rows])
        # What fits in one piece need not be computed again.
        kept = logits if len(chunks) == 1 else None
        ctx.save_for_backward(hidden, weight, bias, targets, temperature, log_sums, kept)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx, grad, _):
        hidden, weight, bias, targets, temperature, log_sums, kept = ctx.saved_tensors
        _, slope_of = _softmax_of(hidden)
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if wants_bias else None
        for rows in _chunks(hidden, weight):
            logits = _logits(hidden[rows], weight, bias) if kept is None else kept
            slope = slope_of(logits, targets[rows], temperature[rows], log_sums[rows], grad[rows].contiguous(), hidden.dtype)
            if wants_hidden:
                grad_hidden[rows] = slope @ weight
            if wants_weight:
                grad_weight += slope.t() @ hidden[rows]
            if wants_bias:
                grad_bias += slope.sum(0)
        return (
            grad_hidden,
            grad_weight.to(weight.dtype) if wants_weight else None,
            grad_bias.to(bias.dtype) if wants_bias else None,
            None,
            None,
        )


def logprobs_of(hidden: Tensor, output: torch.nn.Linear, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probs, entropies), both float32[N] in nats, of softmax(output(hidden) / temperature).

    hidden [N, H]; targets int64[N]; temperature float32[N] > 0. Gradients flow through the log-probs only.
    """
    return _ChunkedLogprobs.apply(hidden, output.weight, output.bias, targets, temperature)


@torch.no_grad()
def score_sequences(
    network: torch.nn.Module, sequences: Sequence[Sequence[int]], temperature: float = 1.0, max_tokens: int = 8192
) -> list[np.ndarray]:
    """float32[T] per sequence: log-prob of each token given those before it; the first is NaN."""
    scores = [np.full(len(tokens), np.nan, np.float32) for tokens in sequences]
    device = next(network.parameters()).device
    for bundles in plan_rows(alone(sequences), max_tokens):
        row = pack(sequences, bundles, device)
        targets = row.input_ids[0, 1:]
        heat = torch.full((len(targets),), temperature, dtype=torch.float32, device=device)
        logprobs = logprobs_of(hidden_states(network, row)[:-1], head(network), targets, heat)[0].cpu().numpy()
        for index, place in zip(row.members, row.places):
            scores[index][1:] = logprobs[place[:-1]]
    return scores
