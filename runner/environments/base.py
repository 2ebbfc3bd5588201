"""What a task is acted in. One environment object is one episode; every method but `forced_choice` is awaited.

A failure is a value with a reason, never a zero: an environment that cannot go on raises EnvironmentFailure with the termination that
says why; a grader that cannot decide returns a Grade without a score, or raises.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol, Sequence

from runner.contract.bank import Task
from runner.contract.termination import Termination

Message = dict[str, str]


class EnvironmentFailure(Exception):
    """The episode cannot go on. `termination` is one of the env_… rows, replay_mismatch or rollout_error."""

    def __init__(self, termination: Termination, message: str):
        self.termination = termination
        super().__init__(message)


@dataclass(frozen=True)
class Situation:
    """The state the student acts in, in the simulator's own words; `score` is its raw score. None where it tells no such thing."""

    observation: str
    look: str | None = None
    inventory: str | None = None
    score: float | None = None


@dataclass(frozen=True)
class Observation:
    """What the student is shown: chat messages {role, content}.

    `messages` are what is new, for an episode that is one growing sequence. Where `prompt` is set, the turn is a sequence of its own
    that begins with it, and nothing said before is in its context.
    """

    messages: Sequence[Message]
    prompt: Sequence[Message] | None = None
    situation: Situation | None = None


@dataclass(frozen=True)
class Step:
    """What an action led to. `observation` is None when the episode is done; `termination` says why, where it is not that it finished.

    `valid`: the action could be read and was understood. `situation` is the state after it. `info` is what else the transcript shows.
    """

    observation: Observation | None = None
    reward: float | None = None
    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)
    termination: Termination | None = None
    valid: bool = True
    situation: Situation | None = None


@dataclass(frozen=True)
class Budgets:
    """Wall seconds that each call of an environment may take."""

    start: float
    step: float
    grade: float
    close: float


@dataclass(frozen=True)
class Grade:
    """What an episode was worth. A missing score is None. `termination` is set when grading changes why the episode counts as ended."""

    score: float | None
    reason: str = ""
    parsed: bool | None = None
    checks: dict[str, float] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    grader: str = ""
    termination: Termination | None = None


@dataclass(frozen=True)
class ForcedChoice:
    """A question whose answer is one of `candidates`: the assistant's turn begins with `prefix`, candidate `key` is right."""

    messages: Sequence[Message]
    prefix: str
    candidates: Sequence[str]
    key: int


class Environment(Protocol):
    """The life of an episode: start, step until done, grade, close. `close` is called whatever happened, also before `start` ended.

    An environment may have more, read where it is there:
    identify(episode)            the episode's name, told before it starts
    async preview(task, seed)    the first prompt's messages without starting anything
    budgets: Budgets             its own limits, instead of the loop's
    facts: dict                  what else is to be known of the episode: seconds by phase, delivered files, the backend
    template: dict               variables of the chat template
    batches: bool                whether replies may be generated together on a processor, where their last bits then depend on who waits
    prompt_limit(max_length)     tokens a prompt may have, where that is less than the model takes
    async cut(action) -> Step    what follows a reply that was cut at the response cap; without it the episode ends there
    async condense(ask, history) -> messages, or None: a shorter history to go on from when the context is full
    """

    async def start(self, task: Task, seed: int) -> Observation:
        """Show the task; what is shown is a function of (task, seed)."""

    async def step(self, action: str) -> Step:
        """Take the student's turn."""

    async def grade(self) -> Grade:
        """Judge the finished episode. Called again once when it gave no score."""

    async def close(self) -> None:
        """Give everything back."""

    def forced_choice(self, task: Task, without_question: bool = False) -> ForcedChoice | None:
        """The task as a choice among continuations; None where there is none. `without_question` hides the question: a control."""
