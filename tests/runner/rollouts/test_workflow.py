"""What a step consists of is a function of (seed, step)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.rollouts.workflow import EpisodePlan, GroupWorkflow, ReplayWorkflow, draw, seeded_order

TASKS = [f"t{index}" for index in range(10)]


def test_a_step_is_whole_groups_in_order():
    plans = GroupWorkflow(TASKS, 12, 4, seed=0, first_step=1).episodes(1)
    assert [(plan.group, plan.index) for plan in plans] == [(group, index) for group in range(3) for index in range(4)]
    assert all(len({plan.task for plan in plans[start : start + 4]}) == 1 for start in (0, 4, 8))
    assert plans[0] == EpisodePlan(plans[0].task, 0, 0, 1)


def test_every_task_comes_once_an_epoch():
    workflow = GroupWorkflow(TASKS, 10, 2, seed=3, first_step=5)
    assert {plan.task for step in (5, 6) for plan in workflow.episodes(step)} == set(TASKS)
    assert [plan.task for plan in workflow.episodes(5)] != [plan.task for plan in workflow.episodes(7)]


def test_a_resumed_run_draws_the_same():
    assert GroupWorkflow(TASKS, 8, 2, 1, 1).episodes(40) == GroupWorkflow(TASKS, 8, 2, 1, 1).episodes(40)
    assert ReplayWorkflow(50, 8, 1, 1).batch(40) == ReplayWorkflow(50, 8, 1, 1).batch(40)


@given(st.integers(1, 30), st.integers(0, 5), st.integers(0, 200), st.integers(1, 40))
def test_draws_do_not_depend_on_how_they_are_cut(count, seed, start, size):
    whole = draw(count, seed, 1, start, size)
    cut = size // 2
    assert whole == draw(count, seed, 1, start, cut) + draw(count, seed, 1, start + cut, size - cut)
    assert all(0 <= index < count for index in whole)


def test_streams_and_seeds_differ():
    assert draw(1000, 0, 1, 0, 10) != draw(1000, 0, 2, 0, 10) != draw(1000, 1, 2, 0, 10)


def test_the_seeded_order_is_cut_not_redrawn():
    assert seeded_order(TASKS, 7, 4) == seeded_order(TASKS, 7)[:4]
    assert sorted(seeded_order(TASKS, 7)) == sorted(TASKS)


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match="the training split is empty"):
        GroupWorkflow([], 4, 2, 0, 1).episodes(1)
