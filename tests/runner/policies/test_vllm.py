"""vLLM as a policy, on whatever its build runs on: tokens in and out, log-probs that are the model's, weights that are the pushed ones."""

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed here; requirements-gpu.txt names it")

from runner.contract.resources import VllmEngine
from runner.contract.run_config import LoraAdapter, Model
from runner.policies.base import SamplingParams, Weights, token_seed
from runner.policies.factory import engine_problems, make_policy
from runner.policies.transformers import TransformersPolicy
from tests.runner.tiny_models import save_tiny

# What the tiny models were made for: the engine adds one.
LENGTH = 256
SETTINGS = VllmEngine(memory_fraction=0.08, max_sequences=16, max_batched_tokens=128)
PROMPTS = [[1, 40, 41, 42], [1, 7], [1, 40, 41, 42], [1, 9, 8, 7, 6, 5, 4, 90, 91, 92, 93], [5]]
SEEDS = [token_seed(3, 1, group, 0) for group in range(len(PROMPTS))]
# Kernels of a GPU round the factors of float32 products to TF32.
CLOSE = 5e-3 if torch.cuda.is_available() else 2e-3


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two models of one shape; a processor's attention kernels ask for heads of 32."""
    return [save_tiny(tmp_path_factory.mktemp(f"model{seed}"), seed=seed, head_dim=32) for seed in range(2)]


@pytest.fixture(scope="module")
def policy(folders):
    return make_policy(SETTINGS, folders[0], Model(max_length=LENGTH), seed=0)


@pytest.fixture(scope="module")
def peers(folders):
    """The same two models as transformers runs them."""
    return [TransformersPolicy(folder, Model(max_length=LENGTH), seed=0) for folder in folders]


@pytest.fixture(autouse=True)
def first_weights(request):
    """Every test begins at version 0 with an empty prefix cache."""
    if "policy" in request.fixturenames:
        policy, peers = request.getfixturevalue("policy"), request.getfixturevalue("peers")
        policy.load_tensors(list(peers[0].network.named_parameters()), 0)


def weights_of(peer: TransformersPolicy, version: int) -> Weights:
    from runner.learning.weights import to_array

    named = dict(peer.network.named_parameters())
    return Weights(version, {name: to_array(value) for name, value in named.items()}, {name: "float32" for name in named})


def test_the_factory_gives_the_engine_the_run_asked_for(policy):
    assert type(policy).__name__ == "VllmPolicy" and policy.health()["engine"].startswith("vllm ")
    assert policy.health()["policy_version"] == 0 and policy.health()["parameters"] > 0
    assert engine_problems(SETTINGS, policy.health()["device"]) == []
    other = {"cpu": "cuda", "cuda": "cpu"}[policy.health()["device"]]
    ((field, told),) = engine_problems(SETTINGS, other)
    assert field == "type" and other in told and "transformers" in told


@pytest.mark.parametrize("sampling", [SamplingParams(max_new_tokens=12), SamplingParams(0.7, 0.9, 12), SamplingParams(0, 1.0, 12)])
def test_log_probs_are_those_of_the_sampled_distribution(policy, peers, sampling):
    import torch

    for prompt, generation in zip(PROMPTS, policy.generate(PROMPTS, sampling, SEEDS), strict=True):
        assert generation.token_ids.dtype == np.int32 and generation.policy_version == 0
        tokens = [*prompt, *generation.token_ids.tolist()]
        with torch.no_grad():
            logits = peers[0].network(input_ids=torch.tensor([tokens])).logits[0, len(prompt) - 1 : -1].double()
        probs = torch.softmax(logits / (sampling.temperature or 1.0), -1)
        if sampling.top_p < 1:
            ordered, places = probs.sort(descending=True)
            kept = torch.zeros_like(probs).scatter(-1, places, torch.where(ordered.cumsum(-1) - ordered < sampling.top_p, ordered, 0.0))
            probs = kept / kept.sum(-1, keepdim=True)
        expected = probs.log().gather(-1, torch.tensor(generation.token_ids, dtype=torch.int64)[:, None])[:, 0]
        np.testing.assert_allclose(generation.logprobs, expected.numpy(), atol=CLOSE)


