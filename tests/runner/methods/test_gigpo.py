"""GiGPO as a method: who takes part, which token gets which advantage, and what is said of each turn."""

import numpy as np
import pytest

from runner.contract.episode import Author
from runner.contract.metrics import lookup
from runner.contract.parse import InvalidDocument, parse
from runner.contract.run_config import GigpoStage
from runner.contract.termination import Termination
from runner.environments.base import Situation
from runner.methods.base import SequenceResult
from runner.methods.gigpo import Gigpo, mini_batches
from runner.methods.gigpo_credit import without_signal
from runner.rollouts.types import SampleBuilder, TurnRow

CRASHED, BROKEN, CUT = Termination.ENV_CRASH, Termination.VERIFIER_ERROR, Termination.MAX_TURNS_EXCEEDED


def situation(name, score=0.0):
    return name and Situation("ok", f"room {name}", "bag", score)


def episode(index, turns, group=0, termination=Termination.FINISHED, alone=True, reward=1.0):
    """`turns` are (state, reward, valid); each has a prompt of two tokens and a reply of two."""
    builder, rows = SampleBuilder(), []
    for number, (state, earned, valid) in enumerate(turns):
        if alone:
            builder.fork()
        builder.append([1, 2 + number], Author.ENVIRONMENT)
        builder.append([5 + index, 6], Author.STUDENT, [-1.0, -2.0])
        end = len(builder.token_ids)
        rows.append(TurnRow(number, end - 2, end, situation(state), earned, bool(valid)))
    told = {"episode": f"{group}-{index}", "task": f"t{group}", "group": group, "index": index, "rows": tuple(rows), "turns": len(rows)}
    return builder.build(**told, reward=None if termination in (CRASHED, BROKEN) else reward, termination=termination, policy_version=0)


VECTOR = [
    [("S0", 0.0, 1), ("S1", 1.0, 1), ("S2", 9.0, 1)],
    [("S0", 0.0, 1), ("S1", 0.0, 0), ("S1", 0.5, 1)],
    [("S0", 1.0, 1), ("S3", -2.0, 1)],
]


def vector(group=0, **options):
    return [episode(index, turns, group, **options) for index, turns in enumerate(VECTOR)]


def planned(samples, **settings):
    method = Gigpo(GigpoStage(**{"anchor": "look_inv", **settings}), seed=0, vocabulary=300)
    return method, method.plan(1, samples)


def results_for(plan):
    names = ("policy", "clipped", "dual_clipped", "loss")
    counts = [int(item.mask.sum()) for item in plan.sequences]
    return [SequenceResult(*np.full((2, n), -1.0, np.float32), {name: np.zeros(n, np.float32) for name in names}) for n in counts]


@pytest.mark.parametrize("alone", [True, False])
def test_each_reply_is_trained_with_its_own_turn_s_advantage(alone):
    _, plan = planned(vector(alone=alone), advantage="mean")
    assert len(plan.sequences) == (8 if alone else 3)
    per_token = np.concatenate([item.columns["advantage"][item.mask] for item in plan.sequences])
    np.testing.assert_allclose(per_token, np.repeat([12.5229, 12.4, 6.325, -5.5983, -6.375, -6.15, -8.4496, -4.675], 2), atol=1e-4)
    assert sum(item.weight.sum() for item in plan.sequences) == pytest.approx(1.0)
    assert all(not item.mask[0] and not item.mask[1] for item in plan.sequences), "prompts are not trained"


def test_both_parts_of_a_turn_s_advantage_are_kept():
    method, plan = planned(vector(), advantage="mean")
    _, trained = method.report(plan, results_for(plan))
    second = trained[1].turns[1]
    assert (second["turn"], second["valid"], second["group_size"], second["group_episodes"]) == (1, False, 3, 2)
    assert (second["episode_advantage"], second["step_advantage"]) == (pytest.approx(-3.275), pytest.approx(-3.1))
    assert second["advantage"] == pytest.approx(second["episode_advantage"] + second["step_advantage"])
    assert second["anchor"] == trained[1].turns[2]["anchor"] == trained[0].turns[1]["anchor"] != trained[0].turns[0]["anchor"]
    assert trained[1].advantage == pytest.approx(np.mean([turn["advantage"] for turn in trained[1].turns]))


