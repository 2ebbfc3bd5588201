"""The turn loop: many episodes, each an alternation of environment and student.

1. The environment starts; what it shows becomes the prompt.
2. While the episode goes on, the policy writes the next turn and the environment takes its step. What the environment shows next
   continues the sequence, or is a whole prompt of its own: the environment's choice (`Observation.prompt`).
3. An episode that ended of itself is graded; a grader that fails is asked once more.
4. The environment is closed, whatever happened.

Episodes of one job run all at once and share batches of the policy, or `limit` at a time, each at its own pace (rollouts.generation).
Text becomes tokens once (rollouts.conversation). A failure ends one episode with a reason, never the batch.
"""

import asyncio
import time
import traceback
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Awaitable, Callable, Sequence

from runner.contract.bank import Task
from runner.contract.episode import write_trace
from runner.contract.termination import Termination, trusted_reward
from runner.environments.base import Budgets, Environment, EnvironmentFailure, Grade, Observation, Situation, Step
from runner.policies.base import Generation, Policy, Purpose, SamplingParams
from runner.rollouts.conversation import Conversation, Prompts
from runner.rollouts.episodes import EpisodeOrder, Job, Outcome, Turn, WorkerBatch
from runner.rollouts.generation import RollingGenerator, TogetherGenerator
from runner.rollouts.types import TurnRow
from runner.rollouts.vocabulary import Vocabulary

GRADE_SECONDS = 60.0
STEP_SECONDS = 300.0
NO_ROOM = Termination.MAX_RESPONSE_LENGTH_EXCEEDED


@dataclass
class _Live:
    """One episode under way. `place` orders it within its job; `limit` is how many tokens a prompt may have."""

    order: EpisodeOrder
    environment: Environment
    conversation: Conversation
    version: int
    place: int
    limit: int
    started: float = field(default_factory=time.time)
    finished: float = 0.0
    turns: list[Turn] = field(default_factory=list)
    rows: list[TurnRow] = field(default_factory=list)
    situation: Situation | None = None
    student_turns: int = 0
    done: bool = False
    termination: Termination | None = None
    error: str = ""
    grade: Grade | None = None

    def end(self, termination: Termination | None, error: str = "") -> None:
        self.done, self.termination, self.error = True, termination, error

    @property
    def budgets(self) -> Budgets:
        default = Budgets(STEP_SECONDS, STEP_SECONDS, GRADE_SECONDS, GRADE_SECONDS)
        return getattr(self.environment, "budgets", default)

    @property
    def prompt(self) -> list[int]:
        return self.conversation.builder.context

    @property
    def seed(self) -> tuple[int, ...]:
        return (*self.order.seed[:-1], self.student_turns)


