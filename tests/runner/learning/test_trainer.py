"""One optimizer step: micro-batches and ranks add up, bits repeat, bad gradients are skipped."""

import copy

import numpy as np
import pytest
import torch

from runner.contract.run_config import GrpoStage, LoraAdapter, MaskedLoss, Model, Optimizer, ReferenceKl
from runner.learning import trainer
from runner.learning.advantages import token_weights
from runner.learning.logprobs import score_sequences
from runner.learning.optimizer import MasterAdamW
from runner.learning.packing import alone
from runner.learning.trainer import Reference, gradients, plan, update
from runner.learning.weights import trainable
from runner.methods.base import TrainingSequence
from runner.methods.grpo import Grpo
from runner.models.loading import load_model


@pytest.fixture(scope="module")
def loaded(tiny_qwen3):
    return load_model(tiny_qwen3, Model(max_length=64), seed=0)


@pytest.fixture
def network(loaded):
    return copy.deepcopy(loaded)


def batch(aggregation="token"):
    generator = np.random.default_rng(0)
    lengths = [12, 7, 20, 5, 9, 16]
    tokens = [generator.integers(3, 290, length).astype(np.int32) for length in lengths]
    masks = [np.arange(length) >= length // 2 for length in lengths]
    columns = [
        {
            "sampler_logprob": (-generator.random(length) * 5).astype(np.float32),
            "advantage": np.full(length, generator.normal(), np.float32),
        }
        for length in lengths
    ]
    return [TrainingSequence(*parts) for parts in zip(tokens, masks, token_weights(masks, aggregation), columns)]


def method(**changes):
    return Grpo(GrpoStage(loss=MaskedLoss(mask_low=0.9, mask_high=0.9), **changes), seed=0, vocabulary=300)


def gradient_of(network, sequences, rows, chosen=None):
    optimizer = MasterAdamW(trainable(network), Optimizer())
    bundles = alone([item.token_ids for item in sequences])
    rows = [[bundles[index] for index in row] for row in rows] if rows else plan(sequences, 1000)
    results = gradients(network, optimizer, sequences, chosen or method(), rows)
    found = {name: parameter.grad.clone() for name, parameter in optimizer.parameters.items()}
    network.zero_grad(set_to_none=True)
    return found, results


def naive_gradient(network, sequences):
    """No packing, no chunks: one forward per sequence, the mean over all loss tokens taken at the end."""
    chosen, losses = method(), []
    for item in sequences:
        ids = torch.as_tensor(item.token_ids, dtype=torch.long)
        table = torch.log_softmax(network(ids[None]).logits[0], -1)[:-1].gather(-1, ids[1:, None])[:, 0]
        mask = torch.as_tensor(item.mask[1:])
        columns = {name: torch.as_tensor(values[1:])[mask] for name, values in item.columns.items()}
        losses.append(chosen.loss(table[mask], columns)[0])
    torch.cat(losses).mean().backward()
    found = {name: parameter.grad.clone() for name, parameter in trainable(network).items()}
    network.zero_grad(set_to_none=True)
    return found


def assert_same(left, right, atol=1e-6):
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=atol, rtol=1e-4, msg=name)


def test_the_gradient_is_the_exact_mean_over_all_loss_tokens(network):
    sequences = batch()
    assert_same(gradient_of(network, sequences, [[0, 1, 2, 3, 4, 5]])[0], naive_gradient(network, sequences))


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_micro_batches_add_up(network, aggregation):
    sequences = batch(aggregation)
    whole, _ = gradient_of(network, sequences, [[0, 1, 2, 3, 4, 5]])
    assert_same(gradient_of(network, sequences, [[2], [5, 0], [4, 1, 3]])[0], whole)


def test_pieces_of_a_row_s_loss_tokens_add_up(network, monkeypatch):
    sequences, rows = batch(), [[0, 1, 2, 3, 4, 5]]
    whole, expected = gradient_of(network, sequences, rows)
    monkeypatch.setattr(trainer, "_piece_rows", lambda network, hidden: 7)
    pieces, results = gradient_of(network, sequences, rows)
    assert_same(pieces, whole)
    for index, result in expected.items():
        np.testing.assert_allclose(results[index].logprob, result.logprob, atol=1e-6)
        np.testing.assert_allclose(results[index].values["loss"], result.values["loss"], atol=1e-6)


def test_two_ranks_add_up_to_one(network):
    sequences = batch()
    whole, _ = gradient_of(network, sequences, [[0, 1, 2, 3, 4, 5]])
    ranks = [gradient_of(network, sequences, rows)[0] for rows in ([[0, 1], [2]], [[3, 4, 5]])]
    assert_same({name: ranks[0][name] + ranks[1][name] for name in whole}, whole)