def test_equal_states_of_different_tasks_are_never_compared():
    _, one = planned(vector(), advantage="mean")
    _, two = planned([*vector(), *vector(group=1)], advantage="mean")
    assert [item.columns["advantage"].tolist() for item in two.sequences[:8]] == [
        item.columns["advantage"].tolist() for item in one.sequences
    ]


def test_a_crashed_episode_leaves_its_group_as_if_it_had_not_been():
    crashed = episode(3, [("S0", 0.0, 1)], termination=CRASHED)
    _, without = planned(vector())
    _, plan = planned([*vector(), crashed])
    assert [item.columns["advantage"].tolist() for item in plan.sequences] == [
        item.columns["advantage"].tolist() for item in without.sequences
    ]
    assert (plan.credited[3].reason, plan.credited[3].advantage) == ("env_crash", None) and not plan.credited[3].mask.any()


@pytest.mark.parametrize("termination", [CRASHED, BROKEN])
def test_a_group_with_fewer_than_two_left_is_dropped(termination):
    method, plan = planned([vector()[0], *(episode(index, VECTOR[index], termination=termination) for index in (1, 2)), *vector(group=1)])
    metrics, trained = method.report(plan, results_for(plan))
    assert plan.credited[0].reason == "group_too_small" and trained[0].advantage is None and len(plan.sequences) == 8
    assert metrics["gigpo/dropped_groups"] == 1


def test_rows_are_never_doubled_whatever_the_size_of_mini_batches():
    """The reference repeats random turns to fill its device grid; here each is in the loss once, and all weights sum to 1."""
    for size in (1, 3, 5, 100):
        _, plan = planned(vector(), mini_batch_rows=size)
        assert sorted(index for batch in plan.batches for index in batch) == list(range(8))
        assert all(len(batch) == size for batch in plan.batches[:-1])
    assert mini_batches(8, [1] * 8, 3, 0, 1) == mini_batches(8, [1] * 8, 3, 0, 1) != mini_batches(8, [1] * 8, 3, 0, 2)
    _, grown = planned(vector(alone=False), mini_batch_rows=3)
    assert [len(batch) for batch in grown.batches] == [1, 1, 1], "a growing sequence counts its turns"


def test_a_group_of_one_is_refused_unless_allowed():
    with pytest.raises(InvalidDocument, match="/stages/0/group_size: 1 leaves nothing to compare"):
        parse({"name": "x", "stages": [{"type": "gigpo", "anchor": "observation", "group_size": 1}]})
    _, plan = planned([vector()[1]], group_size=1, allow_group_of_one=True, advantage="mean")
    step = [turn["step_advantage"] for turn in plan.credited[0].turns]
    assert step == pytest.approx([0, -0.0625, 0.0625]), "turns of one episode in one state"


