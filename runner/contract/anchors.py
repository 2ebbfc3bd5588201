"""The anchor gate: two agents that need no model tell whether a bank's verifiers can be believed.

The oracle applies the task's own solution and must be worth (nearly) everything; nop does nothing and must be worth nothing. A bank whose
anchors are not proven tells nothing about a model, so neither training nor a model's evaluation may use it without a stated reason.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Iterable, Literal, Mapping

from pydantic import Field

from runner.contract.canonical import Document

ORACLE_LEAST = 0.99
FLOOR_TOLERANCE = 1e-6
AnchorAgent = Literal["oracle", "nop"]
ANCHOR_AGENTS: tuple[AnchorAgent, ...] = ("oracle", "nop")


class AnchorState(StrEnum):
    """Of a bank version. `proving` while its anchors run; `broken` when one of them came out wrong."""

    UNPROVEN = "unproven"
    PROVING = "proving"
    PROVEN = "proven"
    BROKEN = "broken"


class AnchorResult(Document):
    """What one anchor agent earned on one task. `score` and `raw_reward` are None when nothing was graded, and `reason` then says why.

    `floor` is the one that the verifier reported, `timings` are seconds by phase, `task_digest` names the files that were run.
    """

    score: float | None = None
    raw_reward: float | None = None
    floor: float | None = None
    reason: str = Field("", max_length=2000)
    node: str = Field("", max_length=120)
    node_class: str = Field("", max_length=60)
    backend: str = Field("", max_length=20)
    task_digest: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    timings: dict[str, float] = {}

    @property
    def is_graded(self) -> bool:
        return self.score is not None


def problems(agent: AnchorAgent, result: AnchorResult, expected_floor: float | None) -> list[str]:
    """Why this result breaks the gate; empty when it passes. An expected floor of None is not compared."""
    found = score_problems(agent, result)
    if result.is_graded and is_floor_wrong(result.floor, expected_floor):
        found.append(f"the verifier reports a floor of {result.floor:g}, the bank says {expected_floor:g}")
    return found


def is_floor_wrong(reported: float | None, expected: float | None) -> bool:
    """Whether the verifier's floor is another than the bank's; one that is not known is not compared."""
    return None not in (reported, expected) and abs(reported - expected) > FLOOR_TOLERANCE


def score_problems(agent: AnchorAgent, result: AnchorResult) -> list[str]:
    """What is wrong with the score alone."""
    if result.score is None:
        return [f"{agent} was not graded: {result.reason or 'no reason was given'}"]
    found = []
    if agent == "oracle" and result.score < ORACLE_LEAST:
        found.append(f"oracle scored {result.score:g}, at least {ORACLE_LEAST} is needed: the solution or the verifier is wrong")
    if agent == "nop" and (result.score or result.raw_reward):
        raw = "" if result.raw_reward is None else f" (raw reward {result.raw_reward:g})"
        found.append(f"nop scored {result.score:g}{raw}, 0 is needed: the verifier pays for nothing")
    return found


@dataclass(frozen=True)
class AnchorSummary:
    """The gate over the tasks that count. `missing` are (task, agent) pairs without a result, `broken` maps tasks to their problems."""

    state: AnchorState
    tasks: int
    missing: list[tuple[str, str]] = field(default_factory=list)
    broken: dict[str, list[str]] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The state in words."""
        done = 2 * self.tasks - len(self.missing)
        if self.tasks == 0:
            return "no task can run"
        if self.broken:
            return f"{len(self.broken)} of {self.tasks} tasks are broken, {done} of {2 * self.tasks} results are in"
        if self.missing:
            return f"{done} of {2 * self.tasks} anchor results are in"
        return f"oracle and nop came out right on all {self.tasks} tasks"


def summarise(tasks: Iterable[str], results: Mapping[tuple[str, str], list[str]], is_running: bool = False) -> AnchorSummary:
    """Fold the newest result of each (task, agent), given as its problems, over the tasks that are neither blocked nor quarantined."""
    names = sorted(tasks)
    pairs = [(name, agent) for name in names for agent in ANCHOR_AGENTS]
    missing = [pair for pair in pairs if pair not in results]
    broken: dict[str, list[str]] = {}
    for pair in pairs:
        if results.get(pair):
            broken.setdefault(pair[0], []).extend(results[pair])
    if is_running and missing:
        state = AnchorState.PROVING
    elif broken:
        state = AnchorState.BROKEN
    else:
        state = AnchorState.PROVEN if names and not missing else AnchorState.UNPROVEN
    return AnchorSummary(state, len(names), missing, broken)
