"""Single-turn runs have the bits they had before there were several turns: the same calls of the policy, the same tokens and numbers.

The reference is the loop of one turn, written out: prompts rendered once, one batched call, one array append.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.contract.episode import Author
from runner.contract.run_config import GrpoStage, Model
from runner.methods.grpo import Grpo
from runner.models.loading import load_tokenizer
from runner.models.prompts import prompt_ids
from runner.policies.base import SamplingParams
from runner.policies.transformers import TransformersPolicy
from runner.rollouts.episodes import Job
from runner.rollouts.groups import training_orders
from runner.rollouts.turns import TurnLoop
from runner.rollouts.workflow import GroupWorkflow
from tests.runner.rollouts.test_turns import TASKS, FakeEnvironment

SAMPLING = SamplingParams(max_new_tokens=6)


@pytest.fixture(scope="module")
def policy(tiny_qwen3: Path):
    return TransformersPolicy(tiny_qwen3, Model(max_length=64), seed=0)


def reference(policy, tokenizer, orders):
    prompts = [prompt_ids(tokenizer, [{"role": "user", "content": TASKS[order.task].payload["question"]}]) for order in orders]
    generations = policy.generate(prompts, SAMPLING, [(*order.seed[:-1], 0) for order in orders])
    return [
        {
            "token_ids": np.concatenate([prompt, generation.token_ids]).astype(np.int32),
            "logprobs": np.concatenate([np.full(len(prompt), np.nan), generation.logprobs]).astype(np.float32),
            "loss_mask": np.arange(len(prompt) + len(generation.token_ids)) >= len(prompt),
        }
        for prompt, generation in zip(prompts, generations, strict=True)
    ]


def episodes(policy, tokenizer, orders, limit=None):
    loop = TurnLoop(policy, tokenizer, TASKS, FakeEnvironment, max_length=64, worker="worker-0", limit=limit)
    return [outcome.sample for outcome in asyncio.run(loop.run(Job(tuple(orders), SAMPLING), 0)).outcomes]


def test_tokens_logprobs_and_mask_are_those_of_one_batched_call(policy, tiny_qwen3):
    tokenizer = load_tokenizer(tiny_qwen3)
    orders = training_orders(GroupWorkflow(["a", "b"], 8, 4, 1, 1).episodes(1), attempt="1", stage=0, run_seed=1)
    for sample, expected in zip(episodes(policy, tokenizer, orders), reference(policy, tokenizer, orders), strict=True):
        for name, value in expected.items():
            assert getattr(sample, name).tobytes() == value.tobytes(), name
        assert sample.forks == () and (sample.author[sample.loss_mask] == Author.STUDENT).all()


def test_one_by_one_gives_the_same_bits_whatever_else_is_under_way(policy, tiny_qwen3):
    tokenizer = load_tokenizer(tiny_qwen3)
    orders = training_orders(GroupWorkflow(["a", "b"], 8, 4, 1, 1).episodes(1), attempt="1", stage=0, run_seed=1)
    alone = [episodes(policy, tokenizer, [order], limit=1)[0] for order in orders]
    rolling = episodes(policy, tokenizer, orders, limit=3)
    assert [sample.logprobs.tobytes() for sample in alone] == [sample.logprobs.tobytes() for sample in rolling]


def test_a_sample_that_did_not_fork_is_trained_as_one_sequence(policy, tiny_qwen3):
    orders = training_orders(GroupWorkflow(["a", "b"], 8, 4, 1, 1).episodes(1), attempt="1", stage=0, run_seed=1)
    samples = [replace(sample, reward=float(sample.index % 2)) for sample in episodes(policy, load_tokenizer(tiny_qwen3), orders)]
    plan = Grpo(GrpoStage(), seed=0, vocabulary=300).plan(1, samples)
    assert plan.trained == list(range(8))
    for sequence, sample in zip(plan.sequences, samples, strict=True):
        assert sequence.token_ids.tobytes() == sample.token_ids.tobytes() and sequence.mask.tobytes() == sample.loss_mask.tobytes()
