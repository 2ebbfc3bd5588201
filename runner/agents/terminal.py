"""The terminal agent: keystrokes into tmux, one JSON object a turn (terminal_protocol), screens back, cut to size.

A first task_complete is asked to be confirmed; the second in a row ends the episode. Any other reply clears it.
"""

from collections.abc import Sequence

from runner.agents import summary
from runner.agents.base import Action, Ask, user
from runner.agents.terminal_protocol import CONFIRM, CUT, PROMPT, Parsed, ask_again, parse_reply, truncate, with_warnings
from runner.agents.tmux import SessionEnded, Tmux
from runner.contract.run_config import TerminalAgent as Settings
from runner.contract.termination import Termination
from runner.environments.base import Message, Observation, Step
from runner.sandbox.base import Container
from runner.sandbox.task import SandboxTask

SMALLEST_WINDOW = 1024


def window(max_length: int, margin: int) -> int:
    """Tokens that prompts may use: the model's less a margin, at least 1,024, never more than the model takes."""
    return min(max_length, max(SMALLEST_WINDOW, max_length - margin))


class TerminalAgent:
    """See `TurnAgent`."""

    name, version = "terminal", "1"

    def __init__(self, settings: Settings):
        self.settings = settings
        self.actions: list[Action] = []
        self.summaries = 0
        self._instruction = ""
        self._turns = self._cuts = 0
        self._pending = False
        self._tmux: Tmux | None = None

    async def setup(self, container: Container, task: SandboxTask) -> None:
        self._tmux = Tmux(container)
        await self._tmux.start()

    async def preview(self, instruction: str, seed: int) -> list[Message]:
        return [user(f"{PROMPT}{instruction}")]

    async def begin(self, instruction: str, seed: int) -> list[Message]:
        self._instruction = instruction
        screen = truncate(await self._tmux.look(), self.settings.max_observation_bytes)
        return [user(f"{PROMPT}{instruction}\n\n{screen}")]

    async def take(self, reply: str) -> Step:
        self._turns += 1
        self._cuts = 0
        parsed, action = parse_reply(reply), Action(reply)
        self.actions.append(action)
        action.warnings, action.errors = parsed.warnings, parsed.errors
        confirmed = self._pending and parsed.complete and not parsed.errors
        self._pending = parsed.complete and not parsed.errors
        if parsed.errors:
            return self._next(action, ask_again(parsed))
        try:
            await self._type(parsed, action)
            seen = truncate(await self._tmux.look(), self.settings.max_observation_bytes)
        except SessionEnded as ended:
            action.observation = f"The terminal session ended: {ended}"
            return Step(done=True)
        if confirmed:
            action.observation = seen
            return Step(done=True)
        return self._next(action, with_warnings(parsed.warnings, (CONFIRM if parsed.complete else "") + seen))

    async def _type(self, parsed: Parsed, action: Action) -> None:
        for command in parsed.commands:
            action.calls.append(command.call)
            await self._tmux.type(command.keystrokes, command.seconds)
        if parsed.complete:
            action.calls.append(("mark_task_complete", {}))

    def _next(self, action: Action, text: str) -> Step:
        action.observation = text
        if self._turns >= self.settings.max_turns:
            return Step(done=True, termination=Termination.MAX_TURNS_EXCEEDED)
        return Step(Observation([user(text)]))

    async def cut(self, reply: str) -> Step:
        """Nothing of a cut reply is executed. Too many in a row end the episode: the model does not know how to be short."""
        self._cuts += 1
        self._pending = False
        self.actions.append(Action(reply, observation=CUT, errors=["cut at the response cap"]))
        if self._cuts > self.settings.length_retries:
            return Step(done=True, termination=Termination.MAX_RESPONSE_LENGTH_EXCEEDED)
        return Step(Observation([user(CUT)]))

    async def condense(self, ask: Ask, history: Sequence[Message]) -> list[Message] | None:
        if not self.settings.summarise:
            return None
        self.summaries += 1
        return await summary.condense(ask, history, self._instruction, await self._tmux.screen())

    async def finish(self) -> None:
        if self._tmux:
            await self._tmux.stop()
