"""Repair in containers: one episode is an agent's container that the student acts in, and a separate verifier that judges what it left.

start   admits the episode, builds and starts the container, sets the agent up; its first prompt is shown
step    hands the student's reply to the agent
grade   ends the agent, takes what was delivered, verifies it, once more if the verifier failed
close   tears everything down and gives the slot back

The agent acts in a task of its own, so that its wall clock, its phase and a failure of its container are the sandbox's business: what
ends it early ends the episode with the reason that the sandbox gives.
"""

import asyncio
import difflib
import json
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from runner.agents.base import Ask, TurnAgent
from runner.agents.menu import MenuAgent
from runner.agents.terminal import TerminalAgent, window
from runner.agents.terminal_protocol import fetches
from runner.contract.atif import AgentTurn, Trajectory, write_trajectory
from runner.contract.bank import MenuEdit, Task
from runner.contract.repair import RepairPayload
from runner.contract.run_config import HarborEnvironment as Settings
from runner.contract.termination import HANDLING, Termination
from runner.environments import repair_menu
from runner.environments.base import Budgets, EnvironmentFailure, ForcedChoice, Grade, Message, Observation, Step
from runner.environments.site import Site
from runner.environments.verdict import grade_of, seconds_by_phase
from runner.repair.cache import TaskUnavailable
from runner.sandbox.agent import Budget
from runner.sandbox.base import Container
from runner.sandbox.episode import Episode
from runner.sandbox.reasons import SandboxFailure
from runner.sandbox.results import EpisodeResult
from runner.sandbox.task import SandboxTask

BUILD_SECONDS, SETUP_SECONDS = 4 * 3600.0, 24 * 3600.0
DAY_SECONDS = 86_400.0
# Grading failed; before there was anything to grade, that is the task's fault.
_GRADING = (Termination.VERIFIER_ERROR, Termination.VERIFIER_TIMEOUT)


