import asyncio

import pytest

from tests.runner.sandbox.storm import Storm

EPISODES = 24


@pytest.mark.docker
@pytest.mark.slow
async def test_a_storm_of_kills_leaves_nothing_nothing_unexplained_and_invents_no_reward(private_engine, tmp_path):
    storm = Storm(private_engine, tmp_path / "storm", EPISODES)
    outcome = await asyncio.to_thread(storm.run, 900)
    assert outcome.broken == [], (outcome, (tmp_path / "storm" / "workers.log").read_text()[-3000:])
    assert sum(outcome.terminations.values()) == EPISODES
    assert outcome.kills["engine"] and outcome.kills["agent"] + outcome.kills["verifier"] > 0
    assert outcome.graded > 0
