"""Step metrics against hand-worked arrays; a value that is not defined is absent."""

import math

import numpy as np
import pytest

from runner.contract.episode import Author
from runner.contract.metrics import lookup
from runner.contract.termination import Termination
from runner.learning.health import group_metrics, mismatch_metrics, perplexity_metrics, rollout_metrics
from runner.rollouts.types import SampleBuilder


def episode(reward, *, group=0, index=0, tokens=3, termination=Termination.FINISHED, parsed=None, turns=1):
    builder = SampleBuilder()
    builder.append([1, 2], Author.ENVIRONMENT)
    builder.append([5] * tokens, Author.STUDENT, [-1.0] * tokens)
    return builder.build(
        episode=f"{group}-{index}",
        task="t",
        group=group,
        index=index,
        reward=reward,
        termination=termination,
        policy_version=0,
        parsed=parsed,
        turns=turns,
    )


def test_the_mismatch_of_four_tokens():
    """The vector of the metrics' definition: d = 0, .1, −.2, 1.5."""
    sampler = np.full(4, -2.0)
    metrics = mismatch_metrics(sampler + np.array([0, 0.1, -0.2, 1.5]), sampler)
    assert metrics["rollout_corr/kl"] == pytest.approx(-0.35, abs=1e-6)
    assert metrics["rollout_corr/k3_kl"] == pytest.approx(0.5014, abs=5e-5)
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(0.8795, abs=5e-5)
    weights = [1, math.exp(0.1), math.exp(-0.2), 2.0]
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(np.mean(weights), abs=1e-6)
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(2.0)
    assert metrics["rollout_corr/rollout_is_min"] == pytest.approx(math.exp(-0.2), abs=1e-6)
    assert metrics["rollout_corr/rollout_is_std"] == pytest.approx(np.std(weights), abs=1e-6)


def test_the_mismatch_equals_a_slow_loop():
    generator = np.random.default_rng(0)
    learner, sampler = -generator.random(200) * 5, -generator.random(200) * 5
    ratios = [math.exp(p - q) for p, q in zip(learner, sampler)]
    bounded = [min(max(ratio, 0.5), 2.0) for ratio in ratios]
    centre = sum(bounded) / 200
    metrics = mismatch_metrics(learner, sampler)
    assert metrics["rollout_corr/k3_kl"] == pytest.approx(sum(r - math.log(r) - 1 for r in ratios) / 200, abs=1e-6)
    assert metrics["rollout_corr/rollout_is_eff_sample_size"] == pytest.approx(
        1 / (sum((v / centre) ** 2 for v in bounded) / 200), abs=1e-6
    )
    gaps = [abs(math.exp(p) - math.exp(q)) for p, q in zip(learner, sampler)]
    assert metrics["training/rollout_probs_diff_mean"] == pytest.approx(sum(gaps) / 200, abs=1e-6)
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(max(gaps), abs=1e-6)


def test_a_huge_log_ratio_is_clamped_and_counted():
    metrics = mismatch_metrics(np.array([-1.0, -1.0]), np.array([-90.0, -1.0]))
    assert metrics["rollout_corr/clamped"] == 1.0
    assert all(math.isfinite(value) for value in metrics.values())


def test_no_token_gives_no_mismatch():
    assert mismatch_metrics(np.array([]), np.array([])) == {}


def test_a_missing_reward_is_not_a_zero():
    metrics = rollout_metrics([episode(1.0), episode(None, termination=Termination.VERIFIER_ERROR), episode(0.0), episode(1.0)], 8)
    assert metrics["critic/score/mean"] == pytest.approx(2 / 3)
    assert metrics["critic/score/n"] == 3
    assert metrics["reward/missing_fraction"] == 0.25
    assert metrics["verifier_error/fraction"] == 0.25
    assert "termination/verifier_error/score_mean" not in metrics


def test_a_batch_without_rewards_has_no_mean():
    metrics = rollout_metrics([episode(None, termination=Termination.VERIFIER_ERROR)], 8)
    assert "critic/score/mean" not in metrics and "group/zero_variance_fraction" not in metrics
    assert metrics["critic/score/n"] == 0


def test_no_episode_gives_no_metric():
    assert rollout_metrics([], 8) == {}


def test_lengths_and_the_cap():
    metrics = rollout_metrics([episode(1.0, tokens=count) for count in (1, 2, 3, 8)], 8)
    assert metrics["response_length/mean"] == 3.5
    assert metrics["response_length/max"] == 8 and metrics["response_length/min"] == 1
    assert metrics["response_length/p90"] == pytest.approx(np.percentile([1, 2, 3, 8], 90))
    assert metrics["response_length/clip_ratio"] == 0.25
    assert metrics["prompt_length/mean"] == 2
    assert metrics["perf/total_num_tokens"] == 14 + 8


def test_terminations_are_shares_with_their_own_means():
    cut = Termination.MAX_RESPONSE_LENGTH_EXCEEDED
    metrics = rollout_metrics([episode(1.0), episode(0.0, termination=cut), episode(0.5, termination=cut), episode(0.0)], 8)
    assert metrics["termination/finished/fraction"] == 0.5
    assert metrics["termination/finished/score_mean"] == 0.5
    assert metrics["termination/max_response_length_exceeded/score_mean"] == 0.25
    assert sum(value for name, value in metrics.items() if name.endswith("/fraction") and name.startswith("termination/")) == pytest.approx(
        1
    )


def test_groups_without_signal_are_counted_among_comparable_ones():
    samples = [episode(reward, group=group) for group, rewards in enumerate([(1, 1), (1, 0), (0, None), (0, 0)]) for reward in rewards]
    assert group_metrics(samples) == {"group/count": 4.0, "group/zero_variance_fraction": pytest.approx(2 / 3)}


def test_answers_parsed_are_a_share_of_graded_ones():
    metrics = rollout_metrics([episode(1.0, parsed=True), episode(0.0, parsed=False), episode(None, parsed=None)], 8)
    assert metrics["episode/parsed_fraction"] == 0.5


def test_every_name_is_in_the_dictionary():
    metrics = rollout_metrics([episode(1.0, parsed=True), episode(0.0)], 8) | mismatch_metrics(np.array([-1.0]), np.array([-1.1]))
    assert [name for name in metrics if lookup(name) is None] == []


def test_perplexities_are_of_sequences_and_chi_squared_of_tokens_and_sequences():
    learner = [np.array([-1.0, -1.0], np.float32), np.array([-2.0], np.float32)]
    sampler = [np.array([-1.0, -2.0], np.float32), np.array([-2.0], np.float32)]
    found = perplexity_metrics(learner, sampler)
    assert found["rollout_corr/training_ppl"] == pytest.approx((np.e + np.e**2) / 2)
    assert found["rollout_corr/rollout_ppl"] == pytest.approx((np.e**1.5 + np.e**2) / 2)
    assert found["rollout_corr/log_ppl_diff"] == pytest.approx(-0.25) and found["rollout_corr/log_ppl_abs_diff"] == pytest.approx(0.25)
    assert found["rollout_corr/ppl_ratio"] == pytest.approx((np.exp(-0.5) + 1) / 2)
    assert found["rollout_corr/chi2_token"] == pytest.approx((1 + np.e**2 + 1) / 3 - 1)
    assert found["rollout_corr/chi2_seq"] == pytest.approx((np.e**2 + 1) / 2 - 1)
    assert perplexity_metrics([], []) == {} and all(lookup(name) for name in found)
