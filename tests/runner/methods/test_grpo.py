"""GRPO's credit: who is in a baseline, who is in the loss, and what is said about it."""

import numpy as np
import pytest

from runner.contract.episode import Author
from runner.contract.metrics import lookup
from runner.contract.run_config import Filters, GrpoStage, MaskedLoss
from runner.contract.termination import Termination
from runner.methods.base import SequenceResult
from runner.methods.grpo import Grpo, credit
from runner.rollouts.types import SampleBuilder

CUT = Termination.MAX_RESPONSE_LENGTH_EXCEEDED
BROKEN = Termination.VERIFIER_ERROR
CRASHED = Termination.ENV_CRASH


def episode(reward, group=0, index=0, termination=Termination.FINISHED, tokens=3, version=0):
    builder = SampleBuilder()
    builder.append([1, 2], Author.ENVIRONMENT)
    builder.append([5 + index] * tokens, Author.STUDENT, [-1.0 - index] * tokens)
    return builder.build(
        episode=f"{group}-{index}",
        task=f"t{group}",
        group=group,
        index=index,
        reward=reward,
        termination=termination,
        policy_version=version,
    )


def group(*rewards, number=0, **changes):
    return [episode(reward, number, index, **changes) for index, reward in enumerate(rewards)]


def credited(samples, **settings):
    return credit(samples, GrpoStage(**settings), vocabulary=300, seed=0, step=1)


def results_for(plan):
    return [
        SequenceResult(*(np.full(item.mask.sum(), value, np.float32) for value in (-1.0, 0.5)), values(item)) for item in plan.sequences
    ]


def values(item):
    return {name: np.zeros(item.mask.sum(), np.float32) for name in ("policy", "clipped", "dual_clipped", "loss")}


def test_advantages_are_reward_minus_group_mean_on_every_student_token():
    plan = Grpo(GrpoStage(), seed=0, vocabulary=300).plan(1, group(1, 1, 0, 0))
    assert [item.advantage for item in plan.credited] == [0.5, 0.5, -0.5, -0.5]
    assert plan.sequences[0].columns["advantage"].tolist() == [0, 0, 0.5, 0.5, 0.5]
    assert plan.sequences[0].mask.tolist() == [False, False, True, True, True]
    assert [round(item.weight.sum() * 12) for item in plan.sequences] == [3, 3, 3, 3]


def test_a_group_without_signal_stays_when_only_monitored():
    method = Grpo(GrpoStage(filters=Filters(zero_advantage="monitor")), seed=0, vocabulary=300)
    plan = method.plan(1, group(1, 1, 1, 1) + group(1, 0, number=1))
    metrics, _ = method.report(plan, results_for(plan))
    assert (metrics["group/effective"], metrics["group/trainable"]) == (6, 2)
    assert metrics["filter/zero_advantage/fraction"] == pytest.approx(4 / 6)
    assert metrics["termination/masked_sample_fraction"] == 0


def test_a_group_without_signal_is_absent_when_enforced():
    method = Grpo(GrpoStage(), seed=0, vocabulary=300)
    plan = method.plan(1, group(1, 1, 1, 1) + group(1, 0, number=1))
    metrics, trained = method.report(plan, results_for(plan))
    assert (metrics["group/effective"], metrics["group/trainable"]) == (2, 2)
    assert metrics["termination/masked_sample_fraction"] == pytest.approx(4 / 6)
    assert [item.mask_reason for item in trained] == ["zero_advantage"] * 4 + [None, None]
    assert trained[0].filters == ["zero_advantage"] and trained[0].masked and trained[0].advantage == 0.0


def test_a_batch_that_is_all_filtered_reports_no_token_metric():
    method = Grpo(GrpoStage(), seed=0, vocabulary=300)
    plan = method.plan(1, group(1, 1))
    metrics, trained = method.report(plan, [])
    assert plan.sequences == [] and metrics["termination/trained_tokens"] == 0
    assert not any(name.startswith(("actor/", "rollout_corr/", "group/")) for name in metrics)
    assert np.isnan(trained[0].learner_logprob).all()


