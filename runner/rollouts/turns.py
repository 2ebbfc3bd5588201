"""The turn loop: many episodes at once, each an alternation of environment and student.

1. Every environment starts; what it shows becomes the prompt.
2. While any episode goes on, one batched call of the policy writes the next turn of each, and each environment takes its step.
3. Every episode that ended of itself is graded; a grader that fails is asked once more.
4. Every environment is closed, whatever happened.

Text becomes tokens once, here; what the policy wrote is never tokenised again. A failure ends one episode with a reason, never the batch.
"""

import asyncio
import time
import traceback
from dataclasses import dataclass, field
from typing import Awaitable, Callable, Sequence

from runner.contract.bank import Task
from runner.contract.episode import Author, write_trace
from runner.contract.termination import Termination, trusted_reward
from runner.environments.base import Environment, EnvironmentFailure, Grade
from runner.models.prompts import prompt_ids
from runner.policies.base import Policy, Purpose, SamplingParams
from runner.rollouts.episodes import EpisodeOrder, Job, Outcome, Turn, WorkerBatch
from runner.rollouts.types import SampleBuilder
from runner.rollouts.vocabulary import Vocabulary

GRADE_SECONDS = 60.0
STEP_SECONDS = 300.0


@dataclass
class _Live:
    """One episode under way."""

    order: EpisodeOrder
    environment: Environment
    version: int
    started: float
    builder: SampleBuilder = field(default_factory=SampleBuilder)
    turns: list[Turn] = field(default_factory=list)
    student_turns: int = 0
    done: bool = False
    termination: Termination | None = None
    error: str = ""
    grade: Grade | None = None

    def end(self, termination: Termination | None, error: str = "") -> None:
        self.done, self.termination, self.error = True, termination, error


class TurnLoop:
    """Runs episodes against one policy. `make_environment` gives a fresh environment an episode."""

    def __init__(
        self,
        policy: Policy,
        tokenizer,
        tasks: dict[str, Task],
        make_environment: Callable[[], Environment],
        *,
        max_length: int,
        worker: str,
    ):
        self.policy, self.tokenizer, self.tasks, self.make_environment = policy, tokenizer, tasks, make_environment
        self.max_length, self.worker = max_length, worker
        self.vocabulary = Vocabulary(tokenizer)
        self._special = set(tokenizer.all_special_ids)
        self._version = 0

    async def run(self, job: Job, version: int) -> WorkerBatch:
        """Outcomes in the order of `job.orders`; `version` is the policy's."""
        self._version, generating = version, 0.0
        lives = [_Live(order, self.make_environment(), version, time.time()) for order in job.orders]
        try:
            await _each(lives, self._start)
            while active := [live for live in lives if not live.done]:
                begin = time.perf_counter()
                self._generate(active, job.sampling)
                generating += time.perf_counter() - begin
                await _each([live for live in active if not live.done], self._step)
            begin = time.perf_counter()
            await _each(lives, self._grade)
            grading = time.perf_counter() - begin
        finally:
            await _each(lives, self._close)
        return WorkerBatch([self._outcome(live, job.sampling) for live in lives], generating, grading)

    async def _start(self, live: _Live) -> None:
        with _failures_of(live):
            task = self.tasks[live.order.task]
            observation = await _within(live.environment.start(task, live.order.environment_seed), STEP_SECONDS)
            self._show(live, observation.messages)

    def _show(self, live: _Live, messages: Sequence[dict[str, str]]) -> None:
        """Append what the environment says; tokens of the chat template itself are the template's."""
        for message in messages:
            live.turns.append(Turn(len(live.turns), message["role"], "environment", message["content"]))
        for token in prompt_ids(self.tokenizer, messages):
            live.builder.append([token], Author.TEMPLATE if token in self._special else Author.ENVIRONMENT)
        if (length := len(live.builder.token_ids)) >= self.max_length:
            live.end(Termination.MAX_RESPONSE_LENGTH_EXCEEDED, f"the prompt has {length} tokens, model.max_length is {self.max_length}")

    def _generate(self, active: list[_Live], sampling: SamplingParams) -> None:
        prompts = [live.builder.token_ids for live in active]
        seeds = [(*live.order.seed[:-1], live.student_turns) for live in active]
        try:
            generations = self.policy.generate(prompts, sampling, seeds)
        except Exception:
            error = traceback.format_exc()
            for live in active:
                live.end(Termination.POLICY_ERROR, error)
            return
        for live, generation in zip(active, generations, strict=True):
            live.builder.append(generation.token_ids, Author.STUDENT, generation.logprobs)
            live.student_turns += 1
            if generation.finish_reason == "length":
                live.termination = Termination.MAX_RESPONSE_LENGTH_EXCEEDED
            text = self.tokenizer.decode(generation.token_ids.tolist(), skip_special_tokens=True)
            live.turns.append(Turn(len(live.turns), "assistant", "student", text, len(generation.token_ids)))

    async def _step(self, live: _Live) -> None:
        with _failures_of(live):
            step = await _within(live.environment.step(live.turns[-1].text), STEP_SECONDS)
            if step.done or live.termination:
                live.done = True
            else:
                self._show(live, step.observation.messages)

    async def _grade(self, live: _Live) -> None:
        """Ask the environment for its word, unless the episode failed before there was anything to grade."""
        if live.error or not live.student_turns:
            return
        for last in (False, True):
            failure, error = Termination.VERIFIER_ERROR, ""
            try:
                live.grade = await _within(live.environment.grade(), GRADE_SECONDS)
                failure, error = _failed(live.grade)
            except TimeoutError:
                failure, error = Termination.VERIFIER_TIMEOUT, f"no grade within {GRADE_SECONDS:.0f} s"
            except Exception:
                error = traceback.format_exc()
            if not failure:
                break
            if last:
                live.termination, live.error = live.termination or failure, error
        live.termination = live.termination or (live.grade.termination if live.grade else None) or Termination.FINISHED

    async def _close(self, live: _Live) -> None:
        try:
            await _within(live.environment.close(), GRADE_SECONDS)
        except Exception:
            live.error = live.error or f"closing the environment failed: {traceback.format_exc()}"

    def _outcome(self, live: _Live, sampling: SamplingParams) -> Outcome:
        order, grade = live.order, live.grade
        termination = live.termination or Termination.UNKNOWN
        sample = live.builder.build(
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
        )
        outcome = Outcome(order, sample, live.turns, error=live.error, worker=self.worker, started=live.started, finished=time.time())
        outcome.policy_version_end = self._version
        outcome.sampled = write_trace(sample.sampled_columns())
        outcome.token_texts = self.vocabulary.texts(sample.token_ids)
        if grade:
            outcome.graded, outcome.reason, outcome.checks = True, grade.reason, grade.checks
            outcome.evidence, outcome.grader = grade.evidence, grade.grader
        return outcome


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
            self.live.end(Termination.ENV_TIMEOUT, f"the environment did not answer within {STEP_SECONDS:.0f} s")
        elif isinstance(error, MemoryError):
            self.live.end(Termination.ENV_OOM, "".join(traceback.format_exception(error)))
        else:
            self.live.end(Termination.ENV_CRASH, "".join(traceback.format_exception(error)))
        return True


async def _within(awaitable: Awaitable, seconds: float):
    return await asyncio.wait_for(awaitable, seconds)


async def _each(lives: Sequence[_Live], action: Callable[[_Live], Awaitable[None]]) -> None:
    await asyncio.gather(*(action(live) for live in lives))
