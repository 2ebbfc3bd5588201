"""Filling a node's build cache before a run: `nop` over every task, few at a time, then once more over what failed or was cold.

A node is judged by how long its set-up takes, never by the size of a cache: a task whose set-up takes over 40 s cold costs every episode that.
Every task's verifier runs too, so that a warm pass is also the nop half of the anchor gate.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.contract.termination import Termination
from runner.sandbox.agent import Agent
from runner.sandbox.episode import EpisodeRunner
from runner.sandbox.locks import try_lock
from runner.sandbox.node import Node
from runner.sandbox.reasons import Reason
from runner.sandbox.results import EpisodeResult, Phase
from runner.sandbox.task import SandboxTask

CONCURRENCY = 4
WARM_SECONDS = 40.0
LIST_SECONDS = 25.0


class WarmingRefused(RuntimeError):
    """This node cannot be warmed now; the message says why."""


@dataclass(frozen=True)
class WarmedTask:
    """One task's last episode; seconds. `passes` counts how often it ran. A nop that scores is a broken verifier, not a cold cache."""

    task: str
    digest: str
    env_setup_seconds: float
    verifier_seconds: float
    termination: Termination
    reason: Reason | None
    detail: str
    score: float | None
    passes: int

    @property
    def warm(self) -> bool:
        return self.termination is Termination.FINISHED and self.score is not None and self.env_setup_seconds <= WARM_SECONDS


@dataclass(frozen=True)
class Warmth:
    """What a pass over a node found."""

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
    """Two passes over this node: all tasks, then what was not warm. Writes warmth.json beside the jobs.

    Raises WarmingRefused while another pass runs on this node, or when its engine is not well.
    """
    node = runner.node
    held = try_lock(node.folder / "warming")
    if held is None:
        raise WarmingRefused(f"node {node.name}: another warming runs; wait for it, two at once look like broken tasks")
    try:
        await _require_well(node)
        started = time.monotonic()
        first = await _pass(runner, tasks, nop, concurrency, 1)
        due = [task for task, seen in zip(tasks, first, strict=True) if not seen.warm]
        again = {seen.digest: seen for seen in await _pass(runner, due, nop, concurrency, 2)}
        found = Warmth(node.name, time.monotonic() - started, tuple(again.get(seen.digest, seen) for seen in first))
        _write(runner.jobs / "warmth.json", found)
        return found
    finally:
        held.release()


async def _require_well(node: Node) -> None:
    health = await node.health()
    if health.reason or (health.list_seconds or 0.0) > LIST_SECONDS:
        detail = health.detail or f"listing containers took {health.list_seconds:.0f} s"
        raise WarmingRefused(f"node {node.name}: {health.reason or Reason.DAEMON_WEDGED}: {detail}")


async def _pass(runner: EpisodeRunner, tasks: Sequence[SandboxTask], nop: Agent, concurrency: int, number: int) -> list[WarmedTask]:
    places = asyncio.Semaphore(concurrency)

    async def one(task: SandboxTask) -> WarmedTask:
        async with places:
            result = await runner.run(task, nop, episode=f"warm-{number}-{task.digest[:12]}", attempt="warming")
            return _row(task, result, number)

    return list(await asyncio.gather(*(one(task) for task in tasks)))


def _row(task: SandboxTask, result: EpisodeResult, passes: int) -> WarmedTask:
    return WarmedTask(
        task=task.name,
        digest=task.digest,
        env_setup_seconds=result.seconds(Phase.ENV_SETUP),
        verifier_seconds=result.seconds(Phase.VERIFIER),
        termination=result.termination,
        reason=result.reason,
        detail=result.detail,
        score=result.score,
        passes=passes,
    )


def _write(path: Path, found: Warmth) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**asdict(found), "warm": found.warm}, indent=1))
    part.replace(path)
