"""One episode: a task, a simulator of its own, actions until the task is solved, failed, or the cap is reached.

The score is the simulator's, -100 to 100. Looking around at the start may earn points already: the initial score is kept, and what the
student earns is the rest. A step's reward is the change of the score divided by 10. Solved means a final score of 100, never `done`: a
failed task is done as well.
"""

import re
import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from runner.contract.bank import Task
from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.contract.scienceworld import ScienceWorldPayload, check_simplification, kind_of
from runner.contract.termination import Termination
from runner.environments.base import Budgets, EnvironmentFailure, ForcedChoice, Grade, Message, Observation, Situation, Step
from runner.environments.scienceworld.pool import Pool
from runner.environments.scienceworld.prompts import (
    NOT_UNDERSTOOD,
    Action,
    Told,
    following_prompt,
    is_ambiguous,
    is_blocked,
    is_understood,
    read_action,
    task_text,
    turn_prompt,
)
from runner.environments.scienceworld.simulator import Simulator

SOLVED = 100
DAY_SECONDS = 86_400.0
FIRST_READING = "0"
_JAVA_TROUBLE = re.compile(r"^(?:Exception|ERROR|(?:java|scala)\.[\w.]+(?:Exception|Error))")
_ROOM = re.compile(r"^This (?:room|outside location) is called (?:the )?(.+?)\.", re.MULTILINE)


@dataclass
class Course:
    """How the episode has gone so far. Scores are raw."""

    initial: int = 0
    score: int = 0
    best: int = 0
    actions: int = 0
    invalid: int = 0
    ambiguous: int = 0
    blocked: int = 0
    ticks: int = 0
    earned: float = 0.0
    done: bool = False
    history: list[tuple[str, str]] = field(default_factory=list)


def read_payload(task: Task) -> ScienceWorldPayload:
    """Raises EnvironmentFailure: a task that nobody can play."""
    try:
        payload = ScienceWorldPayload.model_validate(task.payload)
        kind_of(payload.task)
        return payload
    except ValidationError as error:
        problem = error.errors()[0]
        message = f"task {task.key}: payload.{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
    except ValueError as error:
        message = f"task {task.key}: {error}"
    raise EnvironmentFailure(Termination.ENV_BAD_TASK, message)


