"""Advantages and token weights against hand-worked groups and a slow loop."""

import statistics

import numpy as np
import pytest

from runner.learning.advantages import group_advantages, shuffled_rewards, token_weights


@pytest.mark.parametrize(
    "rewards, expected",
    [
        ([1, 1, 0, 0], [0.5, 0.5, -0.5, -0.5]),
        ([1, 1, 1, 1], [0, 0, 0, 0]),
        ([1, 0, 0, 0], [0.75, -0.25, -0.25, -0.25]),
        ([0.25], [0]),
        ([], []),
    ],
)
def test_mean_only(rewards, expected):
    assert group_advantages(rewards) == pytest.approx(expected)


def test_mean_std_divides_by_the_unbiased_deviation():
    rewards = [1.0, 0.5, 0.0, 0.25]
    mean, std = statistics.mean(rewards), statistics.stdev(rewards)
    expected = [(reward - mean) / (std + 1e-6) for reward in rewards]
    assert group_advantages(rewards, "mean_std") == pytest.approx(expected, abs=1e-9)


def test_mean_std_of_equal_rewards_is_zero_not_infinite():
    assert group_advantages([0.3, 0.3, 0.3], "mean_std") == pytest.approx([0, 0, 0], abs=1e-6)


def test_a_missing_reward_stays_out_of_the_baseline():
    assert group_advantages([1, None, 0, None]) == [0.5, None, -0.5, None]


def test_a_missing_reward_may_count_as_zero():
    assert group_advantages([1, None, 0, None], ungraded="zero") == [0.75, -0.25, -0.25, -0.25]


def test_an_ungraded_group_has_no_advantage():
    assert group_advantages([None, None]) == [None, None]


def test_shuffling_permutes_graded_rewards_only():
    rewards = [0.0, None, 1.0, 2.0, None, 3.0, 4.0, 5.0]
    shuffled = shuffled_rewards(rewards, seed=1, step=2)
    assert [value is None for value in shuffled] == [value is None for value in rewards]
    assert sorted(value for value in shuffled if value is not None) == [0, 1, 2, 3, 4, 5]
    assert shuffled != rewards


def test_shuffling_is_a_function_of_seed_and_step():
    rewards = [float(value) for value in range(16)]
    assert shuffled_rewards(rewards, 1, 2) == shuffled_rewards(rewards, 1, 2)
    assert shuffled_rewards(rewards, 1, 2) != shuffled_rewards(rewards, 1, 3)
    assert shuffled_rewards(rewards, 1, 2) != shuffled_rewards(rewards, 2, 2)


MASKS = [np.array([0, 1, 1, 0], bool), np.array([0, 0, 0], bool), np.array([0, 1, 1, 1, 1], bool)]


def test_token_weights_are_one_over_all_loss_tokens():
    weights = token_weights(MASKS, "token")
    np.testing.assert_allclose(np.concatenate(weights), np.concatenate(MASKS) / 6, atol=1e-7)


def test_sequence_weights_average_token_means():
    values = [np.arange(4.0), np.arange(3.0), np.arange(5.0)]
    weighted = sum((value * weight).sum() for value, weight in zip(values, token_weights(MASKS, "sequence")))
    assert weighted == pytest.approx(np.mean([np.mean([1, 2]), np.mean([1, 2, 3, 4])]), abs=1e-6)


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
def test_weights_sum_to_one_and_an_empty_batch_to_zero(aggregation):
    assert sum(weight.sum() for weight in token_weights(MASKS, aggregation)) == pytest.approx(1)
    assert sum(weight.sum() for weight in token_weights(MASKS[1:2], aggregation)) == 0
