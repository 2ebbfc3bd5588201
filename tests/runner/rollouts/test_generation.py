"""Batches of the policy: together in one order, or one by one as episodes ask."""

import asyncio
import threading

import numpy as np
import pytest

from runner.policies.base import Generation, SamplingParams
from runner.rollouts.generation import RollingGenerator, TogetherGenerator

SAMPLING = SamplingParams()


class Recording:
    def __init__(self, fail=False, wait=None):
        self.calls, self.fail, self.wait, self.threads = [], fail, wait, set()

    def generate(self, prompts, sampling, seeds):
        self.calls.append([list(prompt) for prompt in prompts])
        self.threads.add(threading.current_thread())
        if self.wait:
            self.wait.wait(5)
        if self.fail:
            raise RuntimeError("out of memory")
        return [Generation(np.array(prompt, np.int32), np.zeros(len(prompt), np.float32), "stop", 0) for prompt in prompts]


async def test_together_waits_for_all_and_orders_by_place():
    policy = Recording()
    generator = TogetherGenerator(policy, SAMPLING, 3)
    late_first = [asyncio.ensure_future(generator.generate(place, [place], (place,))) for place in (2, 0)]
    await asyncio.sleep(0)
    assert not policy.calls
    answers = await asyncio.gather(generator.generate(1, [1], (1,)), *late_first)
    assert policy.calls == [[[0], [1], [2]]] and [answer.token_ids.tolist() for answer in answers] == [[1], [2], [0]]


async def test_together_does_not_wait_for_one_that_left():
    policy = Recording()
    generator = TogetherGenerator(policy, SAMPLING, 2)
    waiting = asyncio.ensure_future(generator.generate(0, [7], (0,)))
    await asyncio.sleep(0)
    generator.leave()
    assert (await waiting).token_ids.tolist() == [7] and policy.calls == [[[7]]]


async def test_one_by_one_every_row_is_a_call_of_its_own_in_a_thread():
    policy = Recording()
    generator = RollingGenerator(policy, SAMPLING, together=False)
    await asyncio.gather(*(generator.generate(place, [place], (place,)) for place in range(3)))
    assert sorted(policy.calls) == [[[0]], [[1]], [[2]]] and threading.main_thread() not in policy.threads


async def test_rolling_together_serves_at_once_what_waited_while_the_policy_was_busy():
    gate = threading.Event()
    policy = Recording(wait=gate)
    generator = RollingGenerator(policy, SAMPLING, together=True)
    turns = [asyncio.ensure_future(generator.generate(place, [place], (place,))) for place in range(4)]
    while not policy.calls:
        await asyncio.sleep(0.01)
    gate.set()
    await asyncio.gather(*turns)
    assert sorted(sum(policy.calls, [])) == [[0], [1], [2], [3]] and len(policy.calls) <= 2


@pytest.mark.parametrize(
    "make", [lambda policy: TogetherGenerator(policy, SAMPLING, 2), lambda policy: RollingGenerator(policy, SAMPLING, True)]
)
async def test_a_failing_policy_fails_every_turn_it_was_asked_for(make):
    generator = make(Recording(fail=True))
    found = await asyncio.gather(*(generator.generate(place, [place], (place,)) for place in range(2)), return_exceptions=True)
    assert all(isinstance(error, RuntimeError) for error in found) and generator.seconds > 0
