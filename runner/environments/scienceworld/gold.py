"""The oracle's paths: who may have them, where they are kept, and how they are played again.

Gold of an evaluation split never becomes training data or the beginning of a trained episode. Which split a variation is in, the bank
version in use says, not the simulator. For a baseline anyone may read it; such a path yields no training rows.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from runner.contract.bank import Task
from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.contract.scienceworld import TRAINING_SPLIT, VERSION
from runner.contract.termination import Termination
from runner.environments.base import EnvironmentFailure, Message, Observation, Step
from runner.environments.canonical_text import canonical
from runner.environments.scienceworld.environment import SOLVED, ScienceWorldEnvironment, read_payload
from runner.environments.scienceworld.pool import Pool
from runner.environments.scienceworld.prompts import reply

Purpose = Literal["training", "prefix", "baseline"]


class GoldRefused(PermissionError):
    """The path may not be had for that purpose."""


@dataclass(frozen=True)
class GoldPath:
    """The oracle's actions for one variation, as made once: another generation may give another list, and it may run on after success."""

    task: str
    split: str
    purpose: Purpose
    actions: tuple[str, ...]

    def for_training(self) -> tuple[str, ...]:
        """The actions as training data. Raises GoldRefused for a path that was read as a baseline."""
        if self.purpose == "baseline":
            raise GoldRefused(
                f"{self.task}: this path was read as a baseline, which yields no training rows; ask for it with purpose training"
            )
        return self.actions


class GoldService:
    """Paths for the tasks of one bank version, kept under `cache` by version, task, variation and simplification.

    A simulator that once made gold makes it again at every reset, so they have one of their own, which `close` ends.
    """

    def __init__(self, tasks: Iterable[Task], settings: Settings, cache: Path, folder: Path | None = None):
        self.settings, self.cache = settings, cache
        self.generated = 0
        self._pool = Pool(settings, folder, size=1)
        self._splits: dict[tuple[str, int], set[str]] = {}
        for task in tasks:
            payload = read_payload(task)
            self._splits.setdefault((payload.task, payload.variation), set()).add(task.split)

    def check(self, task: Task, purpose: Purpose) -> None:
        """Raises GoldRefused unless gold of this task may serve that purpose."""
        payload = read_payload(task)
        splits = self._splits.get((payload.task, payload.variation))
        if splits is None:
            raise GoldRefused(f"{task.key} (variation {payload.variation} of {payload.task}) is not in the bank version in use")
        if purpose == "baseline":
            return
        if held := sorted(splits - {TRAINING_SPLIT}):
            told = f"{task.key} is in split {held[0]!r} of the bank version in use, which is for evaluation"
            raise GoldRefused(f"{told}: its gold cannot serve as {purpose} data; choose tasks of split {TRAINING_SPLIT!r}")

    async def path(self, task: Task, purpose: Purpose) -> GoldPath:
        """From the cache, else made now (seconds; up to half a minute for genetics). Raises GoldRefused, EnvironmentFailure."""
        self.check(task, purpose)
        kept = self._kept(task)
        actions = self._read(kept)
        if actions is None:
            actions = await self._generate(task)
            _write(kept, {"version": VERSION, "actions": actions})
        return GoldPath(task.key, task.split, purpose, tuple(actions))

    def _kept(self, task: Task) -> Path:
        payload, simplification = read_payload(task), self.settings.simplification or "none"
        return self.cache / "scienceworld-gold" / VERSION / simplification.replace(",", "+") / payload.task / f"{payload.variation}.json"

    @staticmethod
    def _read(kept: Path) -> list[str] | None:
        try:
            document = json.loads(kept.read_text())
            return document["actions"] if document["digest"] == _digest(document["actions"]) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    async def _generate(self, task: Task) -> list[str]:
        payload, settings = read_payload(task), self.settings
        async with self._pool.holding() as simulator:
            arguments = {"task": payload.task, "variation": payload.variation, "simplification": settings.simplification}
            actions = await simulator.call("gold", settings.gold_timeout_sec, **arguments)
        if not actions or actions[0].startswith("ERROR"):
            raise EnvironmentFailure(Termination.ENV_BAD_TASK, f"{task.key} has no gold path: {' '.join(actions)[:200]}")
        self.generated += 1
        return actions

    def close(self) -> None:
        """End the simulator."""
        self._pool.close()


def _digest(actions: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(actions)).encode()).hexdigest()


def _write(path: Path, document: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(document | {"digest": _digest(document["actions"])}))
    partial.replace(path)


# ---------------------------------------------------------------- playing it again
@dataclass(frozen=True)
class Recorded:
    """One step of an earlier replay: what was done, what came back, the raw score then."""

    action: str
    observation: str
    score: int


@dataclass(frozen=True)
class ReplayedTurn:
    """`prompt` is what the student would have been shown before it took `action`."""

    prompt: Sequence[Message]
    action: str
    step: Step


@dataclass(frozen=True)
class Replayed:
    """`goal` is the task's text; `drifted_at`: index of the first step that differs from the record in score or canonical text; the simulator is not deterministic."""

    goal: str
    turns: tuple[ReplayedTurn, ...]
    final_score: int
    ended: Termination | None
    drifted_at: int | None = None

    @property
    def reached(self) -> bool:
        """Whether the task was solved."""
        return self.final_score == SOLVED


async def replay(
    environment: ScienceWorldEnvironment, task: Task, actions: Sequence[str], recorded: Sequence[Recorded] = (), strict: bool = False
) -> Replayed:
    """Take `actions` in a fresh episode, until it is done. The episode stays open at the state reached; close it.

    With `strict` it raises EnvironmentFailure (replay_mismatch) where a step differs from `recorded`, as the beginning of an episode must
    not. Raises what the environment raises.
    """
    observation: Observation | None = await environment.start(task, 0)
    turns, drifted, step = [], None, None
    for index, action in enumerate(actions):
        step = await environment.step(reply(action))
        turns.append(ReplayedTurn(observation.prompt or observation.messages, action, step))
        if drifted is None and index < len(recorded) and not _equal(step, recorded[index]):
            drifted = index
            if strict:
                told = (
                    f"step {index + 1} of {len(recorded)}, {action!r}: recorded score {recorded[index].score}, now {step.situation.score}"
                )
                raise EnvironmentFailure(Termination.REPLAY_MISMATCH, f"{task.key}: {told}; the simulator took another course")
        if step.done:
            break
        observation = step.observation
    return Replayed(environment.goal, tuple(turns), environment.course.score, step.termination if step else None, drifted)


def _equal(step: Step, recorded: Recorded) -> bool:
    found = step.situation
    return found.score == recorded.score and canonical(found.observation) == canonical(recorded.observation)
