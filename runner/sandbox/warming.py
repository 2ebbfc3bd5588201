"""Filling a node's build cache before a run: `nop` over every task, few at a time, then once more over what failed or was cold.

A node is judged by how long its set-up takes, never by the size of a cache: a task whose set-up takes over 40 s cold costs every episode that.
Every task's verifier runs too, so that a warm pass is also the nop half of the anchor gate.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from runner.contract.warming import CONCURRENCY, PASSES, WarmedTask
from runner.sandbox.agent import Agent
from runner.sandbox.episode import EpisodeRunner
from runner.sandbox.locks import try_lock
from runner.sandbox.node import Node
from runner.sandbox.reasons import Reason
from runner.sandbox.results import EpisodeResult, Phase
from runner.sandbox.task import SandboxTask

LIST_SECONDS = 25.0

T = TypeVar("T")
Play = Callable[[T, int], Awaitable[WarmedTask]]


class WarmingRefused(RuntimeError):
    """This node cannot be warmed now; the message says why."""


@dataclass(frozen=True)
class Warmth:
    """What the passes over a node found."""

    node: str
    seconds: float
    tasks: tuple[WarmedTask, ...]

    @property
    def warm(self) -> bool:
        return all(task.warm for task in self.tasks)

    @property
    def cold(self) -> tuple[WarmedTask, ...]:
        return tuple(task for task in self.tasks if not task.warm)

    @property
    def slowest_seconds(self) -> float:
        return max((task.env_setup_seconds for task in self.tasks), default=0.0)


async def warm(runner: EpisodeRunner, tasks: Sequence[SandboxTask], nop: Agent, *, concurrency: int = CONCURRENCY) -> Warmth:
    """`warm_node` with episodes of `runner`. Raises WarmingRefused."""

    async def play(task: SandboxTask, number: int) -> WarmedTask:
        result = await runner.run(task, nop, episode=f"warm-{number}-{task.digest[:12]}", attempt="warming")
        return _row(task, result, number)

    return await warm_node(runner.node, runner.jobs, tasks, play, concurrency)


async def warm_node(node: Node, jobs: Path, tasks: Sequence[T], play: Play[T], concurrency: int = CONCURRENCY) -> Warmth:
    """Two passes over this node: all tasks, then what was not warm. `play` runs a task's episode; it is given the number of the pass.

    Writes warmth.json beside the jobs. Raises WarmingRefused while another pass runs on this node, or when its engine is not well.
    """
    held = try_lock(node.folder / "warming")
    if held is None:
        raise WarmingRefused(f"node {node.name}: another warming runs; wait for it, two at once look like broken tasks")
    try:
        await _require_well(node)
        started, due = time.monotonic(), list(range(len(tasks)))
        rows: dict[int, WarmedTask] = {}
        for number in range(1, PASSES + 1):
            rows |= await _pass({place: tasks[place] for place in due}, play, concurrency, number)
            due = [place for place in due if not rows[place].warm]
        found = Warmth(node.name, time.monotonic() - started, tuple(rows[place] for place in range(len(tasks))))
        _write(jobs / "warmth.json", found)
        return found
    finally:
        held.release()


async def _require_well(node: Node) -> None:
    health = await node.health()
    if health.reason or (health.list_seconds or 0.0) > LIST_SECONDS:
        detail = health.detail or f"listing containers took {health.list_seconds:.0f} s"
        raise WarmingRefused(f"node {node.name}: {health.reason or Reason.DAEMON_WEDGED}: {detail}")


async def _pass(tasks: dict[int, T], play: Play[T], concurrency: int, number: int) -> dict[int, WarmedTask]:
    places, found = asyncio.Semaphore(concurrency), {}

    async def one(place: int, task: T) -> None:
        async with places:
            found[place] = await play(task, number)

    async with asyncio.TaskGroup() as group:
        for place, task in tasks.items():
            group.create_task(one(place, task))
    return found


def _row(task: SandboxTask, result: EpisodeResult, passes: int) -> WarmedTask:
    return WarmedTask(
        task=task.name,
        task_digest=task.digest,
        env_setup_seconds=result.seconds(Phase.ENV_SETUP),
        verifier_seconds=result.seconds(Phase.VERIFIER),
        termination=result.termination,
        reason=f"{result.reason}: {result.detail}"[:2000] if result.reason else "",
        score=result.score,
        passes=passes,
    )


def _write(path: Path, found: Warmth) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {
        "node": found.node,
        "seconds": found.seconds,
        "warm": found.warm,
        "tasks": [task.model_dump(mode="json") for task in found.tasks],
    }
    part = path.with_suffix(".part")
    part.write_text(json.dumps(told, indent=1))
    part.replace(path)
