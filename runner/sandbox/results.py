"""What an episode in containers came to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from runner.contract.termination import Termination
from runner.sandbox.reasons import Reason


class Phase(StrEnum):
    ADMIT = "admit"
    ENV_SETUP = "env_setup"
    HEALTHCHECK = "healthcheck"
    AGENT_SETUP = "agent_setup"
    AGENT_EXECUTION = "agent_execution"
    COLLECT = "collect"
    VERIFIER = "verifier"
    PARSE_REWARD = "parse_reward"
    REGRADE = "regrade"
    TEARDOWN = "teardown"
    RELEASE = "release"


@dataclass(frozen=True)
class PhaseEvent:
    """A boundary: `at` is Unix time in seconds; `seconds` and `reason` are set when the phase ended."""

    episode: str
    attempt: str
    phase: Phase
    at: float
    seconds: float | None = None
    reason: Reason | None = None

    @property
    def finished(self) -> bool:
        return self.seconds is not None


@dataclass(frozen=True)
class PhaseTime:
    """Unix time in seconds, and how long."""

    phase: Phase
    started_at: float
    seconds: float


@dataclass(frozen=True)
class EpisodeResult:
    """`termination` says how the episode counts, `agent_termination` how the agent ended (None when it never ran).

    `score` is the task's training reward and None when nothing was graded: never 0 for want of one. `reason` names what went wrong first,
    `verifier_reason` what went wrong while grading, also where a regrade mended it.
    """

    episode: str
    attempt: str
    task: str
    node: str
    isolation: str
    verifier_mode: str
    termination: Termination
    agent_termination: Termination | None = None
    reason: Reason | None = None
    detail: str = ""
    verifier_reason: Reason | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    score: float | None = None
    regraded: bool = False
    verifier_output: str = ""
    folder: Path | None = None
    artifacts: Path | None = None
    delivered: tuple[str, ...] = ()
    phases: tuple[PhaseTime, ...] = ()

    @property
    def graded(self) -> bool:
        return self.score is not None

    def seconds(self, phase: Phase) -> float:
        """Time spent in a phase, over all its entries."""
        return sum(time.seconds for time in self.phases if time.phase is phase)
