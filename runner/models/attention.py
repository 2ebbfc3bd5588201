"""Attention without padding waste, registered with transformers as `packed_sdpa`.

Three shapes of call, told apart by what the caller passes down through the model's forward:
  packed   `layout`: one row [1, T] holding blocks end to end, each attending to itself only; block by block, or on a GPU in half
           precision all of them in one call of the ragged kernel, since thousands of small calls would take longer than the work,
           but for long blocks where cuDNN's kernel, which takes equally long rows only, is nearly twice as fast
  decode   a boolean mask [B, 1, 1, S] and one query per row over a key/value cache
  causal   neither: ordinary causal attention over equally long rows
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface

PACKED_SDPA = "packed_sdpa"

# Blocks of at least so many tokens go to the dense kernel, padded to a multiple of the grain: it is planned anew for each length.
DENSE_TOKENS = 2048
DENSE_GRAIN = 512
DENSE_KERNELS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@dataclass(frozen=True)
class Block:
    """`prefix` tokens, then continuations of `rests` tokens each: they see the prefix and themselves, not each other."""

    prefix: int
    rests: list[int]

    @property
    def tokens(self) -> int:
        """Tokens of the block in its row."""
        return self.prefix + sum(self.rests)


@dataclass(frozen=True)
class Ragged:
    """A row's blocks as sequences end to end: every prefix, and every continuation with its prefix before its own keys.

    `queries` and `keys` int32[sequences + 1] say where each begins, `places` int64 which token of the row each key is.
    """

    queries: Tensor
    keys: Tensor
    places: Tensor
    longest: tuple[int, int]


class Layout:
    """The blocks of a row, in order. What the ragged kernel needs of them is made once, for all layers.

    No list: torch.compile would look into one, and compile anew for each number of blocks.
    """

    def __init__(self, blocks: Iterable[Block]):
        self.blocks = list(blocks)
        self._ragged: Ragged | None = None
        self._stretches: list[Stretch] | None = None

    def stretches(self) -> list["Stretch"]:
        """Neighbouring blocks that one kernel call takes."""
        if self._stretches is None:
            groups = groupby(self.blocks, _dense_length)
            self._stretches = [Stretch(Layout(blocks), length) for length, blocks in groups]
        return self._stretches

    def ragged(self, device: torch.device) -> Ragged:
        """The same for the ragged kernel."""
        if self._ragged is None:
            queries, places, begin = [], [], 0
            for block in self.blocks:
                prefix = range(begin, begin + block.prefix)
                spans = [prefix, *([*prefix, *range(start, stop)] for start, stop in _spans(begin + block.prefix, block.rests))]
                queries += [block.prefix, *block.rests]
                places += spans
                begin += block.tokens
            keys = [len(span) for span in places]
            starts = (torch.tensor([0, *accumulate(sizes)], dtype=torch.int32, device=device) for sizes in (queries, keys))
            flat = torch.tensor([place for span in places for place in span], device=device)
            self._ragged = Ragged(*starts, flat, (max(queries), max(keys)))
        return self._ragged


@dataclass(frozen=True)
class Stretch:
    """Neighbouring blocks: for the dense kernel, each padded to `length`, or for the ragged one where that is None."""

    layout: Layout
    length: int | None

    @property
    def tokens(self) -> int:
        """Tokens of the stretch in its row."""
        return sum(block.tokens for block in self.layout.blocks)


def _dense_length(block: Block) -> int | None:
    if block.rests or block.prefix < DENSE_TOKENS:
        return None
    return -(-block.prefix // DENSE_GRAIN) * DENSE_GRAIN


def _spans(begin: int, sizes: list[int]) -> list[tuple[int, int]]:
    ends = list(accumulate(sizes, initial=begin))
    return list(pairwise(ends))


def packed_sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Layout | None = None,
    **kwargs,
) -> tuple[Tensor, None]:
    """query [B, Hq, Q, D], key and value [B, Hkv, S, D] -> [B, Q, Hq, D], as transformers' attention functions do."""
    if layout is not None and query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        output = _by_stretches(query, key, value, layout, scaling)
    elif layout is not None:
        output = _packed(query, key, value, layout, scaling)
    elif attention_mask is not None:
        output = _decode(query, key, value, attention_mask, scaling)
    else:
        output = _causal(query, key, value, scaling)
    return output.transpose(1, 2).contiguous(), None


