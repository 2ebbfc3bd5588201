"""The scripted policy keeps a policy's promises."""

import numpy as np

from runner.policies.base import SamplingParams, Weights
from runner.policies.scripted import ScriptedPolicy


def test_it_says_what_it_is_told():
    policy = ScriptedPolicy(lambda prompt, seed: [*prompt, seed[0], 2], stop_tokens=[2], vocabulary=4)
    first, second = policy.generate([[7], [8, 9, 10]], SamplingParams(max_new_tokens=3), [(5,), (6,)])
    assert first.token_ids.tolist() == [7, 5, 2] and first.finish_reason == "stop"
    assert second.token_ids.tolist() == [8, 9, 10] and second.finish_reason == "length"
    np.testing.assert_allclose(first.logprobs, np.log(0.25), rtol=1e-6)


def test_scores_agree_with_what_it_generates():
    policy = ScriptedPolicy(lambda prompt, seed: [2], vocabulary=4)
    (scores,) = policy.score([[1, 2, 3]])
    assert np.isnan(scores[0]) and scores[1:].tolist() == policy.generate([[1]], SamplingParams(), [(0,)])[0].logprobs.tolist() * 2
    assert policy.choice_logprobs([[1]], [[[3], [3, 4]]])[0].tolist() == [scores[1], 2 * scores[1]]


def test_it_takes_over_the_version():
    policy = ScriptedPolicy(lambda prompt, seed: [2])
    policy.load_weights(Weights(4, {}, {}))
    assert policy.generate([[1]], SamplingParams(), [(0,)])[0].policy_version == 4 == policy.health()["policy_version"]
