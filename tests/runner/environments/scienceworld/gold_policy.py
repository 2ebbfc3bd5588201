"""Episodes of a gold player through the real turn loop and dispatcher: what training would see of them, without a model."""

import asyncio
from collections.abc import Sequence

import numpy as np

from runner.contract.bank import Task
from runner.environments.scienceworld.environment import ScienceWorldEnvironment
from runner.environments.scienceworld.pool import Pool
from runner.environments.scienceworld.prompts import reply
from runner.policies.base import Purpose, SamplingParams, token_seed
from runner.policies.scripted import ScriptedPolicy
from runner.rollouts.dispatcher import Dispatcher, Landed
from runner.rollouts.episodes import EpisodeOrder, Job
from runner.rollouts.groups import episode_id
from runner.rollouts.turns import TurnLoop
from tests.runner.tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
LONGEST_PROMPT = 60_000
SAMPLING = SamplingParams(max_new_tokens=2000)


def orders_of(tasks: Sequence[Task]) -> list[EpisodeOrder]:
    """One training episode a task, in groups of their own."""
    return [
        EpisodeOrder(
            episode_id("gold", Purpose.TRAIN, "1", group, 0, 0), task.key, 0, 1, group, 0, Purpose.TRAIN, token_seed(0, 1, group, 0), group
        )
        for group, task in enumerate(tasks)
    ]


class GoldWorkers:
    """The only worker: its policy plays `actions[task key]`. It is the dispatcher's Workers, all in this process."""

    count = 1

    def __init__(self, pool: Pool, tasks: Sequence[Task], actions: dict[str, Sequence[str]]):
        self.orders, self._actions = orders_of(tasks), {}
        for order in self.orders:
            self._actions[order.seed[:-1]] = actions[order.task]
        policy = ScriptedPolicy(self._say, stop_tokens=[TOKENIZER.eos_token_id])
        known = {task.key: task for task in tasks}
        about = {"max_length": LONGEST_PROMPT, "worker": "worker-0", "limit": pool.settings.max_concurrent_episodes}
        self._loop = TurnLoop(policy, TOKENIZER, known, lambda: ScienceWorldEnvironment(pool.settings, pool), **about)

    def _say(self, prompt, seed) -> np.ndarray:
        actions = self._actions[tuple(seed[:-1])]
        text = reply(actions[min(seed[-1], len(actions) - 1)])
        return np.array([*TOKENIZER.encode(text, add_special_tokens=False), TOKENIZER.eos_token_id])

    def call(self, worker: int, method: str, job: Job):
        return self._loop.run(job, 0)

    def result(self, worker: int, reference):
        return asyncio.run(reference)


def play(pool: Pool, tasks: Sequence[Task], actions: dict[str, Sequence[str]]) -> Landed:
    """Every episode, the failed ones replaced once, as a run's dispatcher does it."""
    workers = GoldWorkers(pool, tasks, actions)
    dispatcher = Dispatcher(workers, "gold")
    return dispatcher.land(dispatcher.send(workers.orders, SAMPLING, "1"))
