"""Packed rows as the ragged kernel takes them."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from runner.models import attention
from runner.models.attention import Block, Layout


def test_each_continuation_has_its_prefix_before_its_own_keys():
    ragged = Layout([Block(2, []), Block(3, [1, 2])]).ragged(torch.device("cpu"))
    assert ragged.queries.tolist() == [0, 2, 5, 6, 8] and ragged.keys.tolist() == [0, 2, 5, 9, 14]
    assert ragged.places.tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5, 2, 3, 4, 6, 7] and ragged.longest == (3, 5)


def test_sequences_end_to_end_attend_as_blocks_do():
    layout, random = Layout([Block(7, []), Block(20, [3, 5, 1]), Block(18, [4]), Block(5, [])]), torch.Generator().manual_seed(0)
    tokens = sum(block.tokens for block in layout.blocks)
    query, key, value = (torch.randn(1, heads, tokens, 8, generator=random, dtype=torch.float64) for heads in (6, 2, 2))
    ragged = layout.ragged(query.device)
    keys, values = (states[0][:, ragged.places].repeat_interleave(3, 0) for states in (key, value))
    found = torch.cat(
        [
            _causal_from_the_end(query[0][:, begin:end], keys[:, first:last], values[:, first:last])
            for begin, end, first, last in zip(ragged.queries, ragged.queries[1:], ragged.keys, ragged.keys[1:], strict=False)
        ],
        1,
    )
    torch.testing.assert_close(found[None], attention._packed(query, key, value, layout, None))


def test_long_blocks_are_parted_from_short_ones(monkeypatch):
    monkeypatch.setattr(attention, "DENSE_TOKENS", 8)
    monkeypatch.setattr(attention, "DENSE_GRAIN", 4)
    blocks = [Block(9, []), Block(12, []), Block(8, []), Block(7, []), Block(9, [2]), Block(16, [])]
    found = [(stretch.length, stretch.layout.blocks) for stretch in Layout(blocks).stretches()]
    assert found == [(12, blocks[:2]), (8, blocks[2:3]), (None, blocks[3:5]), (16, blocks[5:])]


@pytest.mark.parametrize("lengths", [[9, 12, 10], [12, 12]])
def test_blocks_padded_to_one_length_attend_as_blocks_do(lengths):
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(1, heads, sum(lengths), 8, generator=generator, dtype=torch.float64, requires_grad=True) for heads in (6, 2, 2)]
    upstream = torch.randn(1, 6, sum(lengths), 8, generator=generator, dtype=torch.float64)
    layout = Layout(Block(length, []) for length in lengths)
    padded, plain = attention._dense(*states, lengths, 12, None), attention._packed(*states, layout, None)
    torch.testing.assert_close(padded, plain)
    for ours, expected in zip(*(torch.autograd.grad((output * upstream).sum(), states) for output in (padded, plain)), strict=True):
        torch.testing.assert_close(ours, expected)


def _causal_from_the_end(query, keys, values):
    """What the kernel does with one sequence: its last query sees every key."""
    rows, columns = query.shape[1], keys.shape[1]
    seen = torch.ones(rows, columns, dtype=torch.bool).tril(columns - rows)
    return scaled_dot_product_attention(query, keys, values, attn_mask=seen)