def test_groups_do_not_mix_whatever_the_order():
    samples = group(1, 0) + group(1, 1, 0, 0, number=1)
    shuffled = [samples[place] for place in (4, 0, 5, 2, 1, 3)]
    assert [item.advantage for item in credited(shuffled)] == [-0.5, 0.5, -0.5, 0.5, -0.5, 0.5]


def test_an_ungraded_episode_is_out_of_the_baseline_and_of_the_loss():
    items = credited([*group(1, 0), episode(None, index=2, termination=BROKEN)])
    assert [item.advantage for item in items] == [0.5, -0.5, None]
    assert items[2].reason == "verifier_error" and not items[2].mask.any()


def test_an_ungraded_episode_may_count_as_zero_and_still_is_masked():
    items = credited([*group(1, 1), episode(None, index=2, termination=BROKEN)], ungraded_in_baseline="zero")
    assert [item.advantage for item in items] == pytest.approx([1 / 3, 1 / 3, -2 / 3])
    assert not items[2].mask.any()


def test_a_finished_episode_without_reward_is_not_trained():
    items = credited([*group(1, 0), episode(None, index=2)])
    assert items[2].reason == "ungraded" and not items[2].mask.any()


def test_a_crashed_episode_takes_no_part():
    items = credited([*group(1, 0), episode(None, index=2, termination=CRASHED)], ungraded_in_baseline="zero")
    assert [item.advantage for item in items] == [0.5, -0.5, None] and items[2].reason == "env_crash"


def test_a_masked_but_graded_episode_keeps_its_place_in_the_mean():
    samples = [*group(1, 1), episode(0, index=2, termination=CUT)]
    masked, kept = credited(samples, train_truncated=False), credited(samples, train_truncated=True)
    assert [item.advantage for item in masked] == [item.advantage for item in kept] == pytest.approx([1 / 3, 1 / 3, -2 / 3])
    assert [item.mask.any() for item in masked] == [True, True, False]
    assert masked[2].reason == "max_response_length_exceeded"
    assert [item.mask.any() for item in kept] == [True, True, True]


def test_the_control_permutes_rewards_within_the_batch():
    samples = [sample for number in range(6) for sample in group(1, 0, 0, 0, number=number)]
    plain, control = credited(samples), credited(samples, reward_control="shuffled")
    assert [item.advantage for item in plain] != [item.advantage for item in control]
    assert [item.sample.reward for item in control] == [sample.reward for sample in samples]
    again = credited(samples, reward_control="shuffled")
    assert [item.advantage for item in control] == [item.advantage for item in again]


def test_several_student_turns_are_trained_and_what_lies_between_is_not():
    builder = SampleBuilder()
    builder.append([1, 2], Author.TEMPLATE)
    builder.append([5, 6], Author.STUDENT, [-1.0, -1.0])
    builder.append([9], Author.ENVIRONMENT)
    builder.append([7], Author.STUDENT, [-2.0])
    sample = builder.build(episode="e", task="t", group=0, index=0, reward=1.0, termination=Termination.FINISHED, policy_version=0)
    plan = Grpo(GrpoStage(), seed=0, vocabulary=300).plan(1, [sample, episode(0.0, index=1)])
    assert plan.sequences[0].mask.tolist() == [False, False, True, True, False, True]


def test_a_loss_token_without_sampling_logprob_is_refused():
    builder = SampleBuilder()
    builder.append([1], Author.ENVIRONMENT)
    builder.append([5], Author.GOLD, train=True)
    sample = builder.build(episode="gold", task="t", group=0, index=0, reward=1.0, termination=Termination.FINISHED, policy_version=0)
    with pytest.raises(ValueError, match="episode gold: a loss token has no sampling log-prob"):
        Grpo(GrpoStage(), seed=0, vocabulary=300).plan(1, [sample, episode(0.0, index=1)])


def test_outcomes_are_laid_back_onto_the_sample_s_tokens():
    method = Grpo(GrpoStage(), seed=0, vocabulary=300)
    plan = method.plan(1, group(1, 0))
    results = results_for(plan)
    results[0].logprob[:] = [-0.1, -0.2, -0.3]
    _, trained = method.report(plan, results)
    np.testing.assert_array_equal(trained[0].learner_logprob, np.array([np.nan, np.nan, -0.1, -0.2, -0.3], np.float32))
    assert trained[0].trained_columns()["mask"].tolist() == [0, 0, 1, 1, 1]
    assert trained[0].trained_tokens == 3 and trained[1].advantage == -0.5


