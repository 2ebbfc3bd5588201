"""GiGPO's arithmetic: the published vector, a slow reference, and each edge case of its statistics."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.contract.run_config import GigpoStage, SimilarAnchors
from runner.environments.base import Situation
from runner.methods.gigpo_credit import GroupRows, anchor_of, credit_group, describe, step_group_metrics, step_groups

MODES = [("mean", "rows"), ("mean_std", "rows"), ("mean", "trajectories"), ("mean_std", "trajectories")]


def rows(*turns):
    """From (episode, anchor, reward, valid)."""
    names = list(dict.fromkeys(turn[0] for turn in turns))
    episode = np.array([names.index(turn[0]) for turn in turns])
    return GroupRows(
        episode, np.array([turn[2] for turn in turns], float), np.array([turn[3] for turn in turns], bool), [turn[1] for turn in turns]
    )


VECTOR = rows(
    ("a", "S0", 0, 1), ("a", "S1", 1, 1), ("a", "S2", 9, 1), ("b", "S0", 0, 1), ("b", "S1", 0, 0), ("b", "S1", 0.5, 1), ("c", "S0", 1, 1), ("c", "S3", -2, 1)
)  # fmt: skip
EPISODE = {
    ("mean", "rows"): [6.325, 6.325, 6.325, -3.175, -3.275, -3.175, -4.675, -4.675],
    ("mean_std", "rows"): [1.1996, 1.1996, 1.1996, -0.6021, -0.6211, -0.6021, -0.8866, -0.8866],
    ("mean", "trajectories"): [6.8333, 6.8333, 6.8333, -2.6667, -2.7667, -2.6667, -4.1667, -4.1667],
    ("mean_std", "trajectories"): [1.1455, 1.1455, 1.1455, -0.447, -0.4638, -0.447, -0.6985, -0.6985],
}
STEP = {
    "mean": [6.1979, 6.075, 0, -2.4233, -3.1, -2.975, -3.7746, 0],
    "mean_std": [1.1457, 1.1546, 0, -0.4479, -0.5892, -0.5654, -0.6977, 0],
}


def slowly(group, stage):
    """The definitions once more, turn by turn, with nothing in common with the code under test."""
    count = len(group.reward)
    score, returns = [], []
    for index in range(count):
        own = [other for other in range(count) if group.episode[other] == group.episode[index]]
        cost = 0.0 if group.valid[index] else stage.invalid_action_penalty
        score.append(sum(group.reward[other] for other in own) - cost)
        returns.append(sum(group.reward[other] * stage.gamma ** (other - index) for other in own if other >= index) - cost)
    firsts = [min(i for i in range(count) if group.episode[i] == episode) for episode in set(group.episode.tolist())]
    over = score if stage.episode_stat_scope == "rows" else [score[index] for index in firsts]
    level = [_relative(score[index], over, stage) for index in range(count)]
    same = [[returns[j] for j in range(count) if group.anchor[j] == group.anchor[i]] for i in range(count)]
    step = [_relative(returns[index], same[index], stage) for index in range(count)]
    return np.array(level), np.array(step)


def _relative(value, over, stage):
    if len(over) < 2:
        return 0.0
    mean = sum(over) / len(over)
    deviation = (sum((one - mean) ** 2 for one in over) / (len(over) - 1)) ** 0.5
    return (value - mean) / (max(deviation, stage.min_std) + 1e-6 if stage.advantage == "mean_std" else 1.0)


@pytest.mark.parametrize(("mode", "scope"), MODES)
def test_the_published_vector(mode, scope):
    stage = GigpoStage(advantage=mode, episode_stat_scope=scope)
    found = credit_group(VECTOR, stage)
    np.testing.assert_allclose(found.returns + [0, 0, 0, 0, 0.1, 0, 0, 0], [9.0725, 9.55, 9, 0.45125, 0.475, 0.5, -0.9, -2], atol=1e-12)
    np.testing.assert_allclose(found.episode_advantage, EPISODE[mode, scope], atol=5.1e-5)
    np.testing.assert_allclose(found.step_advantage, STEP[mode], atol=5.1e-5)
    level, step = slowly(VECTOR, stage)
    np.testing.assert_allclose(found.episode_advantage, level, atol=1e-6)
    np.testing.assert_allclose(found.step_advantage, step, atol=1e-6)
    np.testing.assert_allclose(found.advantage, level + step, atol=1e-6)


def test_the_joint_advantage_of_the_vector():
    joint = {mode: credit_group(VECTOR, GigpoStage(advantage=mode)).advantage for mode in ("mean", "mean_std")}
    np.testing.assert_allclose(joint["mean"], [12.5229, 12.4, 6.325, -5.5983, -6.375, -6.15, -8.4496, -4.675], atol=5.1e-5)
    np.testing.assert_allclose(joint["mean_std"], [2.3452, 2.3542, 1.1996, -1.0501, -1.2103, -1.1676, -1.5843, -0.8866], atol=5.1e-5)
    alone = credit_group(VECTOR, GigpoStage(omega=0.0))
    np.testing.assert_array_equal(alone.advantage, alone.episode_advantage)


turns = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("xyz"), st.sampled_from([0.0, 0.5, 1.0, -10.0]), st.booleans()), min_size=1, max_size=30
)


@settings(max_examples=150, deadline=None)
@given(turns, st.sampled_from(MODES), st.floats(0, 1), st.floats(0, 2))
def test_it_agrees_with_the_slow_reference_on_any_group(group, mode, gamma, penalty):
    group = rows(*sorted(group, key=lambda turn: turn[0]))
    stage = GigpoStage(advantage=mode[0], episode_stat_scope=mode[1], gamma=gamma, invalid_action_penalty=penalty)
    found, (level, step) = credit_group(group, stage), slowly(group, stage)
    np.testing.assert_allclose(found.episode_advantage, level, atol=1e-6)
    np.testing.assert_allclose(found.step_advantage, step, atol=1e-6)


def test_the_penalty_is_not_discounted_back_and_touches_both_parts_of_its_own_turn():
    punished, free = (
        credit_group(rows(("a", "x", 0, 1), ("a", "y", 1, valid)), GigpoStage(advantage="mean", omega=2.0)) for valid in (0, 1)
    )
    assert (free.returns - punished.returns).tolist() == pytest.approx([0.0, 0.1])
    assert (free.score - punished.score).tolist() == pytest.approx([0.0, 0.1])


# ---------------------------------------------------------------- section 2.7
@pytest.mark.parametrize("mode", ["mean", "mean_std"])
def test_a_group_with_a_single_turn_has_advantage_0_not_its_score(mode):
    found = credit_group(rows(("a", "x", 7.0, 1)), GigpoStage(advantage=mode))
    assert found.advantage.tolist() == [0.0]


@pytest.mark.parametrize("mode", ["mean", "mean_std"])
def test_equal_episodes_and_equal_returns_have_advantage_0(mode):
    equal = rows(("a", "x", 1, 1), ("a", "y", 2, 1), ("b", "x", 1, 1), ("b", "y", 2, 1))
    found = credit_group(equal, GigpoStage(advantage=mode))
    assert not found.episode_advantage.any() and not found.step_advantage.any() and found.floored == 0


def test_a_near_zero_deviation_is_floored_and_counted():
    close = rows(("a", "x", 1.0, 1), ("b", "y", 1.0 + 1e-7, 1))
    found = credit_group(close, GigpoStage())
    assert np.abs(found.episode_advantage).max() < 1e-3 and found.floored == 1
    blown_up = credit_group(close, GigpoStage(min_std=0.0))
    assert np.abs(blown_up.episode_advantage).max() > 0.04 and blown_up.floored == 0


def test_a_missing_anchor_is_a_group_of_its_own():
    found = credit_group(rows(("a", None, 1, 1), ("b", None, 5, 1), ("c", "x", 1, 1), ("d", "x", 3, 1)), GigpoStage(advantage="mean"))
    assert found.step_group.tolist() == [0, 1, 2, 2] and found.step_advantage.tolist() == [0, 0, -1, 1]


@pytest.mark.parametrize("anchor", [1, 2.0, b"x", ["x"], {"x": 1}])
def test_an_anchor_that_is_no_text_is_refused(anchor):
    with pytest.raises(TypeError, match="give the state as text"):
        step_groups(["x", anchor], GigpoStage())


def test_similar_states_join_the_first_group_they_resemble_and_the_order_decides():
    base = "a kitchen with a stove, a sink, a fridge and a table near the window"
    near, far = base.replace("table", "chair"), base.replace("stove", "bed").replace("sink", "desk").replace("fridge", "lamp")
    stage = GigpoStage(grouping=SimilarAnchors(threshold=0.9))
    assert step_groups([base, near, far, None, base], stage).tolist() == [0, 0, 1, 2, 0]
    chain = ["aaaaaaaaaa", "aaaaaaaaab", "aaaaaaaabb"]
    stage = GigpoStage(grouping=SimilarAnchors(threshold=0.85))
    assert step_groups(chain, stage).tolist() == [0, 0, 1] and step_groups([chain[1], chain[0], chain[2]], stage).tolist() == [0, 0, 0]
    assert step_groups(chain, GigpoStage()).tolist() == [0, 1, 2]


# ---------------------------------------------------------------- anchors
KITCHEN = Situation(
    "The door is already open.", "This room is called the kitchen:\n\ta sink\n\ta stove", "In your inventory: an orange", 8.0
)


def test_kinds_of_anchor():
    swapped = Situation("Nothing happens.", "This room is called the kitchen:\n\ta stove\n\ta sink", KITCHEN.inventory, 8.0)
    richer = Situation(KITCHEN.observation, KITCHEN.look, KITCHEN.inventory, 17.0)
    assert anchor_of(KITCHEN, "observation") == KITCHEN.observation
    assert anchor_of(KITCHEN, "look_inv_score") == anchor_of(swapped, "look_inv_score"), "the order of objects is no part of the state"
    assert anchor_of(KITCHEN, "look_inv") == anchor_of(richer, "look_inv")
    assert anchor_of(KITCHEN, "look_inv_score") != anchor_of(richer, "look_inv_score")


@pytest.mark.parametrize(
    ("situation", "kind"),
    [
        (None, "observation"),
        (Situation("x"), "look_inv"),
        (Situation("x", "room", None, 1.0), "look_inv"),
        (Situation("x", "room", "bag"), "look_inv_score"),
    ],
)
def test_what_the_environment_did_not_tell_is_no_anchor(situation, kind):
    assert anchor_of(situation, kind) is None


def test_statistics_count_turns_and_the_published_anchor_mixes_rooms():
    """Section 2.9: the same feedback comes in different rooms."""
    hall = Situation(KITCHEN.observation, "This room is called the hallway", KITCHEN.inventory, 8.0)
    told, episode = [KITCHEN, hall, KITCHEN, None], np.array([0, 0, 1, 1])

    def statistics(kind):
        groups = step_groups([anchor_of(situation, kind) for situation in told], GigpoStage())
        return step_group_metrics(describe([groups], [episode], [told]))

    published, faithful = statistics("observation"), statistics("look_inv_score")
    assert published["gigpo/group_size_mean"] == 2 and published["gigpo/mixed_places_share"] == 0.75
    assert published["gigpo/cross_episode_share"] == 0.75 and published["gigpo/singleton_share"] == 0.25
    assert (
        faithful["gigpo/mixed_places_share"] == 0 and faithful["gigpo/singleton_share"] == 0.5 and faithful["gigpo/mixed_scores_share"] == 0
    )
    assert step_group_metrics([]) == {}
