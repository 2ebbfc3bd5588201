"""Generation: equal to an unpadded, uncached forward, and repeatable whatever shares the batch."""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from runner.contract.run_config import LoraAdapter, Model
from runner.policies.base import SamplingParams, token_seed, uniforms
from runner.policies.transformers import TransformersPolicy, sample_tokens

PROMPTS = [[1, 40, 41, 42], [1, 7], [1, 40, 41, 42], [1, 9, 8, 7, 6, 5, 4, 90, 91, 92, 93], [5]]
SEEDS = [token_seed(3, 1, group, 0) for group in range(len(PROMPTS))]


@pytest.fixture(scope="module", params=["qwen3", "llama"])
def folder(request):
    return request.getfixturevalue(f"tiny_{request.param}")


@pytest.fixture(scope="module")
def policy(folder):
    return TransformersPolicy(folder, Model(max_length=64), seed=0)


@pytest.fixture(scope="module")
def reference(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()

    def logits(tokens):
        with torch.no_grad():
            return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]

    return logits


def processed(logits, sampling):
    """The distribution the sampler should have used, computed slowly."""
    probs = torch.softmax(logits.double() / sampling.temperature, -1)
    if sampling.top_p < 1:
        order = sorted(range(len(probs)), key=lambda token: -probs[token].item())
        kept, mass = set(), 0.0
        for token in order:
            if mass >= sampling.top_p:
                break
            kept.add(token)
            mass += probs[token].item()
        probs = torch.tensor([probs[token].item() if token in kept else 0.0 for token in range(len(probs))])
    return probs / probs.sum()


@pytest.mark.parametrize("sampling", [SamplingParams(max_new_tokens=12), SamplingParams(0.7, 0.9, 12), SamplingParams(1.3, 0.5, 12)])
def test_logprobs_equal_an_uncached_unpadded_forward(policy, reference, sampling):
    for prompt, generation in zip(PROMPTS, policy.generate(PROMPTS, sampling, SEEDS)):
        tokens = list(prompt)
        for token, logprob in zip(generation.token_ids.tolist(), generation.logprobs.tolist()):
            expected = processed(reference(tokens)[-1], sampling)[token].log().item()
            assert logprob == pytest.approx(expected, abs=1e-5)
            tokens.append(token)


def test_tokens_are_those_the_uniform_number_selects(policy, reference):
    sampling = SamplingParams(max_new_tokens=12)
    for prompt, seed, generation in zip(PROMPTS, SEEDS, policy.generate(PROMPTS, sampling, SEEDS)):
        tokens = list(prompt)
        for position, token in enumerate(generation.token_ids.tolist()):
            cumulative = processed(reference(tokens)[-1], sampling).cumsum(-1)
            chance = uniforms(seed, 12)[position]
            assert cumulative[token] >= chance - 1e-6 and (token == 0 or cumulative[token - 1] <= chance + 1e-6)
            tokens.append(token)


def test_a_response_does_not_depend_on_its_batch(policy):
    sampling = SamplingParams(max_new_tokens=12)
    together = policy.generate(PROMPTS, sampling, SEEDS)
    alone = [policy.generate([prompt], sampling, [seed])[0] for prompt, seed in zip(PROMPTS, SEEDS)]
    reversed_order = policy.generate(PROMPTS[::-1], sampling, SEEDS[::-1])[::-1]
    for first, second, third in zip(together, alone, reversed_order, strict=True):
        assert first.token_ids.tolist() == second.token_ids.tolist() == third.token_ids.tolist()
        np.testing.assert_allclose(first.logprobs, second.logprobs, atol=1e-5)


def test_many_rows_are_served_in_slices(folder, policy):
    narrow = TransformersPolicy(folder, Model(max_length=64), seed=0, max_rows=2)
    sampling = SamplingParams(max_new_tokens=6)
    for wide, sliced in zip(policy.generate(PROMPTS, sampling, SEEDS), narrow.generate(PROMPTS, sampling, SEEDS), strict=True):
        assert wide.token_ids.tolist() == sliced.token_ids.tolist()


def test_equal_prompts_are_computed_once(policy, monkeypatch):
    seen = []
    original = type(policy)._prefill

    def spy(self, prompts, longest):
        import runner.policies.transformers as module

        packed = module.pack
        monkeypatch.setattr(
            module, "pack", lambda sequences, members, device: seen.append(len(sequences)) or packed(sequences, members, device)
        )
        return original(self, prompts, longest)

    monkeypatch.setattr(type(policy), "_prefill", spy)
    policy.generate([[1, 2, 3]] * 8, SamplingParams(max_new_tokens=2), [token_seed(0, 0, 0, index) for index in range(8)])
    assert seen == [1]


def test_members_of_a_group_differ(policy):
    generations = policy.generate([[1, 2, 3]] * 8, SamplingParams(max_new_tokens=8), [token_seed(0, 0, 0, index) for index in range(8)])
    assert len({tuple(generation.token_ids) for generation in generations}) > 1


def test_a_response_ends_at_the_stop_token_and_keeps_it(policy):
    stops = set(policy.stop_tokens.tolist())
    assert stops == {2}
    generations = policy.generate([[1, 40]] * 64, SamplingParams(2.0, 1.0, 48), [token_seed(1, 0, 0, index) for index in range(64)])
    assert {generation.finish_reason for generation in generations} == {"stop", "length"}
    for generation in generations:
        ids = generation.token_ids.tolist()
        assert 2 not in ids[:-1]
        assert (ids[-1] == 2) == (generation.finish_reason == "stop")
        assert generation.finish_reason == "stop" or len(ids) == 48


