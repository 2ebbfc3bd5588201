"""Warming a node before a run: `nop` over a bank's tasks, so that later episodes find their images and build caches there.

A node is judged by how long its set-ups take, never by the size of a cache: a task whose set-up takes longer costs every episode that.
"""

from typing import Annotated

from pydantic import Field

from runner.contract.canonical import Document
from runner.contract.termination import Termination

WARM_SECONDS = 40.0
# Each episode compiles and forks as many processes again: more at once on a node looks like broken tasks.
CONCURRENCY = 4
PASSES = 2


class WarmedTask(Document):
    """A task's last episode on a node; seconds. `passes` counts how often it ran, `reason` is empty unless something went wrong.

    `score` is None when nothing was graded. A nop that scores is a broken verifier, not a cold cache.
    """

    task: str = Field(max_length=200)
    task_digest: str = Field("", pattern=r"^([0-9a-f]{64})?$")
    env_setup_seconds: float = Field(ge=0)
    verifier_seconds: float = Field(ge=0)
    termination: Annotated[Termination, Field(strict=False)]
    reason: str = Field("", max_length=2000)
    score: float | None = None
    passes: int = Field(1, ge=1, le=PASSES)

    @property
    def warm(self) -> bool:
        return is_warm(self.termination, self.score, self.env_setup_seconds)

    @property
    def why_cold(self) -> str:
        """Why later episodes would wait or fail here; empty when they would not."""
        return why_cold(self.termination, self.score, self.env_setup_seconds, self.reason)


def is_warm(termination: str, score: float | None, env_setup_seconds: float) -> bool:
    """Whether the episode came through and its set-up took at most WARM_SECONDS."""
    return termination == Termination.FINISHED and score is not None and env_setup_seconds <= WARM_SECONDS


def why_cold(termination: str, score: float | None, env_setup_seconds: float, reason: str) -> str:
    """What `is_warm` found fault with, in words; empty when nothing."""
    if is_warm(termination, score, env_setup_seconds):
        return ""
    if termination == Termination.FINISHED and score is not None:
        return f"set-up took {env_setup_seconds:.1f} s, over {WARM_SECONDS:.0f} s"
    return reason or f"ended as {termination}"
