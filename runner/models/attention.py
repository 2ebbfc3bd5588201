"""Attention without padding waste, registered with transformers as `packed_sdpa`.

Three shapes of call, told apart by what the caller passes down through the model's forward:
  packed   `cu_seq_lens_q`: one row [1, T] holding several sequences end to end; each attends to itself only
  decode   a boolean mask [B, 1, 1, S] and one query per row over a key/value cache
  causal   neither: ordinary causal attention over equally long rows
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

PACKED_SDPA = "packed_sdpa"


def packed_sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """query [B, Hq, Q, D], key and value [B, Hkv, S, D] -> [B, Q, Hq, D], as transformers' attention functions do."""
    if cu_seq_lens_q is not None:
        output = _packed(query, key, value, torch.diff(cu_seq_lens_q).tolist(), scaling, dropout)
    elif attention_mask is not None:
        output = _decode(query, key, value, attention_mask, scaling)
    else:
        grouped = query.shape[1] != key.shape[1]
        output = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, scale=scaling, is_causal=query.shape[2] > 1, enable_gqa=grouped)
    return output.transpose(1, 2).contiguous(), None


def _packed(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scaling: float | None, dropout: float) -> Tensor:
    # One call per sequence costs sum(length²); a block mask over the row would cost T².
    grouped = query.shape[1] != key.shape[1]
    parts = [
        F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling, is_causal=True, enable_gqa=grouped)
        for q, k, v in zip(query.split(lengths, 2), key.split(lengths, 2), value.split(lengths, 2), strict=True)
    ]
    return torch.cat(parts, 2)


def _decode(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    # Query heads that share a key head become queries of that head, so the cache is never repeated in memory.
    rows, heads, queries, size = query.shape
    if queries != 1:
        raise ValueError(f"packed_sdpa: a mask goes with one query per row, got {queries}; pass cu_seq_lens_q for longer input")
    grouped = query.view(rows, key.shape[1], heads // key.shape[1], size)
    return F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling).view(rows, heads, 1, size)


AttentionInterface.register(PACKED_SDPA, packed_sdpa)