def read_payload(task: Task) -> RepairPayload:
    """Raises ValueError naming what is wrong with the task."""
    try:
        return RepairPayload.model_validate(task.payload)
    except ValidationError as error:
        problem = error.errors()[0]
        raise ValueError(f"task {task.key}: payload.{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from None


def instruction(payload: RepairPayload, settings: Settings) -> str:
    """What the agent is told: the task, and the hint of the run's level where the task has one. A menu shows the task in a line."""
    if settings.agent.type == "menu":
        return repair_menu.instruction(payload, settings.hint_level)
    hint = payload.hints.get(settings.hint_level, "")
    return f"{payload.instruction}\n\n{hint}" if hint else payload.instruction


def make_agent(payload: RepairPayload, settings: Settings, folder: Path | None = None) -> TurnAgent:
    """`folder` is the task's; without it a menu may not offer the repair, which is enough for a preview."""
    if settings.agent.type == "menu":
        return MenuAgent(settings.agent, payload.menu, repairing_edit(payload, folder) if folder else None)
    return TerminalAgent(settings.agent)


def repairing_edit(payload: RepairPayload, folder: Path) -> MenuEdit | None:
    """The edit of the menu that the task's solution makes; None where the solution is more than one edit."""
    try:
        fixes = json.loads((folder / "solution" / "defect_fix.json").read_text())["edits"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    made = [(fix.get("file"), fix.get("new", "").strip()) for fix in fixes]
    return next((edit for edit in payload.menu if len(made) == 1 and (edit.file, edit.new.strip()) == made[0]), None)


def is_drilled(episode: str, rate: float) -> bool:
    """Whether this episode's verifier is made to fail: a function of its name."""
    return int(uuid.uuid5(uuid.NAMESPACE_OID, f"drill:{episode}").hex[:8], 16) / 2**32 < rate


class _Acting:
    """The agent as the sandbox runs it: it waits for replies, carries each out, and finishes when it is told to."""

    def __init__(self, agent: TurnAgent):
        self.agent, self.name = agent, agent.name
        self.replies: asyncio.Queue = asyncio.Queue()

    async def setup(self, container: Container, task: SandboxTask) -> None:
        await self.agent.setup(container, task)

    async def run(self, container: Container, task: SandboxTask, budget: Budget) -> Termination:
        """Until told to finish, or the budget is spent. What was done by then is delivered either way."""
        try:
            while (request := await self.replies.get()) is not None:
                call, arguments, answer = request
                answer.set_result(await call(*arguments))
            return Termination.FINISHED
        finally:
            await self.agent.finish()


class HarborEnvironment:
    """One episode on one containerised task."""

    def __init__(self, settings: Settings, site: Site | None):
        self.settings, self.site = settings, site
        self.name, self.model, self._prompt = str(uuid.uuid4()), "student", ""
        self.template: dict[str, object] = {"enable_thinking": False} if self._without_thinking else {}
        self.budgets = Budgets(SETUP_SECONDS + BUILD_SECONDS, DAY_SECONDS, BUILD_SECONDS + 2 * DAY_SECONDS, 600.0)
        self._payload: RepairPayload | None = None
        self._agent: TurnAgent | None = None
        self._episode: Episode | None = None
        self._acting: _Acting | None = None
        self._act: asyncio.Task[Termination] | None = None
        self._open = AsyncExitStack()
        self._ended: Termination | None = None
        self._result: EpisodeResult | None = None

    @property
    def _without_thinking(self) -> bool:
        return getattr(self.settings.agent, "thinking", "") == "disable_thinking"

    def identify(self, episode: str) -> None:
        """Containers and folders carry the episode's name."""
        self.name = episode

    def prompt_limit(self, max_length: int) -> int:
        """Tokens a prompt may have."""
        return window(max_length, self.settings.agent.context_margin) if self.settings.agent.type == "terminal" else max_length

    async def preview(self, task: Task, seed: int) -> list[Message]:
        """The first prompt without a container: all of it but the screen."""
        try:
            payload = read_payload(task)
        except ValueError as error:
            raise EnvironmentFailure(Termination.ENV_BAD_TASK, str(error)) from error
        agent = make_agent(payload, self.settings)
        return await agent.preview(instruction(payload, self.settings), seed)

    # ------------------------------------------------------------ the episode
    async def start(self, task: Task, seed: int) -> Observation:
        try:
            self._payload = read_payload(task)
            sandboxed = await asyncio.to_thread(self.site.load, self._payload)
            self._agent = make_agent(self._payload, self.settings, sandboxed.folder)
            opened = self.site.runner.open(sandboxed, episode=self.name, attempt=self.site.attempt)
            self._episode = await self._open.enter_async_context(opened)
            self._acting = _Acting(self._agent)
            await self._episode.setup(self._acting)
        except (ValueError, TaskUnavailable) as error:
            raise EnvironmentFailure(Termination.ENV_BAD_TASK, str(error)) from error
        except SandboxFailure as failure:
            found = failure.termination
            raise EnvironmentFailure(Termination.ENV_BAD_TASK if found in _GRADING else found, _told(failure)) from failure
        self._act = asyncio.create_task(self._episode.act(self._acting))
        messages = await self._ask(self._agent.begin, instruction(self._payload, self.settings), seed)
        if messages is None:
            raise EnvironmentFailure(Termination.ROLLOUT_ERROR, "the agent's time was up before its first turn; raise task_timeout_sec")
        self._prompt = messages[-1]["content"]
        return Observation(messages)

    async def step(self, action: str) -> Step:
        return await self._take(self._agent.take, action)

    async def cut(self, action: str) -> Step:
        return await self._take(self._agent.cut, action)

    async def condense(self, ask: Ask, history: list[Message]) -> list[Message] | None:
        return await self._agent.condense(ask, history)

    async def _take(self, call, action: str) -> Step:
        step = await self._ask(call, action)
        if step is None:
            return Step(done=True, termination=self._ended)
        self._ended = step.termination
        await asyncio.to_thread(self._write_trajectory)
        return step

    async def _ask(self, call, *arguments) -> Any:
        """The agent's answer; None when its time was up before. Raises EnvironmentFailure when its container failed."""
        answer = asyncio.get_running_loop().create_future()
        self._acting.replies.put_nowait((call, arguments, answer))
        await asyncio.wait({answer, self._act}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        self._ended = self._act.result()
        if HANDLING[self._ended].reward == "null":
            raise EnvironmentFailure(self._ended, _told(self._episode.failure))
        return None

    async def grade(self) -> Grade:
        """What the verifier says. It verified twice where it failed at first, so that another call repeats its word."""
        if self._result is None:
            self._acting.replies.put_nowait(None)
            ended = await self._act
            if ended is Termination.FINISHED and self._ended:
                ended = self._ended
            if is_drilled(self.name, self.settings.verifier_fault_rate):
                return Grade(None, "drill: the verifier was made to fail", termination=Termination.VERIFIER_ERROR, grader="drill")
            self._result = await self._episode.grade(ended)
            await asyncio.to_thread(self._write_trajectory)
        return grade_of(self._result, self._payload, self._patch())

    def _patch(self) -> str:
        """The menu's edit as a diff; what a terminal changed is in its delivered files."""
        edit = getattr(getattr(self._agent, "dialogue", None), "applied", None)
        if edit is None:
            return ""
        old, new = (text.splitlines(keepends=True) for text in (edit.old, edit.new))
        return "".join(difflib.unified_diff(old, new, f"a/{edit.file}", f"b/{edit.file}"))

    async def close(self) -> None:
        if self._act and not self._act.done():
            self._act.cancel()
            await asyncio.wait({self._act})
        await self._open.aclose()

    def forced_choice(self, task: Task, without_question: bool = False) -> ForcedChoice | None:
        """A repair has no key to force."""
        return None

    # ------------------------------------------------------------ what is told of it
    @property
    def facts(self) -> dict[str, Any]:
        """Seconds by phase, what was delivered, where and how strongly isolated it ran."""
        if self._episode is None:
            return {}
        result, actions = self._result, self._agent.actions
        return {
            "phases": seconds_by_phase(self._episode.phases),
            "node": self._episode.node.name,
            "isolation": self._episode.node.backend.isolation,
            "folder": str(self._episode.folder),
            "task_digest": self._payload.task_digest,
            "hint_level": self.settings.hint_level if self._payload.hints.get(self.settings.hint_level) else "",
            "delivered": bool(result and result.delivered),
            "regraded": bool(result and result.regraded),
            "fetches": fetches(actions),
            "parse_errors": sum(bool(action.errors) for action in actions),
            "canary_seen": bool(self._payload.canary) and any(_canary(self._payload) in action.observation for action in actions),
        }

    def _write_trajectory(self) -> None:
        """After every turn, so that a crash leaves what there was; among the agent's logs once those were taken out of the container."""
        folder = Path(self._episode.folder)
        logs = folder / "agent"
        place = (logs if logs.is_dir() else folder) / "trajectory.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        turns = [AgentTurn(action.reply, action.calls, action.observation) for action in self._agent.actions]
        document = write_trajectory(Trajectory(self.name, self._agent.name, self._agent.version, self.model, self._prompt, turns))
        partial = place.with_suffix(".partial")
        partial.write_text(json.dumps(document, ensure_ascii=False))
        partial.replace(place)
        if place.parent == logs:
            (folder / "trajectory.json").unlink(missing_ok=True)


def _canary(payload: RepairPayload) -> str:
    return payload.canary.split()[-1]


def _told(failure: SandboxFailure | None) -> str:
    return f"{failure.reason}: {failure}" if failure else "the container failed without a word"