@pytest.mark.parametrize(
    ("settings", "pointer"),
    [
        ({"advantage": "std"}, "/stages/0/advantage"),
        ({"anchor": "room"}, "/stages/0/anchor"),
        ({"anchor": "look_inv"}, "/stages/0/anchor"),
        ({"grouping": {"type": "similar", "threshold": 1.0}}, "/stages/0/grouping/threshold"),
        ({"grouping": {"type": "similar", "threshold": 0.0}}, "/stages/0/grouping/threshold"),
        ({"group_size": 7}, "/stages/0/group_size"),
        ({"max_staleness": 2, "equal_groups": {"type": "resample"}}, "/stages/0/max_staleness"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(settings, pointer):
    with pytest.raises(InvalidDocument) as refused:
        parse({"name": "x", "environment": {"type": "quiz"}, "stages": [{"type": "gigpo", "anchor": "observation", **settings}]})
    assert [error.pointer for error in refused.value.errors] == [pointer] and refused.value.errors[0].message


def test_groups_without_signal_are_those_that_dynamic_sampling_replaces():
    equal = [episode(index, [("S0", 0.5, 1), ("S1", index * 0.1, 1), ("S1", -index * 0.1, 1)], group=1) for index in range(2)]
    lonely = [episode(0, VECTOR[0], group=2), episode(1, VECTOR[1], group=2, termination=CRASHED)]
    assert without_signal([*vector(), *equal, *lonely]) == {1, 2}
    method, plan = planned([*vector(), *equal])
    assert method.report(plan, results_for(plan))[0]["gigpo/zero_variance_groups"] == 1


def test_truncated_episodes_count_in_the_statistics_and_are_trained_by_option():
    samples = [*vector()[:2], episode(2, VECTOR[2], termination=CUT)]
    _, kept = planned(samples)
    _, masked = planned(samples, train_truncated=False)
    assert [item.columns["advantage"].tolist() for item in masked.sequences] == [
        item.columns["advantage"].tolist() for item in kept.sequences[:6]
    ]
    assert masked.credited[2].reason == "max_turns_exceeded" and len(kept.sequences) == 8


def test_where_only_whole_episodes_are_rewarded_the_grade_is_the_last_turn_s():
    samples = [episode(index, [("S0", None, 1), ("S1", None, 1)], reward=float(index)) for index in range(2)]
    _, plan = planned(samples, advantage="mean", gamma=0.5)
    assert [turn["return"] for turn in plan.credited[1].turns] == [0.5, 1.0]
    ungraded = [episode(0, [("S0", None, 1)], reward=None), *samples[1:]]
    assert planned(ungraded)[1].credited[0].reason == "ungraded"


def test_an_episode_whose_every_turn_is_worth_nothing_is_left_out_by_the_filter():
    equal = [episode(index, [("S0", 1.0, 1)]) for index in range(2)]
    assert [item.reason for item in planned(equal)[1].credited] == ["zero_advantage"] * 2
    assert planned(equal, filters={"zero_advantage": "monitor"})[1].sequences


def test_a_reply_that_the_environment_never_took_is_not_trained():
    builder = SampleBuilder()
    builder.append([1, 2], Author.ENVIRONMENT)
    builder.append([5, 6], Author.STUDENT, [-1.0, -1.0])
    builder.append([3], Author.ENVIRONMENT)
    builder.append([7], Author.STUDENT, [-1.0])
    told = {"episode": "late", "task": "t0", "group": 0, "index": 9, "reward": 0.0, "termination": CUT, "policy_version": 0}
    late = builder.build(**told, rows=(TurnRow(0, 2, 4, situation("S0"), 0.0),))
    _, plan = planned([*vector(), late])
    assert plan.credited[3].mask.tolist() == [False, False, True, True, False, False]


def test_every_metric_is_in_the_dictionary_and_an_empty_batch_says_only_its_counts():
    method, plan = planned([*vector(), episode(0, [("S0", 1.0, 1)], group=1), episode(1, [(None, 2.0, 1)], group=1)])
    metrics, _ = method.report(plan, results_for(plan))
    assert [name for name in metrics if lookup(name) is None] == []
    assert metrics["gigpo/missing_anchors"] == 1 and metrics["episode/reward/max"] == 10 and metrics["episode/length/mean"] == 2
    assert metrics["episode/valid_action_ratio"] == pytest.approx(9 / 10) and metrics["gigpo/as_std"] > 0
    method, empty = planned([episode(0, VECTOR[0], termination=CRASHED)])
    metrics, _ = method.report(empty, [])
    assert metrics["gigpo/dropped_groups"] == 1 and "gigpo/ae_std" not in metrics and "episode/reward/mean" not in metrics
