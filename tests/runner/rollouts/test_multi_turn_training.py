"""Several turns, token by token: the learner scores the very tokens that were sampled, and learns from nothing else."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.contract.episode import Author
from runner.contract.parse import parse
from runner.contract.run_config import Model
from runner.environments.base import Observation, Step
from runner.learning.learner import Learner
from runner.models.loading import load_tokenizer
from runner.policies.base import SamplingParams
from runner.policies.transformers import TransformersPolicy
from runner.rollouts.episodes import Job
from runner.rollouts.groups import training_orders
from runner.rollouts.turns import TurnLoop
from runner.rollouts.workflow import GroupWorkflow
from tests.runner.rollouts.test_conversation import FORGETS, ROLES
from tests.runner.rollouts.test_turns import TASKS, FakeEnvironment

SAMPLING = SamplingParams(max_new_tokens=5)
LENGTH = 192


@pytest.fixture(scope="module")
def policy(tiny_qwen3: Path):
    return TransformersPolicy(tiny_qwen3, Model(max_length=LENGTH), seed=0)


class ThreeTurns(FakeEnvironment):
    """Goes on twice, also after a reply that was cut."""

    def __init__(self):
        super().__init__()
        self.count = 0

    async def step(self, action):
        self.count += 1
        self.answer = action
        return Step(done=True) if self.count == 3 else Step(Observation([{"role": "user", "content": f"again {self.count}"}]))

    cut = step


def samples_of(policy, folder, template, limit):
    tokenizer = load_tokenizer(folder)
    tokenizer.chat_template = template
    orders = training_orders(GroupWorkflow(["a", "b"], 4, 2, 1, 1).episodes(1), attempt="1", stage=0, run_seed=1)
    loop = TurnLoop(policy, tokenizer, TASKS, ThreeTurns, max_length=LENGTH, worker="worker-0", limit=limit)
    outcomes = asyncio.run(loop.run(Job(tuple(orders), SAMPLING), 0)).outcomes
    assert {outcome.sample.turns for outcome in outcomes} == {3}, [outcome.error for outcome in outcomes]
    return [replace(outcome.sample, reward=float(outcome.sample.index)) for outcome in outcomes]


@pytest.mark.parametrize("template", [ROLES, FORGETS])
@pytest.mark.parametrize("limit", [None, 2])
def test_sampled_logprobs_are_those_of_the_whole_sequence(policy, tiny_qwen3, template, limit):
    for sample in samples_of(policy, tiny_qwen3, template, limit):
        scored = np.concatenate(policy.score([sample.token_ids[span].tolist() for span in sample.spans]))
        student = sample.author == Author.STUDENT
        assert student.sum() == sample.loss_mask.sum() > 3
        np.testing.assert_allclose(scored[student], sample.logprobs[student], atol=2e-5)
        assert np.isnan(sample.logprobs[~student]).all()


def test_the_learner_moves_by_the_students_tokens_alone_and_agrees_with_the_sampler(policy, tiny_qwen3):
    config = parse(
        {
            "name": "m",
            "model": {"source": {"type": "path", "path": str(tiny_qwen3)}, "max_length": LENGTH},
            "stages": [{"type": "grpo", "steps": 2, "batch_size": 4, "group_size": 2}],
        }
    )
    learner = Learner(config, tiny_qwen3)
    learner.begin_stage(0)
    samples = samples_of(policy, tiny_qwen3, ROLES, None)
    report = learner.learn(1, samples)
    assert report.skipped is None and report.metrics["rollout_corr/k3_kl"] < 1e-8 and report.metrics["num_turns/mean"] == 3
    assert report.metrics["termination/trained_tokens"] == sum(sample.response_length for sample in samples)
    for trained, sample in zip(report.samples, samples, strict=True):
        assert (trained.mask == sample.loss_mask).all() and np.isnan(trained.learner_logprob[~sample.loss_mask]).all()
