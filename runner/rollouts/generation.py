"""How the turns of many episodes share one policy.

Together: a batch is generated when every episode under way waits for its turn; rows stand in the episodes' order, so that equal
orders give equal bits.
One by one: each turn is generated when its episode asks, in a thread, so that containers go on working meanwhile. On a processor
every row is a call of its own: its bits then do not depend on who else happened to wait. Elsewhere those that wait share a call.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from runner.policies.base import Generation, Policy, SamplingParams, Seed


# Episodes that shared a call come back within moments of each other; the first of them waits for this share of what the call took.
LINGER = 0.1


@dataclass(order=True)
class _Request:
    place: int
    prompt: Sequence[int] = field(compare=False)
    seed: Seed = field(compare=False)
    answer: asyncio.Future = field(compare=False)


class TogetherGenerator:
    """Waits for all `count` episodes; one that ends must `leave`."""

    def __init__(self, policy: Policy, sampling: SamplingParams, count: int):
        self.policy, self.sampling, self.running = policy, sampling, count
        self.seconds = 0.0
        self._waiting: list[_Request] = []

    async def generate(self, place: int, prompt: Sequence[int], seed: Seed) -> Generation:
        """The turn of the episode at `place`. Raises what the policy raised for the whole batch."""
        request = _Request(place, prompt, seed, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._flush_when_complete()
        return await request.answer

    def leave(self) -> None:
        """An episode will ask for nothing more."""
        self.running -= 1
        self._flush_when_complete()

    def _flush_when_complete(self) -> None:
        if not self._waiting or len(self._waiting) < self.running:
            return
        batch, self._waiting = sorted(self._waiting), []
        begin = time.perf_counter()
        try:
            found = self.policy.generate([item.prompt for item in batch], self.sampling, [item.seed for item in batch])
        except Exception as error:
            for item in batch:
                item.answer.set_exception(error)
            return
        finally:
            self.seconds += time.perf_counter() - begin
        for item, generation in zip(batch, found, strict=True):
            item.answer.set_result(generation)


class RollingGenerator:
    """Serves episodes as they come. `together` lets those that wait while the policy is busy share its next call."""

    def __init__(self, policy: Policy, sampling: SamplingParams, together: bool):
        self.policy, self.sampling, self.together = policy, sampling, together
        self.seconds = self._latest = 0.0
        self._waiting: list[_Request] = []
        self._busy = asyncio.Lock()

    async def generate(self, place: int, prompt: Sequence[int], seed: Seed) -> Generation:
        """The turn of the episode at `place`. Raises what the policy raised."""
        request = _Request(place, list(prompt), seed, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        async with self._busy:
            if not request.answer.done():
                await asyncio.sleep(LINGER * self._latest)
                await self._serve(sorted(self._waiting) if self.together else [request])
        return request.answer.result()

    def leave(self) -> None:
        """Nobody waits for anybody here."""

    async def _serve(self, batch: list[_Request]) -> None:
        self._waiting = [item for item in self._waiting if item not in batch]
        begin = time.perf_counter()
        try:
            prompts, seeds = [item.prompt for item in batch], [item.seed for item in batch]
            found = await asyncio.to_thread(self.policy.generate, prompts, self.sampling, seeds)
            answers = list(zip(batch, found, strict=True))
        except Exception as error:
            answers = [(item, error) for item in batch]
        finally:
            took = time.perf_counter() - begin
            self.seconds += took
            # Alone on a processor nobody is waited for.
            self._latest = took if self.together else 0.0
        for item, answer in answers:
            if not item.answer.done():
                (item.answer.set_exception if isinstance(answer, Exception) else item.answer.set_result)(answer)
