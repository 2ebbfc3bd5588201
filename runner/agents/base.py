"""An agent that acts turn by turn, whoever writes its replies: a policy token by token, or a served model text by text.

await agent.setup(container, task)          prepare; raises SandboxFailure
messages = await agent.begin(instruction, seed)
step = await agent.take(reply)              until step.done
await agent.finish()                        deliver, and leave nothing running
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runner.environments.base import Message, Step
from runner.sandbox.base import Container
from runner.sandbox.task import SandboxTask

Ask = Callable[[Sequence[Message]], Awaitable[str | None]]
"""A reply of the acting model to a conversation beside the episode's own; None when that does not fit its context."""


@dataclass
class Action:
    """What one reply did, as a trajectory records it. `calls` are (function, arguments); `observation` is what was shown afterwards."""

    reply: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    observation: str = ""
    warnings: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class TurnAgent(Protocol):
    """`actions` grows with every reply that was taken."""

    name: str
    version: str
    actions: list[Action]

    async def setup(self, container: Container, task: SandboxTask) -> None:
        """Prepare to act. Raises SandboxFailure(AGENT_SETUP_FAILED) saying what is missing."""

    async def preview(self, instruction: str, seed: int) -> list[Message]:
        """The first prompt as far as it can be told without a container."""

    async def begin(self, instruction: str, seed: int) -> list[Message]:
        """The first prompt; a function of the task and the seed."""

    async def take(self, reply: str) -> Step:
        """Carry out a reply."""

    async def cut(self, reply: str) -> Step:
        """What follows a reply that was cut at the response cap."""

    async def condense(self, ask: Ask, history: Sequence[Message]) -> list[Message] | None:
        """A shorter history to go on from when the context is full; None ends the episode."""

    async def finish(self) -> None:
        """Deliver what there is, and end every process that was started."""


def user(text: str) -> Message:
    return {"role": "user", "content": text}
