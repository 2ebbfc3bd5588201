"""Steps a second of our ScienceWorld environment beside the package's own wrapper, the same gold played by both in turn.

Ours answers with observation, room, inventory, score and done, and builds the student's prompt; the wrapper also fetches the list of valid
actions at every step, which ours does on demand: measured beside it. Java of the wrapper runs as the package starts it, ours under its cap.
"""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.record import publish, record
from runner.contract.bank import Task
from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.contract.scienceworld import kind_of
from runner.environments.scienceworld.environment import ScienceWorldEnvironment
from runner.environments.scienceworld.gold import GoldService
from runner.environments.scienceworld.java import find_java
from runner.environments.scienceworld.pool import Pool
from runner.environments.scienceworld.prompts import reply
from runner.importers.scienceworld import to_task

KINDS = ("1-1", "2-1", "3-2", "4-1", "4-2", "6-2", "7-1", "7-2")
ROUNDS = 5
PATIENCE = {"boot_timeout_sec": 300.0, "load_timeout_sec": 300.0, "step_timeout_sec": 120.0, "gold_timeout_sec": 300.0}
NO_LIMIT = 10**9
TARGET = 3.0
MOST_RESIDENT_GB = 0.42


def main() -> None:
    publish(asyncio.run(measure()))


async def measure(kinds: Sequence[str] = KINDS, rounds: int = ROUNDS) -> dict:
    """Target: at least three times the wrapper's steps a second; one simulator in at most 0.42 GB."""
    tasks = [to_task(kind_of(kind), 0, "train", []) for kind in kinds]
    settings = Settings(max_actions=10_000, hints="none", **PATIENCE)
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as place:
        paths = await gold(tasks, settings, Path(place))
        lean, listed = Pool(settings, Path(place), size=1), Pool(settings.model_copy(update={"check_listed": True}), Path(place), size=1)
        wrapper = Wrapper()
        try:
            return await side_by_side(tasks, paths, lean, listed, wrapper, rounds)
        finally:
            wrapper.close()
            lean.close()
            listed.close()


async def gold(tasks: Sequence[Task], settings: Settings, cache: Path) -> dict[str, tuple[str, ...]]:
    service = GoldService(tasks, settings, cache, cache)
    try:
        return {task.key: (await service.path(task, "baseline")).actions for task in tasks}
    finally:
        service.close()


class Wrapper:
    """The package's environment."""

    def __init__(self):
        from scienceworld import ScienceWorldEnv

        # The package looks for `java` on the path alone; both sides run the same one.
        os.environ["PATH"] = os.pathsep.join([str(Path(find_java().path).parent), os.environ["PATH"]])
        begin = time.perf_counter()
        self.environment = ScienceWorldEnv("", envStepLimit=NO_LIMIT)
        self.boot_seconds = time.perf_counter() - begin

    def play(self, task: Task, actions: Sequence[str]) -> tuple[float, list[float]]:
        """Seconds of loading, and of each step until done."""
        begin = time.perf_counter()
        self.environment.load(task.payload["task"], task.payload["variation"], "easy")
        self.environment.reset()
        loading, steps = time.perf_counter() - begin, []
        for action in actions:
            begin = time.perf_counter()
            _, _, done, _ = self.environment.step(action)
            steps.append(time.perf_counter() - begin)
            if done:
                break
        return loading, steps

    def close(self) -> None:
        self.environment.close()


async def play(pool: Pool, task: Task, actions: Sequence[str]) -> tuple[float, list[float]]:
    """Seconds of loading, and of each step until done."""
    environment, steps = ScienceWorldEnvironment(pool.settings, pool), []
    begin = time.perf_counter()
    await environment.start(task, 0)
    loading = time.perf_counter() - begin
    for action in actions:
        begin = time.perf_counter()
        step = await environment.step(reply(action))
        steps.append(time.perf_counter() - begin)
        if step.done:
            break
    await environment.close()
    return loading, steps


async def side_by_side(tasks, paths, lean: Pool, listed: Pool, wrapper: Wrapper, rounds: int) -> dict:
    """One round to warm up, then `rounds` in which each plays every task, one after the other."""
    loads, steps, rates = ({"ours": [], "listed": [], "wrapper": []} for _ in range(3))
    for number in range(rounds + 1):
        taken = await one_round(tasks, paths, lean, listed, wrapper)
        for name, episodes in taken.items() if number else ():
            loads[name] += [loading for loading, _ in episodes]
            steps[name] += (these := [seconds for _, found in episodes for seconds in found])
            rates[name].append(len(these) / sum(these))
    (ours,), rates = lean.simulators, {name: statistics.median(found) for name, found in rates.items()}
    also = {
        "steps a second": {name: round(rate, 1) for name, rate in rates.items()},
        "with the valid list, times the wrapper": round(rates["listed"] / rates["wrapper"], 2),
        "step_ms": {name: percentiles(taken) for name, taken in steps.items()},
        "load_ms": {name: percentiles(taken) for name, taken in loads.items()},
        "boot_s": {"ours": round(ours.boot_seconds, 2), "wrapper": round(wrapper.boot_seconds, 2)},
        "memory_gb": memory(ours),
        "java": find_java().version,
    }
    about = {"kinds": [task.level for task in tasks], "rounds": rounds, "steps": len(steps["ours"]), "target": f"at least {TARGET} times"}
    about["memory target"] = f"java resident at most {MOST_RESIDENT_GB} GB"
    return record("scienceworld", round(rates["ours"], 1), round(rates["wrapper"], 1), "steps/s, gold agent", about, also)


async def one_round(tasks, paths, lean: Pool, listed: Pool, wrapper: Wrapper) -> dict[str, list[tuple[float, list[float]]]]:
    """Every task by each of the three, one after the other."""
    taken = {"ours": [], "listed": [], "wrapper": []}
    for task in tasks:
        actions = paths[task.key]
        taken["ours"].append(await play(lean, task, actions))
        taken["wrapper"].append(wrapper.play(task, actions))
        taken["listed"].append(await play(listed, task, actions))
    return taken


def memory(simulator) -> dict[str, float]:
    """GB: Java resident, and in proportional shares the leaf and this process, which stands for a worker's actor."""
    shares = {"leaf_pss": psutil.Process(simulator.leaf.pid), "actor_pss": psutil.Process()}
    found = {"java_rss": simulator.resident, **{name: process.memory_full_info().pss for name, process in shares.items()}}
    return {name: round(size / 1e9, 3) for name, size in found.items()}


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=20)
    return {"p50": round(cuts[9] * 1000, 2), "p95": round(cuts[18] * 1000, 2)}
