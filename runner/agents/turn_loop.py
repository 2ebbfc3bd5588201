"""The turn loop of a served model: text in, text out, for evaluation. Training acts token by token (runner.rollouts.turns).

An overflow is final unless the agent can shorten its history, and final too when the shortened one is rejected in the same words: the
same prompt is never sent twice. Other failures of the server are tried three times.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from runner.agents.base import TurnAgent
from runner.agents.chat import ChatFailed, ContextOverflow, Reply
from runner.contract.taxonomy import ABORTED
from runner.contract.termination import Termination
from runner.environments.base import Message, Step
from runner.sandbox.agent import Budget
from runner.sandbox.base import Container
from runner.sandbox.task import SandboxTask

TRIES = 3
# A cautious guess where no tokenizer is at hand: English and code have more bytes a token.
BYTES_PER_TOKEN = 3


class Model(Protocol):
    async def complete(self, messages: Sequence[Message]) -> Reply:
        """Raises ContextOverflow, ChatFailed."""


@dataclass
class Usage:
    """Calls and tokens over the episode; prompt tokens count again in every turn."""

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, reply: Reply) -> None:
        self.calls += 1
        self.prompt_tokens += reply.prompt_tokens or 0
        self.completion_tokens += reply.completion_tokens or 0


@dataclass
class ModelAgent:
    """A `TurnAgent` whose replies a served model writes: an `Agent` of the sandbox.

    `window` is how many tokens a prompt may have, None when unknown. `on_turn` hears of every turn; `replies` and `usage` tell of it
    afterwards, `error` says why the model could not go on.
    """

    agent: TurnAgent
    model: Model
    instruction: str
    seed: int = 0
    window: int | None = None
    on_turn: Callable[[Reply, Step], None] = lambda reply, step: None
    replies: list[Reply] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    error: str = ""
    _rejected: set[str] = field(default_factory=set)
    _counted: int | None = None

    @property
    def name(self) -> str:
        return self.agent.name

    @property
    def version(self) -> str:
        return self.agent.version

    async def setup(self, container: Container, task: SandboxTask) -> None:
        await self.agent.setup(container, task)

    async def run(self, container: Container, task: SandboxTask, budget: Budget) -> Termination:
        """Act until the agent is done or the model cannot go on. Whatever ends it, what was done is delivered."""
        try:
            self.messages = list(await self.agent.begin(self.instruction, self.seed))
            return await self._converse()
        finally:
            await self.agent.finish()

    async def _converse(self) -> Termination:
        while True:
            try:
                reply = await self._complete(self.messages)
            except ContextOverflow as overflow:
                self.error = str(overflow)
                if not await self._shorten():
                    return Termination.MAX_RESPONSE_LENGTH_EXCEEDED
                continue
            except ChatFailed as failed:
                self.error = str(failed)
                return Termination.CANCELLED if ABORTED in self.error.lower() else Termination.POLICY_ERROR
            self.error = ""
            take = self.agent.cut if reply.finish_reason == "length" else self.agent.take
            step = await take(reply.text)
            self.replies.append(reply)
            self._counted = reply.prompt_tokens
            self.on_turn(reply, step)
            self.messages.append({"role": "assistant", "content": reply.text})
            if step.done:
                return step.termination or Termination.FINISHED
            self.messages += step.observation.messages

    async def _complete(self, messages: Sequence[Message]) -> Reply:
        key = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
        if key in self._rejected:
            raise ContextOverflow("the same prompt was rejected before; it is not sent again")
        if self.window and self._estimate(messages) > self.window:
            raise ContextOverflow(f"the prompt has about {self._estimate(messages)} tokens, {self.window} are offered")
        for last in (*[False] * (TRIES - 1), True):
            try:
                reply = await self.model.complete(messages)
            except ContextOverflow:
                self._rejected.add(key)
                raise
            except ChatFailed as failed:
                if last or ABORTED in str(failed).lower():
                    raise
                continue
            self.usage.add(reply)
            return reply
        raise AssertionError("unreachable")

    def _estimate(self, messages: Sequence[Message]) -> int:
        """What the server counted last time, and a guess for what came since."""
        fresh = messages[-2:] if self._counted else messages
        return (self._counted or 0) + sum(len(message["content"].encode()) for message in fresh) // BYTES_PER_TOKEN

    async def _shorten(self) -> bool:
        async def ask(messages: Sequence[Message]) -> str | None:
            try:
                return (await self._complete(messages)).text
            except (ContextOverflow, ChatFailed):
                return None

        shorter = await self.agent.condense(ask, self.messages)
        if shorter is None or shorter == self.messages:
            return False
        self.messages, self._counted = shorter, None
        return True