class TurnLoop:
    """Runs episodes against one policy. `make_environment` gives a fresh environment an episode.

    `limit` is how many run at a time; None runs all of a job's together. `on_turn` hears of every turn as it happens.
    """

    def __init__(
        self,
        policy: Policy,
        tokenizer,
        tasks: dict[str, Task],
        make_environment: Callable[[], Environment],
        *,
        max_length: int,
        worker: str,
        limit: int | None = None,
        on_turn: Callable[[EpisodeOrder, Turn], None] = lambda order, turn: None,
    ):
        self.policy, self.tokenizer, self.tasks, self.make_environment = policy, tokenizer, tasks, make_environment
        self.max_length, self.worker, self.limit, self.on_turn = max_length, worker, limit, on_turn
        self.vocabulary, self.prompts = Vocabulary(tokenizer), Prompts(tokenizer)
        self._version = 0

    async def run(self, job: Job, version: int) -> WorkerBatch:
        """Outcomes in the order of `job.orders`; `version` is the policy's."""
        self._version, grading = version, _Together()
        lives = [self._live(order, place) for place, order in enumerate(job.orders)]
        generator = self._generator(job.sampling, lives)
        slots = asyncio.Semaphore(self.limit) if self.limit else nullcontext()
        await asyncio.gather(*(self._episode(live, generator, grading, slots) for live in lives))
        return WorkerBatch([self._outcome(live, job.sampling) for live in lives], generator.seconds, grading.seconds)

    def _live(self, order: EpisodeOrder, place: int) -> _Live:
        environment = self.make_environment()
        if identify := getattr(environment, "identify", None):
            identify(order.episode)
        conversation = Conversation(self.tokenizer, getattr(environment, "template", None), self.prompts)
        own = getattr(environment, "prompt_limit", lambda most: most)
        return _Live(order, environment, conversation, self._version, place, min(self.max_length, own(self.max_length)))

    def _generator(self, sampling: SamplingParams, lives: Sequence[_Live]) -> TogetherGenerator | RollingGenerator:
        if self.limit is None:
            return TogetherGenerator(self.policy, sampling, len(lives))
        batches = bool(lives) and getattr(lives[0].environment, "batches", False)
        return RollingGenerator(self.policy, sampling, together=batches or self.policy.health()["device"] not in ("cpu", "none"))

    async def _episode(self, live: _Live, generator, grading: "_Together", slots) -> None:
        async with slots:
            live.started = time.time()
            try:
                try:
                    await self._act(live, generator)
                finally:
                    generator.leave()
                async with grading.one_more():
                    await self._grade(live)
            finally:
                await self._close(live)
                live.finished = time.time()

    async def _act(self, live: _Live, generator) -> None:
        with _failures_of(live):
            task = self.tasks[live.order.task]
            observation = await _within(live.environment.start(task, live.order.environment_seed), live.budgets.start)
            await self._show(live, observation, generator)
        while not live.done:
            if generation := await self._generate(live, generator):
                await self._step(live, generation, generator)

    async def _show(self, live: _Live, observation: Observation, generator) -> None:
        """Append what the environment says; an episode whose context is full ends, unless its environment can shorten the history."""
        live.situation = observation.situation
        # The message tells the room and what came back; a second copy of each would double what a long episode takes on disk.
        facts = {"score": live.situation.score, "inventory": live.situation.inventory} if live.situation else {}
        for message in observation.messages:
            self._turn(live, Turn(len(live.turns), message["role"], "environment", message["content"], facts=facts))
        written = len(live.conversation.builder.token_ids)
        if observation.prompt is not None:
            live.conversation.restart(observation.prompt)
        else:
            live.conversation.show(observation.messages)
        if (length := len(live.prompt)) < live.limit:
            return
        if not live.student_turns:
            return live.end(NO_ROOM, f"the prompt has {length} tokens, the limit is {live.limit} (model.max_length {self.max_length})")
        # What does not fit was never seen by the policy, and must not make the sequence longer than the model takes.
        live.conversation.builder.rollback(written)
        if not await self._condense(live, generator) and not live.done:
            live.end(NO_ROOM)

    async def _condense(self, live: _Live, generator) -> bool:
        """Whether the episode can go on from a shorter history."""
        condense = getattr(live.environment, "condense", None)
        history = condense and await condense(lambda messages: self._aside(live, messages, generator), list(live.conversation.messages))
        if not history or live.done or live.conversation.length(history) >= live.limit:
            return False
        self._ask_anew(live, history)
        return True

    async def _aside(self, live: _Live, messages: Sequence[dict[str, str]], generator) -> str | None:
        """The student's reply to a conversation beside the episode's own; it is recorded as a sequence of its own. None without room."""
        if live.done or live.conversation.length(messages) >= self.max_length:
            return None
        self._ask_anew(live, messages)
        generation = await self._generate(live, generator)
        return live.turns[-1].text if generation else None

    def _ask_anew(self, live: _Live, messages: Sequence[dict[str, str]]) -> None:
        live.conversation.restart(messages)
        self._turn(live, Turn(len(live.turns), "user", "environment", messages[-1]["content"]))

    async def _generate(self, live: _Live, generator) -> Generation | None:
        try:
            generation = await generator.generate(live.place, live.prompt, live.seed)
        except Exception as error:
            live.end(Termination.POLICY_ERROR, "".join(traceback.format_exception(error)))
            return None
        text = live.conversation.reply(generation)
        live.student_turns += 1
        self._turn(live, Turn(len(live.turns), "assistant", "student", text, len(generation.token_ids)))
        return generation

    async def _step(self, live: _Live, generation: Generation, generator) -> None:
        cut = generation.finish_reason == "length"
        go_on = getattr(live.environment, "cut", None) if len(live.prompt) < live.limit else None
        with _failures_of(live):
            take = go_on if cut and go_on else live.environment.step
            step: Step = await _within(take(live.turns[-1].text), live.budgets.step)
            self._took(live, step, len(generation.token_ids))
            live.termination = step.termination or (NO_ROOM if cut and not go_on else None)
            if step.done or live.termination:
                live.done = True
            else:
                await self._show(live, step.observation, generator)

    @staticmethod
    def _took(live: _Live, step: Step, written: int) -> None:
        """Keep what the step said of the reply just written: on its turn for people, as a row for step-level credit."""
        live.turns[-1] = replace(live.turns[-1], reward=step.reward, facts=step.info)
        end = len(live.conversation.builder.token_ids)
        live.rows.append(TurnRow(live.student_turns - 1, end - written, end, live.situation, step.reward, step.valid, live.turns[-1].index))

    def _turn(self, live: _Live, turn: Turn) -> None:
        live.turns.append(turn)
        self.on_turn(live.order, turn)

    async def _grade(self, live: _Live) -> None:
        """Ask the environment for its word, unless the episode failed before there was anything to grade."""
        if live.error or not live.student_turns:
            return
        for last in (False, True):
            failure, error = Termination.VERIFIER_ERROR, ""
            try:
                live.grade = await _within(live.environment.grade(), live.budgets.grade)
                failure, error = _failed(live.grade)
            except TimeoutError:
                failure, error = Termination.VERIFIER_TIMEOUT, f"no grade within {live.budgets.grade:.0f} s"
            except Exception:
                error = traceback.format_exc()
            if not failure:
                break
            if last:
                live.termination, live.error = live.termination or failure, error
        live.termination = live.termination or (live.grade.termination if live.grade else None) or Termination.FINISHED

    async def _close(self, live: _Live) -> None:
        try:
            await _within(live.environment.close(), live.budgets.close)
        except Exception:
            live.error = live.error or f"closing the environment failed: {traceback.format_exc()}"

    def _outcome(self, live: _Live, sampling: SamplingParams) -> Outcome:
        order, grade = live.order, live.grade
        termination = live.termination or Termination.UNKNOWN
        sample = live.conversation.builder.build(
            episode=order.episode,
            task=order.task,
            group=order.group,
            index=order.index,
            reward=trusted_reward(termination, grade.score if grade else None),
            termination=termination,
            policy_version=live.version,
            temperature=sampling.temperature if order.purpose is Purpose.TRAIN else 1.0,
            parsed=grade.parsed if grade else None,
            turns=live.student_turns,
            rows=tuple(live.rows),
        )
        outcome = Outcome(order, sample, live.turns, error=live.error, worker=self.worker, started=live.started, finished=live.finished)
        outcome.policy_version_end = self._version
        outcome.facts = self._facts(live)
        outcome.sampled = write_trace(sample.sampled_columns())
        outcome.token_texts = self.vocabulary.texts(sample.token_ids)
        if grade:
            outcome.graded, outcome.reason, outcome.checks = True, grade.reason, grade.checks
            outcome.evidence, outcome.grader = grade.evidence, grade.grader
        return outcome

    @staticmethod
    def _facts(live: _Live) -> dict[str, Any]:
        facts = dict(getattr(live.environment, "facts", {}))
        return facts | ({"forks": live.conversation.forked} if live.conversation.forked else {})