def test_finished_rows_do_not_disturb_the_others(policy, reference):
    prompts, seeds = [[1, 40]] * 64, [token_seed(1, 0, 0, index) for index in range(64)]
    sampling = SamplingParams(2.0, 1.0, 48)
    longest = max(policy.generate(prompts, sampling, seeds), key=lambda generation: len(generation.token_ids))
    tokens = [1, 40, *longest.token_ids.tolist()]
    expected = torch.log_softmax(reference(tokens) / 2.0, -1)[1:-1].gather(-1, torch.tensor(tokens[2:])[:, None])[:, 0]
    np.testing.assert_allclose(longest.logprobs, expected.numpy(), atol=1e-5)


def test_a_row_stops_at_the_context_limit(policy):
    long, short = list(range(3, 63)), [1]
    generations = policy.generate([long, short], SamplingParams(max_new_tokens=16), [token_seed(2, 0, 0, 0), token_seed(2, 0, 1, 0)])
    assert len(generations[0].token_ids) <= 4
    assert generations[0].finish_reason == "length" or generations[0].token_ids[-1] == 2


def test_a_prompt_without_room_is_refused(policy):
    with pytest.raises(ValueError, match="model.max_length: a prompt of 64 tokens"):
        policy.generate([[3] * 64], SamplingParams(), [token_seed(0, 0, 0, 0)])


def test_greedy_takes_the_most_likely_token(policy, reference):
    (generation,) = policy.generate([[1, 40]], SamplingParams(temperature=0, max_new_tokens=6), [token_seed(0, 0, 0, 0)])
    tokens = [1, 40]
    for token, logprob in zip(generation.token_ids.tolist(), generation.logprobs.tolist()):
        logits = reference(tokens)[-1]
        assert token == logits.argmax().item()
        assert logprob == pytest.approx(torch.log_softmax(logits, -1)[token].item(), abs=1e-5)
        tokens.append(token)


def test_score_equals_an_unpadded_forward(policy, reference):
    for tokens, scored in zip(PROMPTS, policy.score(PROMPTS, temperature=0.8)):
        assert np.isnan(scored[0]) and len(scored) == len(tokens)
        expected = torch.log_softmax(reference(tokens) / 0.8, -1)[:-1].gather(-1, torch.tensor(tokens[1:])[:, None])[:, 0]
        np.testing.assert_allclose(scored[1:], expected.numpy(), atol=1e-5)


def test_choice_logprobs_sum_over_each_candidate(policy, reference):
    candidates = [[[30], [31], [32]], [[30, 31], [30, 32], [9, 9, 9]]]
    for prompt, group, scores in zip(PROMPTS, candidates, policy.choice_logprobs(PROMPTS[:2], candidates)):
        for candidate, score in zip(group, scores):
            table = torch.log_softmax(reference(prompt + candidate), -1)
            expected = sum(table[len(prompt) - 1 + place, token].item() for place, token in enumerate(candidate))
            assert score == pytest.approx(expected, abs=1e-5)


def test_sampling_frequencies_follow_the_distribution():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(20_000, 4)
    chance = torch.as_tensor(np.random.default_rng(0).random(20_000))
    chosen, _ = sample_tokens(logits, SamplingParams(temperature=0.5), chance)
    expected = torch.softmax(logits[0] / 0.5, -1)
    np.testing.assert_allclose(torch.bincount(chosen, minlength=4).numpy() / 20_000, expected.numpy(), atol=0.01)


def test_the_last_uniform_number_never_selects_an_impossible_token():
    logits = torch.tensor([[0.0, 1.0, float("-inf"), float("-inf")]])
    chosen, logprob = sample_tokens(logits, SamplingParams(), torch.tensor([np.nextafter(1.0, 0.0)]))
    assert chosen.item() == 1 and torch.isfinite(logprob).all()


def test_uniform_numbers_do_not_depend_on_how_many_are_drawn():
    np.testing.assert_array_equal(uniforms((1, 2, 3), 4), uniforms((1, 2, 3), 400)[:4])
    assert uniforms((1, 2, 3), 1) != uniforms((1, 2, 4), 1)


def test_lora_policies_of_one_seed_begin_equal_to_the_base(tiny_qwen3):
    adapted = TransformersPolicy(tiny_qwen3, Model(max_length=64, adapter=LoraAdapter(rank=4)), seed=5)
    plain = TransformersPolicy(tiny_qwen3, Model(max_length=64), seed=5)
    for left, right in zip(adapted.score(PROMPTS), plain.score(PROMPTS)):
        np.testing.assert_allclose(left, right, atol=1e-6)


def test_bfloat16_generates(tiny_qwen3):
    policy = TransformersPolicy(tiny_qwen3, Model(max_length=64, dtype="bfloat16"), seed=0)
    (generation,) = policy.generate([[1, 40]], SamplingParams(max_new_tokens=6), [token_seed(0, 0, 0, 0)])
    assert np.isfinite(generation.logprobs).all() and policy.health()["dtype"] == "bfloat16"
