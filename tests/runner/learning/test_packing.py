"""Packed rows: nothing padded, and every sequence as if it were alone."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from runner.contract.run_config import Model
from runner.learning.logprobs import score_sequences
from runner.learning.packing import hidden_states, pack, plan_rows
from runner.models.loading import load_model

SEQUENCES = [np.arange(3, 3 + length) % 290 for length in (5, 17, 1, 9, 30, 2)]


@given(st.lists(st.integers(1, 200), max_size=40), st.integers(1, 128))
def test_every_sequence_is_in_one_row_within_the_limit(lengths, limit):
    rows = plan_rows(lengths, limit)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    for row in rows:
        assert len(row) == 1 or sum(lengths[index] for index in row) <= limit


def test_rows_are_filled_before_new_ones_open():
    assert plan_rows([4, 3, 3, 2], 6) == [[0, 3], [1, 2]]


def test_a_row_holds_no_padding():
    row = pack(SEQUENCES, [1, 0, 3], "cpu")
    assert row.input_ids.shape == (1, 31) and row.offsets.tolist() == [0, 17, 22, 31]
    assert row.position_ids[0].tolist() == [*range(17), *range(5), *range(9)]


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
        before, after = (hidden_states(network, pack(group, [0, 1, 4], "cpu")) for group in (SEQUENCES, changed))
    assert torch.equal(before[:5], after[:5]) and torch.equal(before[22:], after[22:])
    assert not torch.equal(before[5:22], after[5:22])


def test_packed_gradients_equal_those_of_single_forwards(tiny_qwen3):
    network = load_model(tiny_qwen3, Model(max_length=64), seed=0)
    weight = network.model.layers[0].self_attn.k_proj.weight
    packed = torch.autograd.grad(hidden_states(network, pack(SEQUENCES, [0, 1, 3], "cpu")).square().sum(), weight)[0]
    singly = sum(torch.autograd.grad(hidden_states(network, pack(SEQUENCES, [index], "cpu")).square().sum(), weight)[0] for index in (0, 1, 3))
    torch.testing.assert_close(packed, singly, atol=1e-4, rtol=1e-5)
