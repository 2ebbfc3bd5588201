"""Ten kinds of death, what each must leave true, and the moments of a run at which they come."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from controlplane.services import processes
from controlplane.services.processes import Process
from tests.chaos.house import (
    OPEN,
    PATIENCE,
    TRUE_WITHIN_S,
    ChaosHouse,
    held_slots,
    kill,
    missing_and_doubled,
    until,
    visible_steps,
    wrong_resumes,
)

SFT_STEPS = 40
RESUMED_WITHIN_S = 240.0
DOCUMENT = {
    "name": "Chaos",
    "model": {"source": {"type": "builtin", "name": "assay-tiny"}, "max_length": 64},
    "environment": {"type": "quiz"},
    "sampling": {"max_new_tokens": 2},
    "stages": [
        {"type": "sft", "steps": SFT_STEPS, "batch_size": 16},
        # Ended by a stop, never by its own steps: a machine of any speed gets through the story.
        {"type": "grpo", "steps": 100_000, "batch_size": 64, "group_size": 8},
    ],
    "evaluation": {"type": "held_out", "limit": 64},
    "checkpoints": {"every_steps": 5, "keep_best": False},
    "resources": {"rollout_workers": 1, "learner_threads": 1},
    "max_attempts": 40,
}


@dataclass(frozen=True)
class Kind:
    """A process to kill: `find` gives it, `back` says whether its successor does its work.

    `fatal` says whether the attempt ends by its death; None leaves it to the moment.
    """

    name: str
    find: Callable[[ChaosHouse], Process | None]
    back: Callable[[ChaosHouse, float], bool]
    fatal: bool | None = False


def service(name: str, works: Callable[[ChaosHouse, float], bool]) -> Kind:
    return Kind(name, lambda house: house.service(name), lambda house, moment: bool(house.service(name)) and works(house, moment))


def ticks(house: ChaosHouse, moment: float) -> bool:
    return house.ticked_since(moment)


def answers(house: ChaosHouse, _: float) -> bool:
    return house.web_answers()


def no_more(house: ChaosHouse, _: float) -> bool:
    """The run's own state tells the rest."""
    return True


def actor(name: str, title: str, fatal: bool) -> Kind:
    return Kind(name, lambda house: house.actor(title), no_more, fatal)


KINDS = {
    kind.name: kind
    for kind in (
        service("web", answers),
        service("worker", ticks),
        service("bulk", no_more),
        service("beat", ticks),
        service("postgres", answers),
        service("broker", ticks),
        actor("rollout worker", "WorkerActor", fatal=False),
        actor("learner", "LearnerActor", fatal=True),
        Kind("driver", lambda house: next(iter(house.drivers()), None), no_more, fatal=True),
        Kind("ray head", lambda house: house.service("ray"), lambda house, _: bool(house.service("ray")), fatal=True),
        Kind("front", lambda house: processes.identify(house.process.pid), answers, fatal=True),
    )
}


# ---------------------------------------------------------------- moments
def is_starting(house: ChaosHouse, run: str) -> bool:
    return house.attempts(run)[-1:] != [] and house.attempts(run)[-1]["state"] in ("granted", "starting")


def is_evaluating(house: ChaosHouse, run: str) -> bool:
    """Between the beginning of its work and its first step an attempt scores the untrained model."""
    attempts = house.attempts(run)
    return bool(attempts) and attempts[-1]["state"] == "running" and attempts[-1]["number"] == 1 and house.step(run) == 0


def is_writing_a_checkpoint(house: ChaosHouse, run: str) -> bool:
    return next(house.run_folder(run).glob("checkpoints/attempt_*/step_*.tmp-*"), None) is not None


POINTS: dict[str, Callable[[ChaosHouse, str], bool]] = {
    "starting": is_starting,
    "evaluating": is_evaluating,
    "sft": lambda house, run: 1 <= house.step(run) < SFT_STEPS,
    "checkpoint": is_writing_a_checkpoint,
    "grpo": lambda house, run: house.step(run) > SFT_STEPS + 1,
    "stopping": lambda house, run: house.step(run) > SFT_STEPS and (house.stop(run), True)[1],
}


def reach(house: ChaosHouse, run: str, point: str, seconds: float = 300.0) -> None:
    until(lambda: POINTS[point](house, run), f"the run reaches {point!r}", seconds, every=0.002 if point == "checkpoint" else 0.1)


# ---------------------------------------------------------------- a death and what follows
@dataclass
class Figures:
    """Seconds after the kill: `true` until the state said what is, `running` until the run went on."""

    kind: str
    true: float = 0.0
    running: float | None = None


