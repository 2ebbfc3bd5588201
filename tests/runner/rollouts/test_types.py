"""One growing sequence with an author per token."""

import numpy as np
import pytest

from runner.contract.episode import Author, Trace, write_trace
from runner.contract.termination import Termination
from runner.rollouts.types import SampleBuilder, TrainedSample


def two_turns():
    builder = SampleBuilder()
    builder.append([1, 2, 3], Author.ENVIRONMENT)
    builder.append([7, 8], Author.STUDENT, [-0.5, -0.25])
    builder.append([4], Author.TEMPLATE)
    builder.append([9], Author.STUDENT, [-1.0])
    return builder.build(episode="e", task="t", group=0, index=1, reward=None, termination=Termination.FINISHED, policy_version=3, turns=2)


def test_student_tokens_are_trained_and_carry_their_logprobs():
    sample = two_turns()
    assert sample.token_ids.tolist() == [1, 2, 3, 7, 8, 4, 9]
    assert sample.loss_mask.tolist() == [False] * 3 + [True, True, False, True]
    np.testing.assert_array_equal(sample.logprobs, np.array([np.nan] * 3 + [-0.5, -0.25, np.nan, -1.0], np.float32))
    assert (sample.prompt_length, sample.response_length, sample.total_length) == (3, 3, 7)


def test_the_builder_s_tokens_are_the_next_prompt():
    builder = SampleBuilder()
    builder.append(np.array([1, 2], np.int32), Author.ENVIRONMENT)
    builder.append(np.array([5], np.int32), Author.STUDENT, np.array([-1.0], np.float32))
    assert builder.token_ids == [1, 2, 5] and all(type(token) is int for token in builder.token_ids)


def test_training_on_a_span_can_be_said_explicitly():
    builder = SampleBuilder()
    builder.append([1], Author.GOLD, train=True)
    builder.append([2], Author.STUDENT, [-1.0], train=False)
    sample = builder.build(episode="e", task="t", group=0, index=0, reward=1.0, termination=Termination.FINISHED, policy_version=0)
    assert sample.loss_mask.tolist() == [True, False]


def test_logprobs_of_another_length_are_refused():
    with pytest.raises(ValueError, match="logprobs: 1 values for 2 tokens"):
        SampleBuilder().append([1, 2], Author.STUDENT, [-1.0])


def test_a_sample_and_its_outcome_travel_as_token_traces():
    sample = two_turns()
    trace = Trace.open(write_trace(sample.sampled_columns())).read()
    np.testing.assert_array_equal(trace["token_id"], sample.token_ids)
    np.testing.assert_array_equal(trace["author"], sample.author)
    filled = np.full(7, 0.5, np.float32)
    outcome = TrainedSample("e", 0.5, [], None, filled, sample.loss_mask, filled, filled)
    trained = Trace.open(write_trace(outcome.trained_columns())).read()
    assert trained["mask"].tolist() == [0, 0, 0, 1, 1, 0, 1] and np.isnan(trained["teacher_logprob"]).all()
    assert outcome.trained_tokens == 3 and not outcome.masked
