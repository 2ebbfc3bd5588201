"""The bank of ScienceWorld's variations, read from the simulator itself, with the health of its gold and a warm start made of it.

Every variation becomes a task in the split that the simulator puts it in. Of each kind of task some training variations are played along
the oracle's path: how long it is, whether it reaches 100, at the first try or the second, and whether a second play takes the same course.
What was shown before each action, and the reply that takes it, become demonstrations.
"""

import asyncio
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.contract.bank import Demonstration, Task
from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.contract.scienceworld import DEV140, KINDS, VERSION, Kind, fixed_dev, kind_of
from runner.environments.base import EnvironmentFailure
from runner.environments.scienceworld.environment import ScienceWorldEnvironment
from runner.environments.scienceworld.gold import GoldService, Recorded, Replayed, replay
from runner.environments.scienceworld.java import find_java
from runner.environments.scienceworld.pool import Pool
from runner.importers.errors import ImportRefused
from runner.importers.gold import GoldEpisode, GoldOptions, GoldTurn, choose, demonstrations
from runner.importers.report import Report

# A replay is about health, not about a cap: genetics and inclined planes take hundreds of actions.
MOST_ACTIONS = 2000
AT_ONCE = 2
# The import of a loaded machine must not fail for a slow start.
PATIENCE = {"boot_timeout_sec": 300.0, "load_timeout_sec": 180.0, "step_timeout_sec": 120.0, "gold_timeout_sec": 300.0}


@dataclass
class Health:
    """What the replays of one kind of task showed; `failures` are of the simulator, and count in no share."""

    actions: list[int] = field(default_factory=list)
    replayed: int = 0
    first_try: int = 0
    solved: int = 0
    repeated: int = 0
    drifted: int = 0
    failures: list[str] = field(default_factory=list)

    def document(self, cap: int) -> dict[str, Any]:
        """`fits`: how many of the solving paths fit in `cap` actions. Numbers of actions are to the first `done`; `drifted` of `repeated`."""
        found = sorted(self.actions)
        lengths = {"shortest": found[0], "median": statistics.median(found), "longest": found[-1]} if found else {}
        counts = {
            "replayed": self.replayed,
            "first_try": self.first_try,
            "solved": self.solved,
            "repeated": self.repeated,
            "drifted": self.drifted,
        }
        return counts | lengths | {"fits": sum(count <= cap for count in found), "failures": self.failures}