def group_batch():
    generator = np.random.default_rng(1)
    prompts = [generator.integers(3, 290, 24), generator.integers(3, 290, 18)]
    tokens = [np.concatenate([prompts[index // 3], generator.integers(3, 290, 2 + index)]).astype(np.int32) for index in range(6)]
    masks = [np.arange(len(item)) >= len(prompts[index // 3]) for index, item in enumerate(tokens)]
    columns = [
        {"sampler_logprob": np.full(len(item), -5.0, np.float32), "advantage": np.full(len(item), generator.normal(), np.float32)}
        for item in tokens
    ]
    return [TrainingSequence(*parts) for parts in zip(tokens, masks, token_weights(masks, "token"), columns)]


def test_a_group_s_prompt_is_computed_once_and_changes_nothing(network):
    sequences = group_batch()
    rows = plan(sequences, 1000)
    assert sum(bundle.tokens for row in rows for bundle in row) == 24 + 18 + sum(item.mask.sum() for item in sequences)
    found, results = gradient_of(network, sequences, None)
    assert_same(found, naive_gradient(network, sequences))
    for index, expected in enumerate(score_sequences(network, [item.token_ids for item in sequences])):
        np.testing.assert_allclose(results[index].logprob, expected[sequences[index].mask], atol=1e-5)


def test_results_follow_the_sequences_whatever_the_packing(network):
    sequences = batch()
    _, whole = gradient_of(network, sequences, [[0, 1, 2, 3, 4, 5]])
    _, pieces = gradient_of(network, sequences, [[5, 1], [0, 4], [3, 2]])
    expected = score_sequences(network, [item.token_ids for item in sequences])
    for index, item in enumerate(sequences):
        np.testing.assert_allclose(whole[index].logprob, expected[index][item.mask], atol=1e-5)
        np.testing.assert_allclose(pieces[index].logprob, expected[index][item.mask], atol=1e-5)
        assert len(whole[index].entropy) == item.mask.sum() == len(whole[index].values["loss"])


def test_the_same_seed_and_threads_give_the_same_bits(loaded):
    outcomes = []
    torch.set_num_threads(2)
    try:
        for _ in range(2):
            network = copy.deepcopy(loaded)
            optimizer = MasterAdamW(trainable(network), Optimizer(learning_rate=1e-2))
            for _ in range(3):
                update(network, optimizer, batch() + group_batch(), method(), 1e-2, 128)
            outcomes.append(network.state_dict())
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(outcomes[0][name], outcomes[1][name]) for name in outcomes[0])


def test_a_step_raises_the_probability_of_good_tokens(network):
    sequences = [
        TrainingSequence(item.token_ids, item.mask, item.weight, {**item.columns, "advantage": np.ones(len(item.mask), np.float32)})
        for item in batch()
    ]
    sequences = [
        TrainingSequence(s.token_ids, s.mask, s.weight, {**s.columns, "sampler_logprob": p})
        for s, p in zip(sequences, score_sequences(network, [s.token_ids for s in sequences]))
    ]
    before = np.concatenate([p[s.mask] for p, s in zip(score_sequences(network, [s.token_ids for s in sequences]), sequences)])
    done = update(network, MasterAdamW(trainable(network), Optimizer(learning_rate=1e-3)), sequences, method(), 1e-3, 64)
    after = np.concatenate([p[s.mask] for p, s in zip(score_sequences(network, [s.token_ids for s in sequences]), sequences)])
    assert done.skipped is None and after.mean() > before.mean()


def test_a_gradient_that_is_not_finite_skips_the_step(network):
    before = copy.deepcopy(network.state_dict())
    sequences = batch()
    sequences[0].columns["advantage"][:] = np.nan
    done = update(network, MasterAdamW(trainable(network), Optimizer()), sequences, method(), 1e-2, 64)
    assert done.skipped == "gradient norm is nan" and np.isnan(done.grad_norm)
    assert all(torch.equal(before[name], tensor) for name, tensor in network.state_dict().items())


def test_a_batch_without_loss_tokens_skips_the_step(network):
    done = update(network, MasterAdamW(trainable(network), Optimizer()), [], method(), 1e-2, 64)
    assert done.skipped == "no loss token in the batch" and done.grad_norm is None


def test_training_the_first_token_is_refused(network):
    bad = batch()
    bad[0].mask[0] = True
    with pytest.raises(ValueError, match="first token cannot be trained"):
        gradient_of(network, bad, [[0]])


def test_only_the_adapter_moves(tiny_qwen3):
    network = load_model(tiny_qwen3, Model(max_length=64, adapter=LoraAdapter(rank=4)), seed=0)
    before = copy.deepcopy(network.state_dict())
    update(network, MasterAdamW(trainable(network), Optimizer(learning_rate=1e-2)), batch(), method(), 1e-2, 64)
    moved = {name for name, tensor in network.state_dict().items() if not torch.equal(before[name], tensor)}
    assert moved and all("lora_" in name for name in moved)


@pytest.mark.parametrize("model", [Model(max_length=64), Model(max_length=64, adapter=LoraAdapter(rank=4))])
def test_the_reference_stays_where_the_stage_began(tiny_qwen3, model):
    network = load_model(tiny_qwen3, model, seed=0)
    if model.adapter.type == "lora":
        with torch.no_grad():
            for parameter in trainable(network).values():
                parameter.add_(0.05 * torch.ones_like(parameter))
    first = score_sequences(network, [item.token_ids for item in batch()])
    reference, optimizer = Reference(network, trainable(network)), MasterAdamW(trainable(network), Optimizer(learning_rate=1e-2))
    chosen = method(reference_kl=ReferenceKl(beta=0.1))
    for step in range(2):
        sequences = batch()
        reference.add_logprobs(sequences, 64)
        for item, expected in zip(sequences, first):
            np.testing.assert_allclose(item.columns["reference_logprob"][item.mask], expected[item.mask], atol=1e-5)
            assert np.isnan(item.columns["reference_logprob"][~item.mask]).all()
        done = update(network, optimizer, sequences, chosen, 1e-2, 64)
        penalties = np.concatenate([result.values["reference_kl"] for result in done.results])
        assert (np.abs(penalties) < 1e-5).all() if step == 0 else (penalties > 1e-6).any()


def test_bfloat16_learns(tiny_qwen3):
    network = load_model(tiny_qwen3, Model(max_length=64, dtype="bfloat16"), seed=0)
    optimizer = MasterAdamW(trainable(network), Optimizer())
    done = update(network, optimizer, batch(), method(), 1e-3, 64)
    assert done.skipped is None and next(network.parameters()).dtype is torch.bfloat16