class _Together:
    """Wall seconds during which at least one is at it."""

    def __init__(self):
        self.seconds, self._count, self._begin = 0.0, 0, 0.0

    @asynccontextmanager
    async def one_more(self):
        if not self._count:
            self._begin = time.perf_counter()
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self.seconds += time.perf_counter() - self._begin


def _failed(grade: Grade) -> tuple[Termination | None, str]:
    if grade.score is not None:
        return None, ""
    return grade.termination or Termination.VERIFIER_ERROR, grade.reason


class _failures_of:
    """Turns what goes wrong inside an environment into the episode's end."""

    def __init__(self, live: _Live):
        self.live = live

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace) -> bool:
        if error is None or not isinstance(error, Exception):
            return False
        if isinstance(error, EnvironmentFailure):
            self.live.end(error.termination, str(error))
        elif isinstance(error, TimeoutError):
            seconds = self.live.budgets.step if self.live.turns else self.live.budgets.start
            self.live.end(Termination.ENV_TIMEOUT, f"the environment did not answer within {seconds:.0f} s")
        elif isinstance(error, MemoryError):
            self.live.end(Termination.ENV_OOM, "".join(traceback.format_exception(error)))
        else:
            self.live.end(Termination.ENV_CRASH, "".join(traceback.format_exception(error)))
        return True


async def _within(awaitable: Awaitable, seconds: float):
    return await asyncio.wait_for(awaitable, seconds)
