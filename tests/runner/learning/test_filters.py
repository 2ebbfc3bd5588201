"""Filters fire exactly where their definition says; every match is recorded."""

import math

import pytest

from runner.contract.episode import Author
from runner.contract.run_config import Filters
from runner.contract.termination import Termination
from runner.learning.filters import enforced_filter, gibberish, matched_filters, repetition
from runner.rollouts.types import SampleBuilder

VOCABULARY = 1000
FLOOR = -math.log(VOCABULARY) - 2.0


def sample(*spans):
    """Spans are (token ids, log-probs) of the student, or a list of token ids of the environment."""
    builder = SampleBuilder()
    for span in spans:
        if isinstance(span, tuple):
            builder.append(span[0], Author.STUDENT, span[1])
        else:
            builder.append(span, Author.ENVIRONMENT)
    return builder.build(episode="e", task="t", group=0, index=0, reward=1.0, termination=Termination.FINISHED, policy_version=0)


@pytest.mark.parametrize("token, logprob, fires", [(901, FLOOR - 0.1, True), (900, FLOOR - 0.1, False), (901, FLOOR + 0.1, False)])
def test_gibberish_needs_a_rare_token_below_chance(token, logprob, fires):
    assert gibberish(sample([1], ([5, token], [-0.1, logprob])), VOCABULARY, Filters(gibberish_token_id=900)) is fires


def test_gibberish_ignores_tokens_nobody_sampled():
    assert gibberish(sample([999, 999], ([5], [-0.1])), VOCABULARY, Filters(gibberish_token_id=900)) is False


@pytest.mark.parametrize(
    "probabilities, fires", [([0.995] * 4, True), ([0.995] * 3, False), ([0.995, 0.995, 0.5, 0.995, 0.995], False), ([0.99] * 4, False)]
)
def test_repetition_needs_a_streak_above_the_threshold(probabilities, fires):
    config = Filters(repetition_window=4, repetition_probability=0.99)
    assert repetition(sample([1], ([5] * len(probabilities), [math.log(value) for value in probabilities])), config) is fires


def test_repetition_counts_sampled_tokens_across_turns():
    near = math.log(0.999)
    assert repetition(sample([1], ([5, 5], [near, near]), [7, 7], ([5, 5], [near, near])), Filters(repetition_window=4)) is True


def test_zero_advantage_means_exactly_zero():
    quiet = sample([1], ([5], [-1.0]))
    assert matched_filters(quiet, 0.0, VOCABULARY, Filters()) == ["zero_advantage"]
    assert matched_filters(quiet, 1e-12, VOCABULARY, Filters()) == []
    assert matched_filters(quiet, None, VOCABULARY, Filters()) == []


def test_every_match_is_recorded_and_only_an_enforced_one_drops():
    loud = sample([1], ([901, 5, 5], [-20.0, -1e-4, -1e-4]))
    config = Filters(gibberish_token_id=900, repetition_window=2, zero_advantage="monitor")
    matches = matched_filters(loud, 0.0, VOCABULARY, config)
    assert matches == ["gibberish", "repetition", "zero_advantage"]
    assert enforced_filter(matches, config) is None
    assert enforced_filter(matches, config.model_copy(update={"repetition": "enforce"})) == "repetition"


def test_a_filter_that_is_off_does_not_match():
    loud = sample([1], ([901], [-20.0]))
    assert matched_filters(loud, 0.0, VOCABULARY, Filters(gibberish="off", zero_advantage="off", gibberish_token_id=900)) == []
