"""What the driver orders from a rollout worker, and what comes back."""

from dataclasses import dataclass, field
from typing import Any

from runner.contract.termination import Termination
from runner.policies.base import Purpose, SamplingParams, Seed
from runner.rollouts.types import Sample


@dataclass(frozen=True)
class EpisodeOrder:
    """One episode to run. `seed` decides its tokens, `environment_seed` what its group is shown; `trial` counts replacements."""

    episode: str
    task: str
    stage: int
    step: int
    group: int
    index: int
    purpose: Purpose
    seed: Seed
    environment_seed: int
    trial: int = 0


@dataclass(frozen=True)
class Turn:
    """One message of the transcript. `tokens` is known for what the policy wrote; `facts` is what the environment told beside the text."""

    index: int
    role: str
    author: str
    text: str
    tokens: int | None = None
    reward: float | None = None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """A finished episode. The sample's reward is None unless its termination lets a score be trusted.

    `sampled` and `token_texts` are blobs: the *sampled* token trace, and zstd msgpack of one string per token. `facts` is what else
    the environment tells of itself: seconds by phase, delivered files, the backend, how often the template forked.
    """

    order: EpisodeOrder
    sample: Sample
    turns: list[Turn] = field(default_factory=list)
    reason: str = ""
    checks: dict[str, float] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    grader: str = ""
    graded: bool = False
    error: str = ""
    worker: str = ""
    started: float = 0.0
    finished: float = 0.0
    policy_version_end: int = 0
    sampled: bytes = b""
    token_texts: bytes = b""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def termination(self) -> Termination:
        return self.sample.termination


@dataclass
class WorkerBatch:
    """What one worker made of its orders, in their order, and where its seconds went."""

    outcomes: list[Outcome]
    generate_seconds: float
    grade_seconds: float


@dataclass(frozen=True)
class Job:
    """One call of a worker."""

    orders: tuple[EpisodeOrder, ...]
    sampling: SamplingParams
