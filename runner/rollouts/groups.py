"""From a step's plan to orders, and from orders to workers: pure functions of coordinates."""

import uuid
from dataclasses import replace
from typing import Iterable, Sequence

import numpy as np

from runner.policies.base import Purpose, token_seed
from runner.rollouts.episodes import EpisodeOrder
from runner.rollouts.workflow import EpisodePlan

# Keeps the randomness of what is shown apart from that of what is sampled.
_SHOWN = 7


def environment_seed(run_seed: int, purpose: Purpose, step: int, group: int) -> int:
    """63 bits shared by a group: its members are shown the same thing."""
    words = np.random.SeedSequence([run_seed, _SHOWN, int(purpose), step, group]).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))


def episode_id(attempt: str, purpose: Purpose, occasion: str, group: int, index: int, trial: int) -> str:
    """A name that depends on the attempt and the episode's coordinates alone, so that a repeated report meets the same episode."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"assay:{attempt}/{purpose.name}/{occasion}/{group}/{index}/{trial}"))


def training_orders(plans: Iterable[EpisodePlan], *, attempt: str, stage: int, run_seed: int) -> list[EpisodeOrder]:
    """Orders for the episodes of a training step."""
    return [
        EpisodeOrder(
            episode=episode_id(attempt, Purpose.TRAIN, str(plan.step), plan.group, plan.index, 0),
            task=plan.task,
            stage=stage,
            step=plan.step,
            group=plan.group,
            index=plan.index,
            purpose=Purpose.TRAIN,
            seed=token_seed(run_seed, plan.step, plan.group, plan.index),
            environment_seed=environment_seed(run_seed, Purpose.TRAIN, plan.step, plan.group),
        )
        for plan in plans
    ]


def evaluation_orders(tasks: Sequence[str], *, attempt: str, evaluation: str, stage: int, step: int, run_seed: int) -> list[EpisodeOrder]:
    """Orders for one episode a task. Draws do not depend on the step, so that two evaluations differ by their weights alone."""
    return [
        EpisodeOrder(
            episode=episode_id(attempt, Purpose.EVAL, evaluation, number, 0, 0),
            task=task,
            stage=stage,
            step=step,
            group=number,
            index=0,
            purpose=Purpose.EVAL,
            seed=token_seed(run_seed, 0, number, 0, purpose=Purpose.EVAL),
            environment_seed=environment_seed(run_seed, Purpose.EVAL, 0, number),
        )
        for number, task in enumerate(tasks)
    ]


def replacement(order: EpisodeOrder, attempt: str, occasion: str) -> EpisodeOrder:
    """The same episode once more, under a new name and the same seeds: a lost worker does not change a run's numbers."""
    trial = order.trial + 1
    return replace(order, trial=trial, episode=episode_id(attempt, order.purpose, occasion, order.group, order.index, trial))


def assign(orders: Sequence[EpisodeOrder], workers: int) -> list[list[EpisodeOrder]]:
    """One list a worker: group g goes to worker g mod n, whole, so that its members share their prompt's prefix."""
    shares: list[list[EpisodeOrder]] = [[] for _ in range(workers)]
    for order in orders:
        shares[order.group % workers].append(order)
    return shares
