"""Packed rows: nothing padded, and every sequence as if it were alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from runner.contract.run_config import Model
from runner.learning.logprobs import score_sequences
from runner.learning.packing import Bundle, alone, hidden_states, pack, plan_rows, share_prefixes
from runner.models.attention import Block
from runner.models.loading import load_model

SEQUENCES = [np.arange(3, 3 + length) % 290 for length in (5, 17, 1, 9, 30, 2)]


PREFIX = np.arange(40, 60)
GROUP = [np.concatenate([PREFIX, tail]) for tail in ([5, 6, 7], [8], [9, 10, 11, 12, 13], [5, 6])] + [
    np.arange(3, 20),
    np.concatenate([PREFIX + 1, [4]]),
]
STARTS = [20, 20, 20, 20, 4, 20]


def single(*members):
    return [alone(SEQUENCES)[index] for index in members]


@given(st.lists(st.integers(1, 200), max_size=40), st.integers(1, 128))
def test_every_sequence_is_in_one_row_within_the_limit(lengths, limit):
    rows = plan_rows([Bundle([index], length, length) for index, length in enumerate(lengths)], limit)
    assert sorted(index for row in rows for bundle in row for index in bundle.members) == list(range(len(lengths)))
    for row in rows:
        assert len(row) == 1 or sum(bundle.tokens for bundle in row) <= limit


def test_rows_are_filled_before_new_ones_open():
    rows = plan_rows([Bundle([index], length, length) for index, length in enumerate([4, 3, 3, 2])], 6)
    assert [[bundle.members[0] for bundle in row] for row in rows] == [[0, 3], [1, 2]]


def test_a_row_holds_no_padding():
    row = pack(SEQUENCES, single(1, 0, 3), "cpu")
    assert row.input_ids.shape == (1, 31) and row.layout.blocks == [Block(17, []), Block(5, []), Block(9, [])]
    assert row.position_ids[0].tolist() == [*range(17), *range(5), *range(9)]
    assert [place.tolist() for place in row.places] == [[*range(17)], [*range(17, 22)], [*range(22, 31)]]


def test_equal_beginnings_are_bundled():
    assert share_prefixes(GROUP, STARTS, 1000) == [Bundle([0, 1, 2, 3], 20, 31), Bundle([4], 17, 17), Bundle([5], 21, 21)]


def test_a_bundle_over_the_limit_is_cut_and_repeats_its_beginning():
    assert share_prefixes(GROUP[:4], STARTS[:4], 25) == [Bundle([0, 1], 20, 24), Bundle([2], 20, 25), Bundle([3], 20, 22)]


def test_short_beginnings_are_not_shared():
    assert [bundle.members for bundle in share_prefixes([np.array([1, 2, 3]), np.array([1, 2, 4])], [2, 2], 100)] == [[0], [1]]


def test_a_shared_beginning_is_in_the_row_once():
    row = pack(GROUP, share_prefixes(GROUP, STARTS, 1000)[:1], "cpu")
    assert row.input_ids.shape == (1, 31) and row.layout.blocks == [Block(20, [3, 1, 5, 2])]
    for index, place in zip(row.members, row.places):
        assert row.input_ids[0, place].tolist() == GROUP[index].tolist()
        assert row.position_ids[0, place].tolist() == list(range(len(GROUP[index])))


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_sharing_changes_no_hidden_state_and_no_gradient(kind, request):
    network = load_model(request.getfixturevalue(f"tiny_{kind}"), Model(max_length=64), seed=0)
    weight = network.model.layers[0].self_attn.k_proj.weight
    upstream = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    shared, apart = (pack(GROUP, bundles, "cpu") for bundles in (share_prefixes(GROUP, STARTS, 1000), alone(GROUP)))
    found = {}
    for name, row in (("shared", shared), ("apart", apart)):
        hidden = hidden_states(network, row)
        pieces = {index: hidden[place] for index, place in zip(row.members, row.places)}
        loss = sum((pieces[index] * upstream[: len(pieces[index])]).sum() for index in range(len(GROUP)))
        found[name] = pieces, torch.autograd.grad(loss, weight)[0]
    for index in range(len(GROUP)):
        torch.testing.assert_close(found["shared"][0][index], found["apart"][0][index], atol=1e-5, rtol=0)
    torch.testing.assert_close(found["shared"][1], found["apart"][1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("limit", [8, 32, 1000])
def test_packed_equals_an_unpadded_single_forward(kind, limit, request):
    folder = request.getfixturevalue(f"tiny_{kind}")
    network = load_model(folder, Model(max_length=64), seed=0)
    reference = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    for tokens, scores in zip(SEQUENCES, score_sequences(network, SEQUENCES, max_tokens=limit)):
        with torch.no_grad():
            table = torch.log_softmax(reference(torch.tensor(tokens)[None]).logits[0], -1)
        expected = table[:-1].gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
        np.testing.assert_allclose(scores[1:], expected.numpy(), atol=1e-5)


def test_no_token_sees_its_neighbour_in_the_row(tiny_qwen3):
    network = load_model(tiny_qwen3, Model(max_length=64), seed=0)
    changed = [tokens if index != 1 else tokens[::-1].copy() for index, tokens in enumerate(SEQUENCES)]
    with torch.no_grad():
        before, after = (hidden_states(network, pack(group, single(0, 1, 4), "cpu")) for group in (SEQUENCES, changed))
    assert torch.equal(before[:5], after[:5]) and torch.equal(before[22:], after[22:])
    assert not torch.equal(before[5:22], after[5:22])


def test_packed_gradients_equal_those_of_single_forwards(tiny_qwen3):
    network = load_model(tiny_qwen3, Model(max_length=64), seed=0)
    weight = network.model.layers[0].self_attn.k_proj.weight
    packed = torch.autograd.grad(hidden_states(network, pack(SEQUENCES, single(0, 1, 3), "cpu")).square().sum(), weight)[0]
    singly = sum(
        torch.autograd.grad(hidden_states(network, pack(SEQUENCES, single(index), "cpu")).square().sum(), weight)[0] for index in (0, 1, 3)
    )
    torch.testing.assert_close(packed, singly, atol=1e-4, rtol=1e-5)
