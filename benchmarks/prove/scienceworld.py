"""ScienceWorld in long runs: recorded gold reaches 100, scores are those of the package's wrapper, and random kills invent no reward and leave no process.

./assay prove scienceworld [gold|traces|kills …] [--episodes N] [--kills N] [--every N]

`gold` plays the recorded paths of ../shared/data once, and again where they did not reach 100. `traces` compares score by score with the
wrapper on tasks 1-*, 4-* and 7-*. `kills` runs episodes through the turn loop and the dispatcher while Java or its leaf is killed or
stopped at random. Any broken promise ends the proof with status 1.
"""

import argparse
import asyncio
import gzip
import json
import os
import random
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from benchmarks.record import publish, record
from benchmarks.scienceworld import Wrapper
from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.contract.scienceworld import kind_of
from runner.environments.base import EnvironmentFailure
from runner.environments.scienceworld import registry
from runner.environments.scienceworld.environment import ScienceWorldEnvironment
from runner.environments.scienceworld.gold import Recorded, Replayed, replay
from runner.environments.scienceworld.pool import Pool
from runner.importers.scienceworld import to_task
from tests.runner.environments.scienceworld.gold_policy import play

DATA = Path(__file__).parents[3] / "shared" / "data" / "scienceworld_gold.jsonl.gz"
SECTIONS = ("gold", "traces", "kills")
AT_ONCE, FIRST_TRY, WITH_RETRY = 2, 0.97, 0.99
STABLE = ("1-", "4-", "7-")
SHORT = ("4-2", "7-1", "7-2", "7-3")
PATIENCE = {"boot_timeout_sec": 300.0, "load_timeout_sec": 180.0, "step_timeout_sec": 120.0}
# Java of a stopped process must be ended soon enough for the proof to go on.
STEP_SECONDS = 20.0
MOST_GROWTH = 0.1


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    with gzip.open(DATA) as lines:
        rows = [json.loads(line) for line in lines][:: options.every]
    found, broken = {}, []
    for section in options.sections:
        found[section], wrong = {"gold": prove_gold, "traces": prove_traces, "kills": prove_kills}[section](rows, options)
        broken += [f"{section}: {told}" for told in wrong]
        print(section, json.dumps(found[section]), flush=True)
    share = found.get("gold", {}).get("first_try")
    publish(record("scienceworld_proof", share, None, "share of gold at 100, first try", vars(options), {**found, "broken": broken}))
    if broken:
        sys.exit("\n".join(broken))


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="assay prove scienceworld", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", default=list(SECTIONS), metavar="SECTION", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--episodes", type=int, default=500, help="of the kills")
    parser.add_argument("--kills", type=float, default=0.3, help="chance a second that a busy simulator is killed or stopped")
    parser.add_argument("--every", type=int, default=1, help="play only every n-th recorded path")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.sections if name not in SECTIONS]:
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(SECTIONS)}")
    return options


def task_of(row: dict):
    return to_task(kind_of(row["task_id"]), row["variation"], "train", [])


# ---------------------------------------------------------------- gold
def prove_gold(rows: Sequence[dict], options: argparse.Namespace) -> tuple[dict, list[str]]:
    """Shares of paths at 100, at the first try and with one more; a failure of the simulator counts as a try that did not reach it."""
    tries = asyncio.run(_play_all(rows))
    first, second = (sum(reached[index] for reached, _ in tries) / len(tries) for index in (0, 1))
    lost = [f"{row['task_id']}/{row['variation']}" for row, (reached, _) in zip(rows, tries, strict=True) if not reached[1]]
    found = {
        "episodes": len(rows),
        "first_try": round(first, 4),
        "with_retry": round(second, 4),
        "drifted": sum(drift for _, drift in tries),
        "lost": lost,
    }
    wrong = [
        f"{share:.3f} {name}, {least} promised"
        for name, share, least in (("at once", first, FIRST_TRY), ("with a retry", second, WITH_RETRY))
        if share < least
    ]
    return found, wrong


async def _play_all(rows: Sequence[dict]) -> list[tuple[tuple[bool, bool], bool]]:
    with tempfile.TemporaryDirectory(prefix="assay-proof-") as place:
        pool = Pool(Settings(max_actions=10_000, hints="none", **PATIENCE), Path(place), size=AT_ONCE)
        try:
            return await asyncio.gather(*(_twice(pool, row) for row in rows))
        finally:
            pool.close()


async def _twice(pool: Pool, row: dict) -> tuple[tuple[bool, bool], bool]:
    """((at 100 at once, at 100 in two tries), whether the first try differed from the record)."""
    first = await _once(pool, row)
    drifted = first is None or first.drifted_at is not None
    if first and first.reached:
        return (True, True), drifted
    second = await _once(pool, row)
    return (False, bool(second and second.reached)), drifted