@dataclass
class ScienceWorldReport(Report):
    """A report that also tells, per kind of task, its splits and the health of its gold."""

    settings: Settings = field(default_factory=Settings)
    ranges: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    health: dict[str, Health] = field(default_factory=dict)

    def document(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """The common report, and under `scienceworld`: version, simplification, cap, and a row a kind of task."""
        rows = [self._row(kind) for kind in KINDS]
        settings = {"version": VERSION, "simplification": self.settings.simplification, "cap": self.settings.max_actions}
        return super().document(tasks) | {"scienceworld": settings | {"tasks": rows}}

    def _row(self, kind: Kind) -> dict[str, Any]:
        splits = {name: last - first + 1 for name, (first, last) in self.ranges[kind.id].items()}
        row = {"id": kind.id, "name": kind.name, "topic": kind.topic, "title": kind.title, "wiring": kind.is_wiring, "splits": splits}
        return row | {"gold": self.health.get(kind.id, Health()).document(self.settings.max_actions)}


@dataclass(frozen=True)
class Options:
    """`replays` training variations of each kind in `kinds` (ids; empty: all) are played; `hints` is what their prompts list, `think` the
    thought in their replies."""

    simplification: str = "easy"
    cap: int = 100
    replays: int = 1
    kinds: tuple[str, ...] = ()
    hints: str = "full"
    think: str = "template"

    def settings(self) -> Settings:
        """Raises ImportRefused naming what is wrong."""
        try:
            about = {"simplification": self.simplification, "hints": self.hints, "levels": list(self.kinds)}
            return Settings(max_actions=self.cap, **about, **PATIENCE)
        except ValueError as error:
            raise ImportRefused(f"this import cannot be made: {error}") from error


def read_tasks(options: Options, say: Callable[[str], None] = print) -> tuple[list[Task], list[Demonstration], ScienceWorldReport]:
    """Tasks, demonstrations and report. Raises ImportRefused."""
    settings = options.settings()
    with tempfile.TemporaryDirectory(prefix="assay-scienceworld-") as scratch:
        return asyncio.run(_read(settings, options, Path(scratch), say))


async def _read(settings: Settings, options: Options, scratch: Path, say: Callable[[str], None]):
    pool = Pool(settings.model_copy(update={"max_actions": MOST_ACTIONS}), size=AT_ONCE)
    if problems := await pool.problems():
        raise ImportRefused("; ".join(problems))
    report = ScienceWorldReport({"kind": "simulator", "package": f"scienceworld {VERSION}", "java": find_java().version}, settings=settings)
    try:
        report.ranges = await _ranges(pool)
        tasks = _tasks(report.ranges)
        report.read = len(tasks)
        episodes = await Player(pool, tasks, scratch, report.health, say).play_all(options)
    except EnvironmentFailure as failure:
        raise ImportRefused(f"the simulator failed: {failure}") from failure
    finally:
        pool.close()
    pairs, count = demonstrations(episodes, GoldOptions(max_actions=options.cap, think=options.think))
    report.notes = _notes(report) + ([count.sentence()] if episodes else [])
    return tasks, pairs, report


async def _ranges(pool: Pool) -> dict[str, dict[str, list[int]]]:
    """{task id: {split: [first, last]}}, as the simulator says."""
    async with pool.holding() as simulator:
        known = await simulator.call("kinds", pool.settings.load_timeout_sec)
        if missing := [kind.name for kind in KINDS if kind.name not in known]:
            raise ImportRefused(f"this simulator has no task {missing[0]}; install scienceworld {VERSION}")
        return {kind.id: await simulator.call("ranges", pool.settings.load_timeout_sec, task=kind.name) for kind in KINDS}


def _tasks(ranges: dict[str, dict[str, list[int]]]) -> list[Task]:
    first = {kind.id: ranges[kind.id]["dev"][0] for kind in KINDS}
    sizes = {kind.id: ranges[kind.id]["dev"][1] - first[kind.id] + 1 for kind in KINDS}
    fixed = fixed_dev(first, sizes)
    return [
        to_task(kind, variation, split, [DEV140] if variation in fixed[kind.id] else [])
        for kind in KINDS
        for split, (low, high) in ranges[kind.id].items()
        for variation in range(low, high + 1)
    ]


def to_task(kind: Kind, variation: int, split: str, flags: list[str]) -> Task:
    """One variation as a bank's task: its domain is the topic, its level the task's id."""
    payload = {"task_id": kind.id, "task": kind.name, "topic": kind.topic, "title": kind.title, "variation": variation}
    return Task(key=f"{kind.id}/{variation}", split=split, domain=kind.topic, level=kind.id, family=kind.name, payload=payload, flags=flags)


# ---------------------------------------------------------------- gold
class Player:
    """Plays gold, several variations at a time, and counts per kind of task."""

    def __init__(self, pool: Pool, tasks: Sequence[Task], scratch: Path, health: dict[str, Health], say: Callable[[str], None]):
        self.pool, self.tasks, self.health, self.say = pool, tasks, health, say
        self._service = GoldService(tasks, pool.settings, scratch)
        self._left: Counter[str] = Counter()

    async def play_all(self, options: Options) -> list[GoldEpisode]:
        """The episodes that were played to their end."""
        kinds = {kind_of(kind).id for kind in options.kinds}
        chosen = choose([task for task in self.tasks if not kinds or task.level in kinds], options.replays) if options.replays else []
        self._left.update(task.level for task in chosen)
        seen: set[str] = set()
        firsts = [not (task.level in seen or seen.add(task.level)) for task in chosen]
        try:
            found = await asyncio.gather(*map(self._play, chosen, firsts))
        finally:
            self._service.close()
        return [episode for episode in found if episode]

    async def _play(self, task: Task, is_first: bool) -> GoldEpisode | None:
        """Played again where it did not reach 100, and the first of its kind always, to see whether it drifts."""
        health = self.health.setdefault(task.level, Health())
        try:
            actions = (await self._service.path(task, "training")).for_training()
            best = await _play(self.pool, task, actions)
            again = await _play(self.pool, task, actions, best) if is_first or not best.reached else None
        except EnvironmentFailure as failure:
            health.failures.append(f"{task.key}: {failure.termination}: {failure}"[:300])
            best = None
        else:
            _count(health, best, again)
            best = again if again and again.reached and not best.reached else best
        self._left[task.level] -= 1
        if not self._left[task.level]:
            self.say(f"{task.level} {task.family}: {health.solved} of {health.replayed} gold paths reach 100")
        return best and _episode(task, best)


def _episode(task: Task, played: Replayed) -> GoldEpisode:
    turns = [GoldTurn(turn.prompt[-1]["content"], turn.action, turn.step.situation.observation) for turn in played.turns]
    return GoldEpisode(task, played.goal, turns, played.reached)


async def _play(pool: Pool, task: Task, actions: Sequence[str], earlier: Replayed | None = None) -> Replayed:
    environment = ScienceWorldEnvironment(pool.settings, pool)
    recorded = (
        [Recorded(turn.action, turn.step.situation.observation, turn.step.situation.score) for turn in earlier.turns] if earlier else []
    )
    try:
        return await replay(environment, task, actions, recorded)
    finally:
        await environment.close()


def _count(health: Health, first: Replayed, second: Replayed | None) -> None:
    health.replayed += 1
    health.first_try += first.reached
    solved = first if first.reached else second
    if solved and solved.reached:
        health.solved += 1
        health.actions.append(len(solved.turns))
    health.repeated += second is not None
    health.drifted += second is not None and second.drifted_at is not None


def _notes(report: ScienceWorldReport) -> list[str]:
    """What a reader should know at once: kinds whose gold fits the cap nowhere, kinds with a path that did not reach 100."""
    cap, found = report.settings.max_actions, report.health
    lost = [f"{key} (shortest {min(item.actions)})" for key, item in found.items() if item.actions and min(item.actions) > cap]
    unsolved = [key for key, item in found.items() if item.solved < item.replayed]
    notes = [f"{len(lost)} kinds of task need more than {cap} actions even by the oracle: {', '.join(lost)}"] if lost else []
    return notes + ([f"not every gold path reaches 100 in two plays: {', '.join(unsolved)}"] if unsolved else [])