class ScienceWorldEnvironment:
    """`pool` gives the simulator. Several episodes of one pool run side by side, each in a simulator of its own."""

    # Its bits depend on the simulator, so that turns may be generated together with whichever others wait.
    batches = True

    def __init__(self, settings: Settings, pool: Pool):
        self.settings, self.pool = settings, pool
        # Every call into the simulator has its own limit; waiting for a free one has none.
        self.budgets = Budgets(DAY_SECONDS, DAY_SECONDS, 60.0, 60.0)
        self.course = Course()
        self.payload: ScienceWorldPayload | None = None
        self._open = AsyncExitStack()
        self._simulator: Simulator | None = None
        self._state: dict[str, Any] = {}
        self.goal = ""
        self._templates: list[str] = []

    # ------------------------------------------------------------ the episode
    async def start(self, task: Task, seed: int) -> Observation:
        self.payload = payload = read_payload(task)
        self._simulator = await self._open.enter_async_context(self.pool.holding())
        found = await self._load(payload)
        if found["observation"].startswith("ERROR"):
            # Tried here and not asked for before: the simulator rejects nothing, it plays on with this text for an observation.
            raise EnvironmentFailure(Termination.ENV_BAD_TASK, f"task {task.key}: {found['observation'].strip()[:300]}")
        self.goal, self._templates = task_text(found["task"]), found["templates"]
        self._state = found
        course = self.course
        course.initial = course.score = course.best = found["score"]
        course.ticks = found["ticks"]
        return self._observe()

    async def _load(self, payload: ScienceWorldPayload) -> dict:
        settings = self.settings
        try:
            check_simplification(settings.simplification, kind_of(payload.task))
        except ValueError as error:
            raise EnvironmentFailure(Termination.ENV_BAD_TASK, str(error)) from error
        arguments = {"task": payload.task, "variation": payload.variation, "simplification": settings.simplification}
        return await self._simulator.call("load", settings.load_timeout_sec, objects=settings.hints != "none", **arguments)

    async def step(self, action: str) -> Step:
        """Take the student's reply: its command goes to the simulator, unless it would leave the task."""
        read, course = read_action(action), self.course
        listed = await self._is_listed(read)
        before, self._state = self._state, await self._act(read)
        reward = self._reward(before["score"], self._state["score"])
        course.history.append((before["observation"], read.text))
        course.actions += 1
        course.earned += reward
        course.score, course.ticks = self._state["score"], self._state["ticks"]
        course.best = max(course.best, course.score)
        course.done = self._state["done"]
        understood = is_understood(self._state["observation"])
        valid = read.format_ok and understood
        course.invalid += not valid
        info = self._info(read, understood, listed)
        if course.done or course.actions >= self.settings.max_actions:
            ended = None if course.done else Termination.MAX_TURNS_EXCEEDED
            return Step(None, reward, True, info, ended, valid, self._situation())
        return Step(self._observe(), reward, False, info, None, valid, self._situation())

    # A reply that was cut at its cap is an action without its closing tag.
    cut = step

    async def _act(self, read: Action) -> dict:
        """The state after the command. An unread or blocked one changes nothing, and no tick passes."""
        if is_blocked(read.text):
            self.course.blocked += bool(read.text)
            return self._state | {"observation": NOT_UNDERSTOOD}
        state = await self._send(read.text)
        if is_ambiguous(state["observation"]):
            self.course.ambiguous += 1
            if self.settings.ambiguity == "auto_first":
                state = await self._send(FIRST_READING)
        return state

    async def _send(self, command: str) -> dict:
        state = await self._simulator.call("step", self.settings.step_timeout_sec, action=command)
        if state["observation"] and _JAVA_TROUBLE.match(state["observation"]):
            # The simulator answers its own error with score -100 and done: a failure of ours, not of the student.
            self._simulator.end()
            raise EnvironmentFailure(Termination.ENV_CRASH, f"the simulator failed at {command!r}: {state['observation'][:500]}")
        return state

    async def _is_listed(self, read: Action) -> bool | None:
        if not self.settings.check_listed:
            return None
        return read.text in await self._simulator.call("valid", self.settings.step_timeout_sec)

    def _reward(self, before: int, after: int) -> float:
        failure = self.settings.failure_reward
        if after >= 0 or failure.type == "raw":
            return (after - before) / 10
        return 0.0 if failure.type == "clip0" else -failure.penalty

    async def grade(self) -> Grade:
        """What was there at the start and what was earned since, in tenths of the raw score; where failures are raw, the final score."""
        course = self.course
        success = course.score == SOLVED
        told = f"score {course.score}, from {course.initial}, in {course.actions} actions"
        return Grade(course.initial / 10 + course.earned, told, None, {"success": float(success)}, self.evidence, "scienceworld")

    @property
    def evidence(self) -> dict[str, Any]:
        """What is stored of the episode. Scores are raw, -100 to 100."""
        course, payload = self.course, self.payload
        return {
            "initial_score": course.initial,
            "final_score": course.score,
            "best_score": course.best,
            "success": course.score == SOLVED,
            "failed": course.score < 0,
            "truncated": not course.done,
            "actions": course.actions,
            "ticks": course.ticks,
            "invalid": course.invalid,
            "ambiguous": course.ambiguous,
            "blocked": course.blocked,
            "task_id": payload.task_id,
            "variation": payload.variation,
            "simplification": self.settings.simplification,
        }

    async def close(self) -> None:
        await self._open.aclose()

    def forced_choice(self, task: Task, without_question: bool = False) -> ForcedChoice | None:
        """There is no key to force."""
        return None

    @property
    def facts(self) -> dict[str, Any]:
        """The simulator's milliseconds a step (p50, p95), the episodes it has served, and how often this worker had to replace one."""
        simulator = self._simulator
        steps = simulator.timings.get("step", []) if simulator else []
        if len(steps) < 2:
            return {}
        cuts = statistics.quantiles(steps, n=20)
        return {
            "step_ms_p50": cuts[9],
            "step_ms_p95": cuts[18],
            "simulator_episodes": simulator.episodes + 1,
            "restarts": self.pool.restarts,
        }

    # ------------------------------------------------------------ what the student sees
    async def preview(self, task: Task, seed: int) -> list[Message]:
        """A first prompt of this kind of task: every variation's is about as long, so that one of them is loaded and kept."""
        payload = read_payload(task)
        if payload.task not in self.pool.previews:
            observation = await self.start(task, seed)
            await self.close()
            self.pool.previews[payload.task] = list(observation.prompt or observation.messages)
        return self.pool.previews[payload.task]

    def told(self) -> Told:
        """All that the next prompt may tell."""
        state, course = self._state, self.course
        place = state["observation"], state["look"], state["inventory"]
        return Told(self.goal, *place, self._templates, state["objects"], course.history, course.actions)

    def _observe(self) -> Observation:
        told = self.told()
        whole = _said(turn_prompt(told, self.settings))
        if self.settings.context == "episode":
            new = whole if not self.course.actions else _said(following_prompt(told, self.settings))
            return Observation(new, None, self._situation())
        return Observation(whole, whole, self._situation())

    def _situation(self) -> Situation:
        state = self._state
        return Situation(state["observation"], state["look"], state["inventory"], state["score"])

    def _info(self, read: Action, understood: bool, listed: bool | None) -> dict[str, Any]:
        state = self._state
        room = _ROOM.search(state["look"])
        return {
            "action": read.text,
            "action_source": read.source,
            "format_ok": read.format_ok,
            "understood": understood,
            "listed": listed,
            "ambiguous": is_ambiguous(state["observation"]),
            "blocked": bool(read.text) and is_blocked(read.text),
            "score": state["score"],
            "ticks": state["ticks"],
            "room": room[1] if room else None,
        }


def _said(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]