def strike(house: ChaosHouse, run: str, kind: Kind, *, stopping: bool = False) -> Figures:
    """Kill one process, and wait until the state is true and the run goes on; raises AssertionError when it takes too long."""
    victim = until(lambda: kind.find(house), f"{kind.name} runs", TRUE_WITHIN_S)
    struck = len(house.attempts(run))
    family = processes.descendants(house.process.pid) if kind.name == "front" else []
    moment = kill(victim, kind.name)
    if kind.name == "front":
        left = processes.wait_until_gone(family, TRUE_WITHIN_S * PATIENCE)
        assert left == [], f"processes outlived the front: {left}"
        house.restart()
    figures = Figures(kind.name)
    until(lambda: not processes.alive(victim) and kind.back(house, moment), f"a successor of {kind.name} works")
    if stopping:
        until(lambda: house.state(run) == "stopped", f"the run is stopped after the death of {kind.name}")
        figures.true = time.time() - moment
        return figures
    until(lambda: outcome(house, run, struck, moment, kind.fatal), f"the state is true after the death of {kind.name}")
    figures.true = time.time() - moment
    if is_lost(house, run, struck):
        until(lambda: goes_on(house, run, struck + 1), "the next attempt runs", RESUMED_WITHIN_S)
    figures.running = time.time() - moment
    return figures


def outcome(house: ChaosHouse, run: str, number: int, moment: float, fatal: bool | None) -> bool:
    """Whether what had to come of the attempt has come."""
    if fatal is False:
        return is_newest(house, run, number) and delivers(house, run, moment)
    return is_lost(house, run, number) or (fatal is None and delivers(house, run, moment))


def is_lost(house: ChaosHouse, run: str, number: int) -> bool:
    row = house.row("SELECT state, reason FROM runs_attempt WHERE run_id = %s AND number = %s", run, number)
    assert row is None or row["state"] in (*OPEN, "lost"), f"attempt {number} is {row['state']}: {row['reason']}"
    return bool(row) and row["state"] == "lost"


def goes_on(house: ChaosHouse, run: str, number: int) -> bool:
    row = house.row("SELECT state FROM runs_attempt WHERE run_id = %s AND number = %s", run, number)
    return bool(row) and row["state"] == "running"


def delivers(house: ChaosHouse, run: str, moment: float) -> bool:
    """Whether something that the newest attempt reported after `moment` arrived."""
    query = (
        """SELECT max(wall) AS newest FROM telemetry_wallsample WHERE series_id IN (SELECT id FROM telemetry_series WHERE run_id = %s)"""
    )
    heard = house.row(query, run)
    return bool(heard and heard["newest"] and heard["newest"] > moment)


def is_newest(house: ChaosHouse, run: str, number: int) -> bool:
    """Whether no other attempt was begun."""
    row = house.row("SELECT max(number) AS newest FROM runs_attempt WHERE run_id = %s", run)
    assert row is None or row["newest"] == number, f"attempt {number} should have gone on"
    return bool(row)


# ---------------------------------------------------------------- at the end
def stop_and_settle(house: ChaosHouse, run: str) -> None:
    """Stop the run, and wait until its slots are free and everything it reported was taken in."""
    if house.state(run) in ("queued", "active"):
        house.stop(run)
    until(lambda: house.state(run) == "stopped", "the run stops", 180.0)
    until(lambda: not held_slots(house, run), "its slots are free, or quarantined with a reason", 90.0)
    until(lambda: not house.spools(run), "every spool is delivered", 150.0)


def verdict(house: ChaosHouse, run: str) -> list[str]:
    """Everything that is not as it must be after `stop_and_settle`; empty when all is well."""
    missing, doubled = missing_and_doubled(house, run)
    wrong = [f"missing: {item}" for item in missing] + [f"doubled: {item}" for item in doubled] + wrong_resumes(house, run)
    steps = visible_steps(house, run)
    if steps != list(range(1, len(steps) + 1)):
        wrong.append(f"the visible steps have gaps: {sorted(set(range(1, steps[-1])) - set(steps))[:10]}")
    states = [(attempt["number"], attempt["state"]) for attempt in house.attempts(run) if attempt["state"] in OPEN]
    conflicts = [(attempt["number"], attempt["points_conflicting"]) for attempt in house.attempts(run) if attempt["points_conflicting"]]
    return wrong + [f"open after its end: {item}" for item in states] + [f"conflicting points: {item}" for item in conflicts]
