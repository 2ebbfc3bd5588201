"""Who acts in a container."""

import time
from dataclasses import dataclass, field
from typing import Protocol

from runner.contract.termination import Termination
from runner.sandbox.base import Container
from runner.sandbox.task import SandboxTask


@dataclass(frozen=True)
class Budget:
    """How long an agent may act."""

    seconds: float
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.started + self.seconds - time.monotonic())


class Agent(Protocol):
    """Acts from outside: only commands and files cross into the container."""

    name: str

    async def setup(self, container: Container, task: SandboxTask) -> None:
        """Prepare to act. Raises SandboxFailure(AGENT_SETUP_FAILED) saying what is missing."""

    async def run(self, container: Container, task: SandboxTask, budget: Budget) -> Termination:
        """Act until done; returns why it ended. Cancelled when the budget is spent: what was delivered by then is graded."""