def test_staleness_counts_versions_behind_the_learner():
    method = Grpo(GrpoStage(max_staleness=2), seed=0, vocabulary=300)
    plan = method.plan(5, group(1, 0, version=4) + group(1, 0, number=1, version=2))
    metrics, _ = method.report(plan, results_for(plan))
    assert (metrics["staleness/mean"], metrics["staleness/max"]) == (1.0, 2.0)


@pytest.mark.parametrize("stage", [GrpoStage(), GrpoStage(loss=MaskedLoss(), aggregation="sequence", advantage="mean_std")])
def test_every_metric_is_in_the_dictionary(stage):
    method = Grpo(stage, seed=0, vocabulary=300)
    plan = method.plan(1, group(1, 0))
    metrics, _ = method.report(plan, results_for(plan))
    assert [name for name in metrics if lookup(name) is None] == []


def test_a_spent_clock_has_an_option_of_its_own():
    """Section 5: a wall clock is infrastructure's fault, so filtering what was cut off leaves it in."""
    late, cut = Termination.AGENT_TIMEOUT, Termination.MAX_TURNS_EXCEEDED
    samples = [episode(1.0, index=0), episode(0.0, index=1, termination=late), episode(0.0, index=2, termination=cut)]
    masked = [
        [item.reason for item in credited(samples, **options)] for options in ({"train_truncated": False}, {"train_timed_out": False})
    ]
    assert masked == [[None, None, "max_turns_exceeded"], [None, "agent_timeout", None]]
    assert [item.advantage for item in credited(samples, train_truncated=False)] == pytest.approx([2 / 3, -1 / 3, -1 / 3])


@pytest.mark.parametrize(("mode", "advantages"), [("exclude", [0.5, -0.5, None]), ("zero", [2 / 3, -1 / 3, -1 / 3])])
def test_a_killed_verifier_is_masked_and_its_siblings_keep_their_rewards(mode, advantages):
    """12.3 in both modes: the graded siblings' rewards stay in the group's mean, the ungraded one is never trained."""
    samples = [episode(1.0, index=0), episode(0.0, index=1), episode(None, index=2, termination=BROKEN)]
    items = credited(samples, ungraded_in_baseline=mode)
    assert [item.advantage for item in items] == pytest.approx(advantages)
    assert [bool(item.mask.any()) for item in items] == [True, True, False] and items[2].reason == "verifier_error"
    assert len(items[2].mask) == len(samples[2].token_ids), "the mask keeps its length"


def test_an_episode_that_forked_is_trained_as_its_sequences_under_one_advantage():
    builder = SampleBuilder()
    for turn in range(2):
        builder.append([1, 2 + turn], Author.ENVIRONMENT)
        builder.append([7 + turn], Author.STUDENT, [-1.0 - turn])
        builder.fork()
    forked = builder.build(
        episode="f", task="t0", group=0, index=0, reward=1.0, termination=Termination.FINISHED, policy_version=0, turns=2
    )
    assert forked.forks == (3,)
    method = Grpo(GrpoStage(), seed=0, vocabulary=300)
    plan = method.plan(1, [forked, episode(0.0, index=1)])
    assert plan.trained == [0, 0, 1] and [item.token_ids.tolist() for item in plan.sequences[:2]] == [[1, 2, 7], [1, 3, 8]]
    assert [item.columns["advantage"][-1] for item in plan.sequences] == [0.5, 0.5, -0.5]
    assert sum(item.weight.sum() for item in plan.sequences) == pytest.approx(1.0)
    results = [
        SequenceResult(np.full(item.mask.sum(), -number, np.float32), np.zeros(item.mask.sum(), np.float32), values(item))
        for number, item in enumerate(plan.sequences)
    ]
    metrics, trained = method.report(plan, results)
    assert trained[0].learner_logprob[[2, 5]].tolist() == [0.0, -1.0] and np.isnan(trained[0].learner_logprob[[0, 1, 3, 4]]).all()
    assert metrics["group/effective"] == 2 and metrics["termination/masked_sample_fraction"] == 0