def _causal(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    return F.scaled_dot_product_attention(
        query, key, value, scale=scaling, is_causal=query.shape[2] > 1, enable_gqa=query.shape[1] != key.shape[1]
    )


def _by_stretches(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None) -> Tensor:
    # cuDNN gains where the tensor cores of Hopper and later wait on it; before, the ragged kernel is as fast.
    if torch.cuda.get_device_capability(query.device) < (9, 0):
        return _ragged(query, key, value, layout.ragged(query.device), scaling)
    stretches = layout.stretches()
    sizes, parts = [stretch.tokens for stretch in stretches], []
    for stretch, *states in zip(stretches, *(states.split(sizes, 2) for states in (query, key, value)), strict=True):
        if stretch.length is None:
            parts.append(_ragged(*states, stretch.layout.ragged(query.device), scaling))
        else:
            parts.append(_dense(*states, [block.prefix for block in stretch.layout.blocks], stretch.length, scaling))
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _dense(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], padded: int, scaling: float | None) -> Tensor:
    # Padded at the end: no real query comes after a padded key.
    rows = (_rows(states, lengths, padded) for states in (query, key, value))
    with sdpa_kernel(DENSE_KERNELS, set_priority=True):
        output = _causal(*rows, scaling)
    if all(length == padded for length in lengths):
        return output.transpose(1, 2).reshape(1, -1, *output.shape[1::2]).transpose(1, 2)
    return torch.cat([row[None, :, :length] for row, length in zip(output, lengths)], 2)


def _rows(states: Tensor, lengths: list[int], padded: int) -> Tensor:
    tokens = states[0].transpose(0, 1)
    if any(length != padded for length in lengths):
        tokens = torch.cat([F.pad(piece, (0, 0, 0, 0, 0, padded - len(piece))) for piece in tokens.split(lengths)])
    return tokens.reshape(len(lengths), padded, *tokens.shape[1:]).transpose(1, 2)


def _ragged(query: Tensor, key: Tensor, value: Tensor, ragged: Ragged, scaling: float | None) -> Tensor:
    tokens, keys, values = (states[0].transpose(0, 1).contiguous() for states in (query, key, value))
    if len(ragged.places) != len(tokens):
        keys, values = keys.index_select(0, ragged.places), values.index_select(0, ragged.places)
    # Causal from the end: the last query of a sequence sees all its keys, so that a continuation sees its prefix.
    bounds = (ragged.queries, ragged.keys, *ragged.longest)
    output = torch.ops.aten._flash_attention_forward(tokens, keys, values, *bounds, 0.0, True, False, scale=scaling)[0]
    return output.transpose(0, 1)[None]


def _packed(query: Tensor, key: Tensor, value: Tensor, layout: Layout, scaling: float | None) -> Tensor:
    # Block by block costs the sum of their squares; one mask over the row would cost the square of the sum.
    sizes = [block.tokens for block in layout.blocks]
    parts = []
    for block, q, k, v in zip(layout.blocks, query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True):
        end = block.prefix
        parts.append(_causal(q[:, :, :end], k[:, :, :end], v[:, :, :end], scaling))
        if block.rests:
            parts.append(_continuations(q, k, v, block, scaling))
    return torch.cat(parts, 2)


def _continuations(query: Tensor, key: Tensor, value: Tensor, block: Block, scaling: float | None) -> Tensor:
    # Padded at the end inside this call only: no real query comes after a padded key.
    longest = max(block.rests)

    def rows(states: Tensor) -> Tensor:
        return pad_sequence(
            [piece[0].transpose(0, 1) for piece in states[:, :, block.prefix :].split(block.rests, 2)], batch_first=True
        ).transpose(1, 2)

    def with_prefix(states: Tensor) -> Tensor:
        return torch.cat([states[:, :, : block.prefix].expand(len(block.rests), -1, -1, -1), rows(states)], 2)

    mask = torch.ones(longest, block.prefix + longest, dtype=torch.bool, device=query.device).tril(block.prefix)
    grouped = query.shape[1] != key.shape[1]
    output = F.scaled_dot_product_attention(
        rows(query), with_prefix(key), with_prefix(value), attn_mask=mask, scale=scaling, enable_gqa=grouped
    )
    return torch.cat([piece[None, :, :length] for piece, length in zip(output, block.rests)], 2)


def _decode(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    # Query heads that share a key head become queries of that head, so the cache is never repeated in memory.
    rows, heads, queries, size = query.shape
    if queries != 1:
        raise ValueError(f"packed_sdpa: a mask goes with one query per row, got {queries}; pass a layout for longer input")
    grouped = query.view(rows, key.shape[1], heads // key.shape[1], size)
    return F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling).view(rows, heads, 1, size)


AttentionInterface.register(PACKED_SDPA, packed_sdpa)
