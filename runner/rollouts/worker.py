"""A rollout worker: environment, tokenizer and policy in one process. Torch is imported when the policy is built."""

import asyncio
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np

from runner.contract.bank import Task
from runner.contract.run_config import RunConfig
from runner.environments import make_environment
from runner.environments.base import Environment
from runner.models.prompts import completion_ids, prompt_ids
from runner.policies.base import Policy, Weights
from runner.policies.factory import engine_problems, import_engine, make_policy
from runner.rollouts.episodes import Job, WorkerBatch
from runner.rollouts.turns import TurnLoop


class RolloutWorker:
    """Lives as long as the run. `tasks` are those of the bank that the run may use, by key; `site` is where container episodes run.

    `live` tells of their turns as they happen (reporting.live).
    """

    def __init__(self, name: str, config: RunConfig, tasks: Sequence[Task], site: Any = None, live: Any = None):
        self.name, self.config, self.site, self.live = name, config, site, live
        self.tasks = {task.key: task for task in tasks}
        self.tokenizer: Any = None
        self.policy: Policy | None = None

    def warm_up(self) -> None:
        """Import what takes seconds, while the learner prepares the model."""
        import_engine(self.config.engine)

    def engine_problems(self, device: str, sharing: int) -> list[tuple[str, str]]:
        """Why this node cannot generate with the run's engine; see policies.factory."""
        return engine_problems(self.config.engine, device, sharing)

    def load_tokenizer(self, folder: Path) -> None:
        """Enough for measuring prompts."""
        from runner.models.loading import load_tokenizer

        self.tokenizer = load_tokenizer(folder)

    def load_policy(self, folder: Path, device: str = "cpu") -> dict:
        """Build the policy from the model folder; returns its health."""
        import torch

        torch.set_num_threads(self.config.resources.worker_threads)
        self.load_tokenizer(folder)
        self.use(make_policy(self.config.engine, folder, self.config.model, seed=self.config.seed, device=device), self.tokenizer)
        return self.policy.health()

    def use(self, policy: Policy, tokenizer, make: Callable[[], Environment] | None = None) -> None:
        """Act with `policy`."""
        self.policy, self.tokenizer = policy, tokenizer
        make = make or self._environment
        limit = getattr(self.config.environment, "max_concurrent_episodes", None)
        about = {"max_length": self.config.model.max_length, "worker": self.name, "limit": limit}
        if self.live:
            about["on_turn"] = self.live.turn
        self._loop = TurnLoop(policy, tokenizer, self.tasks, make, **about)

    def _environment(self) -> Environment:
        return make_environment(self.config.environment, self.site)

    def prompt_lengths(self, keys: Sequence[str]) -> list[int]:
        """Tokens of each task's first prompt."""
        return asyncio.run(self._prompt_lengths(keys))

    async def _prompt_lengths(self, keys: Sequence[str]) -> list[int]:
        return [len(await self._first_prompt(key)) for key in keys]

    async def _first_prompt(self, key: str) -> list[int]:
        """What the task's episodes begin with; of a container episode, as much as can be told without its container."""
        environment = self._environment()
        try:
            if preview := getattr(environment, "preview", None):
                messages = await preview(self.tasks[key], 0)
            else:
                messages = (await environment.start(self.tasks[key], 0)).messages
            return prompt_ids(self.tokenizer, messages, getattr(environment, "template", None))
        finally:
            await environment.close()

    def site_problems(self, digests: Sequence[str]) -> list[str]:
        """Why container episodes would fail on this worker's node; nothing where none are run."""
        return asyncio.run(self.site.problems(digests)) if self.site else []

    def run_episodes(self, job: Job) -> WorkerBatch:
        """Every ordered episode, in order, whatever happened to it."""
        return asyncio.run(self._run_episodes(job))

    async def _run_episodes(self, job: Job) -> WorkerBatch:
        version = self.policy.health()["policy_version"]
        if self.site is None:
            return await self._loop.run(job, version)
        async with self.site.open() as node:
            with self.live.telling() if self.live else nullcontext():
                if self.live:
                    self.live.health(node.name, await node.health())
                return await self._loop.run(job, version)

    def probe(self, keys: Sequence[str], limit: int) -> list[list[int]]:
        """Fixed token sequences on which sampler and learner are compared: the first tokens of these tasks' prompts."""
        return asyncio.run(self._probe(keys, limit))

    async def _probe(self, keys: Sequence[str], limit: int) -> list[list[int]]:
        return [(await self._first_prompt(key))[:limit] for key in keys]

    def load_weights(self, weights: Weights) -> int:
        """Take over the learner's weights; returns their version."""
        self.policy.load_weights(weights)
        return weights.version

    def receive_weights(self, channel: Any) -> int:
        """Take them over as they come through `channel` (learning.channel); returns their version."""
        version, tensors = channel.receive()
        self.policy.load_tensors(tensors, version)
        return version

    def sleep(self) -> None:
        """Give the engine's memory to the learner until `wake`."""
        self.policy.sleep()

    def wake(self) -> None:
        """Take the memory back; the weights are the last ones pushed."""
        self.policy.wake()

    def score(self, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        return self.policy.score(sequences)

    def forced_choices(self, keys: Sequence[str], without_question: bool = False) -> list[float | None]:
        """1.0 where the keyed answer has the highest log-prob of the offered ones, 0.0 where not, None without a choice to force."""
        environment = self._environment()
        found = {key: environment.forced_choice(self.tasks[key], without_question=without_question) for key in keys}
        offered = {key: choice for key, choice in found.items() if choice is not None}
        ids, offers = partial(completion_ids, self.tokenizer), offered.values()
        prompts = [prompt_ids(self.tokenizer, choice.messages) + ids(choice.prefix) for choice in offers]
        candidates = [[ids(text) for text in choice.candidates] for choice in offers]
        scored = self.policy.choice_logprobs(prompts, candidates) if prompts else []
        right = {key: float(int(np.argmax(values)) == choice.key) for (key, choice), values in zip(offered.items(), scored, strict=True)}
        return [right.get(key) for key in keys]

    def health(self) -> dict:
        return self.policy.health() if self.policy else {}
