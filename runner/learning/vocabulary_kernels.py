"""The softmax over a vocabulary on a GPU: one pass over the logits each way, where elementwise calls would make a dozen.

Logits come in any precision; sums and exponentials are in float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Columns a program holds at once, and the warps that share them.
COLUMNS = 2048
WARPS = 8


@triton.jit
def _normalise(logits, stride, targets, temperature, logprobs, entropies, log_sums, vocabulary, columns: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    heat = tl.load(temperature + row)
    # Online softmax per lane, so that lanes meet only once, at the end. Finite, so that an impossible token makes no NaN.
    top = tl.full([columns], -1e30, tl.float32)
    total = tl.zeros([columns], tl.float32)
    moment = tl.zeros([columns], tl.float32)
    for start in range(0, vocabulary, columns):
        column = start + tl.arange(0, columns)
        value = tl.load(logits + column, mask=column < vocabulary, other=float("-inf")).to(tl.float32) / heat
        above = tl.maximum(top, value)
        kept, weight = tl.exp(top - above), tl.exp(value - above)
        total = total * kept + weight
        moment = moment * kept + tl.where(weight > 0, weight * value, 0.0)
        top = above
    highest = tl.max(top, 0)
    share = tl.exp(top - highest)
    total_of_row = tl.sum(total * share, 0)
    log_sum = highest + tl.log(total_of_row)
    chosen = tl.load(logits + tl.load(targets + row)).to(tl.float32) / heat
    tl.store(logprobs + row, chosen - log_sum)
    tl.store(entropies + row, log_sum - tl.sum(moment * share, 0) / total_of_row)
    tl.store(log_sums + row, log_sum)


@triton.jit
def _slope(logits, stride, targets, temperature, log_sums, grad, slopes, vocabulary, columns: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < vocabulary
    value = tl.load(logits + row * stride + column, mask=inside).to(tl.float32)
    heat = tl.load(temperature + row)
    probability = tl.exp(value / heat - tl.load(log_sums + row))
    hit = (column == tl.load(targets + row)).to(tl.float32)
    slope = (hit - probability) * (tl.load(grad + row) / heat)
    tl.store(slopes + row * vocabulary + column, slope.to(slopes.dtype.element_ty), mask=inside)


def normalise(logits: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(log-prob of the target, entropy, log Σ exp), float32[N] in nats, of softmax(logits [N, V] / temperature)."""
    count, vocabulary = logits.shape
    logprobs, entropies, log_sums = torch.empty(3, count, dtype=torch.float32, device=logits.device).unbind()
    _normalise[(count,)](
        logits, logits.stride(0), targets, temperature, logprobs, entropies, log_sums, vocabulary, columns=COLUMNS, num_warps=WARPS
    )
    return logprobs, entropies, log_sums


def slope(logits: Tensor, targets: Tensor, temperature: Tensor, log_sums: Tensor, grad: Tensor, dtype: torch.dtype) -> Tensor:
    """grad · d log p(target) / d logits, [N, V] in `dtype`. What is [N] is contiguous."""
    count, vocabulary = logits.shape
    slopes = torch.empty(count, vocabulary, dtype=dtype, device=logits.device)
    grid = (count, triton.cdiv(vocabulary, COLUMNS))
    _slope[grid](logits, logits.stride(0), targets, temperature, log_sums, grad, slopes, vocabulary, columns=COLUMNS, num_warps=WARPS)
    return slopes
