"""Episodes of a gold player through the turn loop: what a learner is given of them, and what it is not."""

import os
import signal

import pytest

from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.contract.termination import Termination
from runner.environments.scienceworld.environment import ScienceWorldEnvironment
from runner.environments.scienceworld.pool import Pool
from tests.runner.environments.scienceworld.conftest import task
from tests.runner.environments.scienceworld.gold_policy import TOKENIZER, play

KITCHEN, TOUR = task("4-1", 0), task("4-1", 1)
ACTIONS = ["look around", "teleport to kitchen", "fly to the moon"]


@pytest.fixture(scope="module")
def pools(folder):
    made = []

    def make(**changes):
        made.append(
            Pool(Settings(boot_timeout_sec=300, load_timeout_sec=300, step_timeout_sec=120, hints="none", max_actions=3, **changes), folder)
        )
        return made[-1]

    yield make
    for pool in made:
        pool.close()


def test_a_row_a_turn_has_a_prompt_of_its_own_or_one_sequence_grows_and_rewards_add_up_to_what_was_earned(pools):
    pool = pools(max_concurrent_episodes=1)
    for context, spans in (("turn", 3), ("episode", 1)):
        pool.settings = pool.settings.model_copy(update={"context": context})
        (outcome,) = play(pool, [KITCHEN], {KITCHEN.key: ACTIONS}).outcomes
        sample = outcome.sample
        assert outcome.termination is Termination.MAX_TURNS_EXCEEDED and len(sample.spans) == spans
        assert [row.valid for row in sample.rows] == [True, True, False] and [row.situation.score for row in sample.rows] == [8, 8, 25]
        assert sum(row.reward for row in sample.rows) == pytest.approx(1.7) == sample.reward - 0.8
        said = [TOKENIZER.decode(sample.token_ids[row.start : row.stop], skip_special_tokens=True) for row in sample.rows]
        assert [f"<action>{action}</action>" in text for action, text in zip(ACTIONS, said, strict=True)] == [True] * 3
        assert outcome.evidence["final_score"] == 25 and outcome.checks == {"success": 0.0}


def test_an_episode_whose_simulator_is_killed_is_tried_once_more_and_never_becomes_a_zero(pools, monkeypatch):
    pool, step, killed = pools(max_concurrent_episodes=2), ScienceWorldEnvironment.step, []

    async def killing(environment, action):
        if environment.course.actions == 1 and (environment.payload.variation == 1 or not killed):
            killed.append(environment.payload.variation)
            os.kill(int(environment._simulator.java[0]), signal.SIGKILL)
        return await step(environment, action)

    monkeypatch.setattr(ScienceWorldEnvironment, "step", killing)
    landed = play(pool, [KITCHEN, TOUR], {KITCHEN.key: ACTIONS, TOUR.key: ACTIONS})
    ends = {(outcome.order.task, outcome.order.trial): outcome for outcome in landed.outcomes}
    lost = [outcome for outcome in landed.outcomes if outcome.termination is Termination.ENV_CRASH]
    assert ends[TOUR.key, 0] in lost and ends[TOUR.key, 1] in lost, "the second try is the last"
    assert lost and all(outcome.sample.reward is None and not outcome.graded for outcome in lost)
    assert all(outcome.sample.reward is not None for outcome in landed.outcomes if outcome not in lost)
    assert max(trial for _, trial in ends) == 1