def test_a_score_equals_a_forward(policy, peers):
    sequences = [*PROMPTS, list(range(3, 3 + LENGTH))]
    for ours, theirs in zip(policy.score(sequences), peers[0].score(sequences), strict=True):
        assert np.isnan(ours[0]) and ours.shape == theirs.shape
        np.testing.assert_allclose(ours[1:], theirs[1:], atol=CLOSE)


def test_choices_are_scored_as_elsewhere(policy, peers):
    candidates = [[[30], [31], [32]], [[30, 31], [30, 32], [9, 9, 9]]]
    for ours, theirs in zip(policy.choice_logprobs(PROMPTS[:2], candidates), peers[0].choice_logprobs(PROMPTS[:2], candidates)):
        np.testing.assert_allclose(ours, theirs, atol=CLOSE)
    with pytest.raises(ValueError, match="candidates"):
        policy.choice_logprobs([[1]], [[[]]])


def test_a_push_changes_what_is_said_and_carries_its_version(policy, peers):
    greedy = SamplingParams(temperature=0, max_new_tokens=8)
    before = policy.generate(PROMPTS, greedy, SEEDS)
    policy.load_weights(weights_of(peers[1], 7))
    after = policy.generate(PROMPTS, greedy, SEEDS)
    assert {one.policy_version for one in after} == {7} and policy.health()["policy_version"] == 7
    assert [one.token_ids.tolist() for one in before] != [one.token_ids.tolist() for one in after]
    for ours, theirs in zip(policy.score(PROMPTS), peers[1].score(PROMPTS), strict=True):
        np.testing.assert_allclose(ours[1:], theirs[1:], atol=CLOSE)


def test_a_batch_repeats_after_a_push_and_its_seeds_decide(policy, peers):
    sampling = SamplingParams(max_new_tokens=12)

    def said(seeds):
        policy.load_tensors(list(peers[0].network.named_parameters()), 0)
        return [one.token_ids.tolist() for one in policy.generate(PROMPTS, sampling, seeds)]

    first = said(SEEDS)
    policy.generate(PROMPTS[:2], sampling, SEEDS[:2])
    assert said(SEEDS) == first
    assert said([token_seed(4, 1, group, 0) for group in range(len(PROMPTS))]) != first


def test_members_of_a_group_differ(policy):
    said = policy.generate([[1, 2, 3]] * 8, SamplingParams(max_new_tokens=8), [token_seed(0, 0, 0, index) for index in range(8)])
    assert len({tuple(one.token_ids) for one in said}) > 1


def test_a_prompt_that_was_seen_is_not_computed_again(policy):
    prompt = [1, *range(10, 10 + 200)]
    params = [policy._sampling(len(prompt), SamplingParams(max_new_tokens=1))]
    (first,) = policy._run([prompt], params)
    (second,) = policy._run([[*prompt, 7]], params)
    assert first.num_cached_tokens == 0 and second.num_cached_tokens >= 128
    policy.engine.reset_prefix_cache()
    (third,) = policy._run([prompt], params)
    assert third.num_cached_tokens == 0


def test_a_response_ends_at_the_stop_token_or_where_the_context_does(policy):
    said = policy.generate([[1, 40]] * 32, SamplingParams(2.0, 1.0, 48), [token_seed(1, 0, 0, index) for index in range(32)])
    assert {one.finish_reason for one in said} == {"stop", "length"}
    for one in said:
        ids = one.token_ids.tolist()
        assert 2 not in ids[:-1] and (ids[-1] == 2) == (one.finish_reason == "stop") and len(one.logprobs) == len(ids)
    (last,) = policy.generate([list(range(3, LENGTH - 1))], SamplingParams(max_new_tokens=16), [(0,)])
    assert len(last.token_ids) <= 4


def test_what_cannot_be_done_is_refused_with_its_field(policy, folders):
    with pytest.raises(ValueError, match="model.max_length: a prompt of 256 tokens"):
        policy.generate([[3] * LENGTH], SamplingParams(), [(0,)])
    with pytest.raises(ValueError, match="seeds: 1 for 2 prompts"):
        policy.generate([[1], [2]], SamplingParams(), [(0,)])
    with pytest.raises(ValueError, match="temperature: vLLM scores at 1 only"):
        policy.score([[1, 2]], temperature=0.5)
    with pytest.raises(ValueError, match="model.adapter.type"):
        make_policy(SETTINGS, folders[0], Model(max_length=LENGTH, adapter=LoraAdapter()), seed=0)
