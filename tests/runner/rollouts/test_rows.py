"""Turn-level rows: what step-level credit knows of each turn, under both ways of giving a turn its context."""

import asyncio

import numpy as np
import pytest

from runner.contract.parse import parse
from runner.contract.run_config import Model
from runner.environments.base import Observation, Situation, Step
from runner.learning.learner import Learner
from runner.models.loading import load_tokenizer
from runner.policies.base import SamplingParams
from runner.policies.transformers import TransformersPolicy
from runner.rollouts.episodes import Job
from runner.rollouts.groups import training_orders
from runner.rollouts.turns import TurnLoop
from runner.rollouts.workflow import GroupWorkflow
from tests.runner.rollouts.test_turns import TASKS, TOKENIZER, FakeEnvironment, run


class Laboratory(FakeEnvironment):
    """Three steps with rewards; the second action means nothing. `alone`: every turn has a prompt of its own."""

    def __init__(self, alone):
        super().__init__()
        self.alone, self.count = alone, 0

    def _observed(self):
        text = f"you are at {self.count}"
        whole = [{"role": "user", "content": f"room {self.count} go"}]
        return Observation(
            [{"role": "user", "content": text}], whole if self.alone else None, Situation(text, "a room", "nothing", 10.0 * self.count)
        )

    async def start(self, task, seed):
        return self._observed()

    async def step(self, action):
        self.answer, self.count = action, self.count + 1
        told = {"info": {"action": "wait"}, "valid": self.count != 2, "reward": 0.5 * self.count}
        return Step(done=True, **told) if self.count == 3 else Step(self._observed(), **told)


@pytest.mark.parametrize("alone", [True, False])
def test_a_row_a_turn_names_its_tokens_its_state_and_its_reward(alone):
    for outcome in run(lambda number: Laboratory(alone))[0]:
        rows = outcome.sample.rows
        assert [(row.turn, row.reward, row.valid) for row in rows] == [(0, 0.5, True), (1, 1.0, False), (2, 1.5, True)]
        assert [row.situation.score for row in rows] == [0.0, 10.0, 20.0], "the state before the action"
        for row in rows:
            assert TOKENIZER.decode(outcome.sample.token_ids[row.start : row.stop], skip_special_tokens=True) == "B"
            assert outcome.sample.loss_mask[row.start : row.stop].all()
        assert sum(row.stop - row.start for row in rows) == outcome.sample.loss_mask.sum()


def test_a_prompt_of_its_own_begins_a_sequence_that_knows_nothing_of_the_turns_before():
    (outcome, *_), _ = run(lambda number: Laboratory(True))
    sample = outcome.sample
    assert len(sample.spans) == 3
    for number, (span, row) in enumerate(zip(sample.spans, sample.rows, strict=True)):
        text = TOKENIZER.decode(sample.token_ids[span])
        assert f"room {number} go" in text and text.count("B") == 1
        assert span.start < row.start and row.stop == span.stop
    (grown, *_), _ = run(lambda number: Laboratory(False))
    assert len(grown.sample.spans) == 1 and "forks" not in outcome.facts, "a chosen context is no template that failed to accumulate"


def test_the_transcript_shows_what_the_environment_told_beside_the_text():
    (outcome, *_), _ = run(lambda number: Laboratory(True))
    shown, said, *_ = outcome.turns
    assert (shown.text, shown.facts["inventory"], shown.facts["score"]) == ("you are at 0", "nothing", 0.0)
    assert (said.author, said.reward, said.facts) == ("student", 0.5, {"action": "wait"})


def test_an_own_prompt_that_does_not_fit_ends_the_episode_without_a_row():
    class Verbose(Laboratory):
        def _observed(self):
            seen = super()._observed()
            long = [{"role": "user", "content": "word " * (200 if self.count else 1)}]
            return Observation(seen.messages, long, seen.situation)

    (outcome, *_), _ = run(lambda number: Verbose(True))
    assert str(outcome.termination) == "max_response_length_exceeded" and len(outcome.sample.rows) == 1
    assert outcome.sample.longest_sequence <= 64


# ---------------------------------------------------------------- what learning makes of them
class Measured(Laboratory):
    """Rewards that differ within a group."""

    number = 0

    def __init__(self):
        super().__init__(True)
        Measured.number += 1
        self.earns = float(Measured.number % 3)

    async def step(self, action):
        step = await super().step(action)
        return Step(step.observation, self.earns * self.count, step.done, valid=step.valid)

    cut = step


@pytest.mark.parametrize("mini_batch_rows", [None, 5])
def test_the_learner_trains_every_turn_as_a_sequence_of_its_own_and_agrees_with_the_sampler(tiny_qwen3, mini_batch_rows):
    stage = {"type": "gigpo", "steps": 2, "batch_size": 4, "group_size": 2, "anchor": "observation", "mini_batch_rows": mini_batch_rows}
    model = {"source": {"type": "path", "path": str(tiny_qwen3)}, "max_length": 64}
    config = parse({"name": "g", "model": model, "sampling": {"max_new_tokens": 5}, "stages": [stage]})
    policy = TransformersPolicy(tiny_qwen3, Model(max_length=64), seed=0)
    loop = TurnLoop(policy, load_tokenizer(tiny_qwen3), TASKS, Measured, max_length=64, worker="worker-0", limit=4)
    orders = training_orders(GroupWorkflow(["a", "b"], 4, 2, 1, 1).episodes(1), attempt="1", stage=0, run_seed=1)
    outcomes = asyncio.run(loop.run(Job(tuple(orders), SamplingParams(max_new_tokens=5)), 0)).outcomes
    samples = [outcome.sample for outcome in outcomes]
    learner = Learner(config, tiny_qwen3)
    learner.begin_stage(0)
    before = learner.weights().tensors
    report = learner.learn(1, samples)
    assert report.skipped is None and report.policy_version == 1 and [len(item.turns) for item in report.samples] == [3, 3, 3, 3]
    assert any(not np.array_equal(before[name], after) for name, after in learner.weights().tensors.items())
    for trained, sample in zip(report.samples, samples, strict=True):
        for row, turn in zip(sample.rows, trained.turns, strict=True):
            np.testing.assert_allclose(trained.advantages[row.start : row.stop], turn["advantage"], rtol=1e-6)
    if mini_batch_rows is None:
        assert report.metrics["rollout_corr/k3_kl"] < 1e-8
    else:
        assert report.metrics["rollout_corr/k3_kl"] > 1e-8, "later updates see weights that moved"