async def _once(pool: Pool, row: dict) -> Replayed | None:
    environment = ScienceWorldEnvironment(pool.settings, pool)
    recorded = [Recorded(step["a"], step["obs"], step["score"]) for step in row["steps"]]
    try:
        return await replay(environment, task_of(row), row["gold_actions"], recorded)
    except EnvironmentFailure as failure:
        print(f"{row['task_id']}/{row['variation']}: {failure}", flush=True)
        return None
    finally:
        await environment.close()


# ---------------------------------------------------------------- traces
def prove_traces(rows: Sequence[dict], options: argparse.Namespace) -> tuple[dict, list[str]]:
    """Raw scores after each action, ours beside the wrapper's; a difference is played once more, since neither repeats itself always."""
    chosen = [row for row in rows if row["task_id"].startswith(STABLE)]
    wrapper, differing = Wrapper(), []
    try:
        for row in chosen:
            if not any(asyncio.run(_trace(row)) == _wrapped(wrapper, row) for _ in range(2)):
                differing.append(f"{row['task_id']}/{row['variation']}")
    finally:
        wrapper.close()
    return {"episodes": len(chosen), "differing": differing}, [f"another score trace than the wrapper's: {key}" for key in differing]


async def _trace(row: dict) -> list[int]:
    with tempfile.TemporaryDirectory(prefix="assay-proof-") as place:
        pool = Pool(Settings(max_actions=10_000, hints="none", **PATIENCE), Path(place), size=1)
        try:
            found = await _once(pool, row)
            return [turn.step.situation.score for turn in found.turns] if found else []
        finally:
            pool.close()


def _wrapped(wrapper: Wrapper, row: dict) -> list[int]:
    environment, scores = wrapper.environment, []
    environment.load(row["task"], row["variation"], row["simplification"])
    environment.reset()
    for action in row["gold_actions"]:
        _, _, done, info = environment.step(action)
        scores.append(info["score"])
        if done:
            break
    return scores


# ---------------------------------------------------------------- kills
def prove_kills(rows: Sequence[dict], options: argparse.Namespace) -> tuple[dict, list[str]]:
    """Through turn loop and dispatcher: a failed episode has a reason and no reward; nothing runs afterwards; memory stays."""
    paths = {task_of(row).key: row for row in rows if row["task_id"] in SHORT}
    settings = Settings(max_actions=100, hints="none", max_concurrent_episodes=AT_ONCE, **PATIENCE | {"step_timeout_sec": STEP_SECONDS})
    with tempfile.TemporaryDirectory(prefix="assay-proof-") as place:
        pool, outcomes, resident = Pool(settings, Path(place), size=AT_ONCE), [], []
        killer = Killer(pool, options.kills)
        tasks, actions = [task_of(row) for row in paths.values()], {key: row["gold_actions"] for key, row in paths.items()}
        while len(outcomes) < options.episodes:
            outcomes += play(pool, tasks, actions).outcomes
            resident.append(psutil.Process().memory_info().rss)
        killer.end()
        pool.close()
        left = registry.sweep(Path(place)) + len(list(Path(place).glob("*.json")))
    return _judge(outcomes, resident, killer, left)


def _judge(outcomes, resident: list[int], killer: "Killer", left: int) -> tuple[dict, list[str]]:
    failed = [outcome for outcome in outcomes if outcome.error]
    invented = [outcome for outcome in failed if outcome.sample.reward is not None]
    unexplained = [outcome for outcome in failed if not outcome.termination.startswith("env_")]
    half = resident[len(resident) // 2 :] or resident
    growth = half[-1] / half[0] - 1
    found = {
        "episodes": len(outcomes),
        "ends": Counter(str(outcome.termination) for outcome in outcomes),
        "hurt": killer.hurt,
        "rewards_invented": len(invented),
        "orphans": left,
        "memory_mib": [round(value / 2**20) for value in (resident[0], half[0], half[-1])],
    }
    promises = {
        "a failed episode has a reward": invented,
        "an episode failed for another reason than its simulator": unexplained,
        "processes were left": left,
        f"memory grew by {growth:.0%}": growth > MOST_GROWTH,
        "nothing was ever hurt": not sum(killer.hurt.values()),
    }
    return found, [told for told, is_broken in promises.items() if is_broken]


class Killer(threading.Thread):
    """Kills or stops a busy simulator's Java or leaf, at random moments. Not when it boots: that is another test's."""

    def __init__(self, pool: Pool, chance: float):
        super().__init__(daemon=True)
        self.pool, self.chance, self.hurt = pool, chance, Counter()
        self._random, self._over = random.Random(7), threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.2):
            busy = [simulator for simulator in list(self.pool.simulators) if not simulator.broken]
            if busy and self._random.random() < self.chance * 0.2:
                self._hurt(self._random.choice(busy))

    def _hurt(self, simulator) -> None:
        # A stopped process costs the whole limit of a step, so that most are killed.
        how = self._random.choices([signal.SIGKILL, signal.SIGSTOP], [0.8, 0.2])[0]
        which, pid = self._random.choice([("java", int(simulator.java[0])), ("leaf", simulator.leaf.pid)])
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            return
        self.hurt[f"{how.name} {which}"] += 1

    def end(self) -> None:
        self._over.set()
        self.join()
