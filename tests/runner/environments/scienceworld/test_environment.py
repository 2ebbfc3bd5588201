"""Episodes in a real simulator."""

import asyncio

import pytest

from runner.contract.run_config import ClippedFailure, FixedFailure
from runner.contract.termination import Termination
from runner.environments.base import EnvironmentFailure
from tests.runner.environments.scienceworld.conftest import act, task

# Focusing on the agent itself fails every find-* task at once.
FAIL = "focus on agent"


async def test_points_of_the_first_look_are_kept_apart_from_what_is_earned(make):
    environment = make()
    observation = await environment.start(task("4-1", 0), 0)
    assert observation.situation.score == 8 and environment.course.initial == 8
    step = await act(environment, "teleport to kitchen")
    assert step.reward == pytest.approx(1.7) and step.situation.score == 25
    grade = await environment.grade()
    assert grade.score == pytest.approx(2.5), "the final score in tenths"
    await environment.close()


async def test_a_failed_task_is_done_and_no_success(make):
    environment = make()
    await environment.start(task("4-1", 0), 0)
    step = await act(environment, FAIL)
    assert step.done and step.termination is None and step.situation.score == -100 and step.reward == pytest.approx(-10.8)
    grade = await environment.grade()
    assert grade.score == pytest.approx(-10) and grade.checks == {"success": 0.0}
    assert environment.evidence["failed"] and not environment.evidence["success"] and not environment.evidence["truncated"]
    await environment.close()


@pytest.mark.parametrize(("failure", "reward"), [(ClippedFailure(), 0.0), (FixedFailure(penalty=2), -2.0)])
async def test_what_a_failure_costs_is_an_option_and_the_raw_score_stays_on_record(make, failure, reward):
    environment = make(failure_reward=failure)
    await environment.start(task("4-1", 0), 0)
    assert (await act(environment, FAIL)).reward == reward
    assert (await environment.grade()).score == pytest.approx(0.8 + reward) and environment.evidence["final_score"] == -100
    await environment.close()


async def test_actions_are_counted_not_ticks_and_the_cap_ends_the_episode(make):
    environment = make(max_actions=3)
    await environment.start(task("4-1", 0), 0)
    step = await act(environment, "wait")
    assert (environment.course.actions, environment.course.ticks) == (1, 11) and not step.done
    step = await act(environment, "look around", "no such words")
    assert step.done and step.termination is Termination.MAX_TURNS_EXCEEDED and step.observation is None
    assert environment.evidence["truncated"] and environment.course.ticks == 11
    assert (await environment.grade()).score == pytest.approx(0.8), "graded all the same"
    await environment.close()


async def test_a_failure_cannot_be_taken_back_and_three_flags_tell_what_was_wrong(make):
    environment = make(check_listed=True)
    await environment.start(task("4-1", 0), 0)
    step = await act(environment, "reset task")
    assert step.info["blocked"] and not step.info["understood"] and not step.valid and environment.course.ticks == 0
    step = await act(environment, "open door to kitchen")
    assert (step.info["format_ok"], step.info["understood"], step.info["listed"], step.valid) == (True, True, False, True), (
        "it is open already"
    )
    step = await environment.step("<action>go to kitchen</action>")
    assert (step.info["format_ok"], step.info["understood"], step.info["listed"], step.valid) == (False, True, True, False)
    step = await act(environment, "fly to the moon")
    assert (step.info["format_ok"], step.info["understood"], step.valid) == (True, False, False)
    assert environment.course.invalid == 3
    await environment.close()


@pytest.mark.parametrize(("answers", "carried"), [("model", False), ("auto_first", True)])
async def test_an_ambiguous_name_is_asked_back_or_settled_and_counted_either_way(make, answers, carried):
    environment = make(ambiguity=answers)
    await environment.start(task("4-1", 0), 0)
    step = await act(environment, "teleport to kitchen", "pick up orange")
    assert environment.course.ambiguous == 1 and step.valid is carried and step.info["ambiguous"] is not carried
    if answers == "model":
        assert not (await act(environment, "look around")).valid, "only a number is taken now"
    await environment.close()


async def test_each_turn_has_a_prompt_of_its_own_or_the_conversation_grows(make):
    alone, growing = make(context="turn"), make(context="episode")
    for environment in (alone, growing):
        await environment.start(task("4-1", 0), 0)
        step = await act(environment, "teleport to kitchen")
        told = step.observation
        text = told.messages[0]["content"]
        assert (told.prompt is not None) == (environment is alone) and ("Your task is" in text) == (environment is alone)
        assert "This room is called the kitchen" in text and told.situation.score == 25
        await environment.close()


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        (("1-1", 9999), {}, "exceeds the total number of variations"),
        (("3-1", 0), {"simplification": "noElectricalAction"}, "is about wiring"),
    ],
)
async def test_what_the_simulator_would_play_on_with_is_a_bad_task(make, name, changes, told):
    environment = make(**changes)
    with pytest.raises(EnvironmentFailure, match=told) as caught:
        await environment.start(task(*name), 0)
    assert caught.value.termination is Termination.ENV_BAD_TASK
    await environment.close()


async def test_an_unknown_task_is_a_bad_one_before_any_simulator_is_asked(make):
    environment, broken = make(), task("4-1", 0)
    broken.payload["task"] = "make-gold"
    with pytest.raises(EnvironmentFailure, match="'make-gold' is no task of ScienceWorld"):
        await environment.start(broken, 0)
    await environment.close()


def test_the_first_prompt_of_a_kind_is_measured_once(make, pool):
    environment, again = make(), make()
    first = asyncio.run(environment.preview(task("4-2", 0), 0))
    served = pool.simulators[0].episodes
    assert asyncio.run(again.preview(task("4-2", 7), 0)) == first and pool.simulators[0].episodes == served
