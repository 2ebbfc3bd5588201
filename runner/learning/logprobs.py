"""Log-probs and entropies of chosen tokens without ever holding a batch's logits.

The output layer is applied to a few rows at a time, forward and again in backward; what is kept between the two
is hidden states only. Memory for logits is bounded by CHUNK_ELEMENTS, not by batch or sequence length.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from runner.learning.packing import alone, hidden_states, pack, plan_rows
from runner.models.loading import head

CHUNK_ELEMENTS = 1 << 22


def chunk_rows(vocabulary: int) -> int:
    """Positions whose logits may exist at once."""
    return max(1, CHUNK_ELEMENTS // vocabulary)


def _chunks(count: int, vocabulary: int) -> list[slice]:
    size = chunk_rows(vocabulary)
    return [slice(start, start + size) for start in range(0, count, size)]


def _scaled_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: Tensor) -> Tensor:
    return torch.nn.functional.linear(hidden, weight, bias).float() / temperature[:, None]


class _ChunkedLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, targets, temperature):
        logprobs = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(logprobs)
        for rows in _chunks(len(hidden), len(weight)):
            logits = _scaled_logits(hidden[rows], weight, bias, temperature[rows])
            log_probs = torch.log_softmax(logits, -1)
            logprobs[rows] = log_probs.gather(-1, targets[rows, None])[:, 0]
            entropies[rows] = -torch.special.xlogy(log_probs.exp(), log_probs.exp()).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, temperature)
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx, grad, _):
        hidden, weight, bias, targets, temperature = ctx.saved_tensors
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=torch.float32) if wants_bias else None
        for rows in _chunks(len(hidden), len(weight)):
            # d log p(target) / d logits = (one_hot(target) − p) / temperature
            probs = torch.softmax(_scaled_logits(hidden[rows], weight, bias, temperature[rows]), -1)
            probs.neg_().scatter_add_(-1, targets[rows, None], torch.ones_like(probs[:, :1]))
            slope = probs.mul_((grad[rows] / temperature[rows])[:, None]).to(hidden.dtype)
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
