"""Who acts in a trial: an agent that needs no model, a served model, or weights that this process loads."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.agents.anchors import ANCHORS
from runner.agents.chat import Chat, Reply
from runner.agents.terminal import window
from runner.agents.turn_loop import ModelAgent
from runner.assignment import Assignment, Refused
from runner.contract.atif import AgentTurn, Trajectory, write_trajectory
from runner.contract.bank import Task
from runner.contract.evaluation_config import REGRADE, WARMING, EvaluationConfig
from runner.contract.resources import TransformersEngine
from runner.contract.warming import WarmedTask
from runner.environments.base import Step
from runner.environments.harbor import HarborEnvironment, instruction, make_agent
from runner.environments.site import Site
from runner.evaluation.trials import Ended, Trial, of_outcome, of_result, warmed
from runner.policies.base import Policy, Purpose, SamplingParams, token_seed
from runner.policies.factory import make_policy
from runner.policies.remote import RemotePolicy
from runner.reporting.live import LiveReporter
from runner.rollouts.episodes import EpisodeOrder, Job, Outcome, Turn
from runner.rollouts.groups import environment_seed
from runner.rollouts.turns import TurnLoop
from runner.sandbox.agent import Agent
from runner.sandbox.results import EpisodeResult
from runner.sandbox.warming import WarmingRefused, warm_node

Then = Callable[[Trial, Ended], None]


@dataclass
class Stage:
    """What every actor needs of the evaluation. `then` is told of each trial as it ends."""

    config: EvaluationConfig
    site: Site
    attempt: str
    live: LiveReporter
    then: Then

    def order(self, trial: Trial) -> EpisodeOrder:
        """Draws depend on the trial's place and sample alone, so that two evaluations differ by their weights."""
        return EpisodeOrder(
            episode=trial.episode(self.attempt),
            task=trial.task.key,
            stage=0,
            step=0,
            group=trial.number,
            index=trial.sample,
            purpose=Purpose.EVAL,
            seed=token_seed(self.config.seed, 0, trial.number, trial.sample, purpose=Purpose.EVAL),
            environment_seed=environment_seed(self.config.seed, Purpose.EVAL, 0, trial.number),
        )


class SandboxActor:
    """Agents that the sandbox runs: oracle and nop, and a served model's. `agent_of` makes one a trial."""

    def __init__(self, stage: Stage):
        self.stage = stage

    async def run(self, trials: Iterable[Trial], starting: Callable[[Trial], None]) -> None:
        """Every trial, as many at a time as the settings allow. `starting` is told before each."""
        slots = asyncio.Semaphore(self.stage.config.environment.max_concurrent_episodes)

        async def one(trial: Trial) -> None:
            async with slots:
                starting(trial)
                self.stage.then(trial, await self.play(trial))

        await _all(one(trial) for trial in trials)

    async def play(self, trial: Trial) -> Ended:
        started = time.time()
        result = await self._episode(trial, ANCHORS[trial.agent]())
        return of_result(result, trial, started, time.time(), "")

    async def _episode(self, trial: Trial, agent: Agent) -> EpisodeResult:
        task = await asyncio.to_thread(self.stage.site.load, trial.payload)
        episode = trial.episode(self.stage.attempt)
        return await self.stage.site.runner.run(task, agent, episode=episode, attempt=self.stage.attempt)


class WarmingActor(SandboxActor):
    """nop over every task of this node, few at a time, then once more over what failed or was slow."""

    async def run(self, trials: Iterable[Trial], starting: Callable[[Trial], None]) -> None:
        """Raises Refused while another warming runs on the node, or when its engine is not well."""
        site, settings = self.stage.site, self.stage.config.environment

        async def play(trial: Trial, number: int) -> WarmedTask:
            trial = replace(trial, sample=number - 1)
            starting(trial)
            ended = await self.play(trial)
            self.stage.then(trial, ended)
            return warmed(trial, ended)

        try:
            await warm_node(site.runner.node, site.jobs, list(trials), play, settings.max_concurrent_episodes)
        except WarmingRefused as refused:
            raise Refused(str(refused), "/resources/node", self.stage.config.resources.node) from None


class RegradeActor(SandboxActor):
    """Nobody acts: what an earlier episode delivered goes to a fresh verifier."""

    async def play(self, trial: Trial) -> Ended:
        started, saved = time.time(), self.stage.config.saved[trial.sample]
        task = await asyncio.to_thread(self.stage.site.load, trial.payload)
        told = {"episode": trial.episode(self.stage.attempt), "attempt": self.stage.attempt}
        result = await self.stage.site.runner.regrade(task, Path(saved.artifacts), **told)
        return of_result(result, trial, started, time.time(), "")


class ServedActor(SandboxActor):
    """A model behind an address writes the replies."""

    def __init__(self, stage: Stage):
        super().__init__(stage)
        served = stage.config.model.source
        self.chat = Chat(served.url, served.name, temperature=stage.config.sampling.temperature)

    async def play(self, trial: Trial) -> Ended:
        started, settings = time.time(), self.stage.config.environment
        task = await asyncio.to_thread(self.stage.site.load, trial.payload)
        length = self.stage.config.model.max_length
        limit = window(length, settings.agent.context_margin) if settings.agent.type == "terminal" else length
        told = _Told(self.stage, self.stage.order(trial))
        agent = ModelAgent(
            make_agent(trial.payload, settings, task.folder),
            self.chat,
            instruction(trial.payload, settings),
            seed=told.order.environment_seed,
            window=limit,
            on_turn=told.turn,
        )
        told.agent = agent
        result = await self._episode(trial, agent)
        told.rest()
        if result.folder:
            await asyncio.to_thread(write_replies, agent, Path(result.folder), told.order.episode, self.chat.model)
        usage = agent.usage
        spoken = {"turns": told.turns, "prompt_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens}
        return of_result(result, trial, started, time.time(), agent.error, **spoken)


class _Told:
    """The conversation as turns, told as they come."""

    def __init__(self, stage: Stage, order: EpisodeOrder):
        self.stage, self.order, self.agent = stage, order, None
        self.turns: list[Turn] = []

    def turn(self, reply: Reply, step: Step) -> None:
        self.rest()
        self._add("assistant", "student", reply.text, reply.completion_tokens)

    def rest(self) -> None:
        """What the environment said since."""
        for message in self.agent.messages[len(self.turns) :]:
            student = message["role"] == "assistant"
            self._add(message["role"], "student" if student else "environment", message["content"], None)

    def _add(self, role: str, author: str, text: str, tokens: int | None) -> None:
        self.turns.append(Turn(len(self.turns), role, author, text, tokens))
        self.stage.live.turn(self.order, self.turns[-1])


def write_replies(agent: ModelAgent, folder: Path, episode: str, model: str) -> None:
    """The trajectory beside the episode's other files."""
    prompt = agent.messages[0]["content"] if agent.messages else ""
    turns = [AgentTurn(action.reply, action.calls, action.observation) for action in agent.agent.actions]
    document = write_trajectory(Trajectory(episode, agent.name, agent.version, model, prompt, turns))
    (folder / "agent").mkdir(parents=True, exist_ok=True)
    (folder / "agent" / "trajectory.json").write_text(json.dumps(document, ensure_ascii=False))


class PolicyActor:
    """A policy, sampled token by token as in training."""

    def __init__(self, stage: Stage, policy: Policy, tokenizer, tasks: dict[str, Task]):
        self.stage, self.policy, self.tokenizer, self.tasks = stage, policy, tokenizer, tasks

    async def run(self, trials: Iterable[Trial], starting: Callable[[Trial], None]) -> None:
        config = self.stage.config
        sampling = SamplingParams(config.sampling.temperature, 1.0, config.sampling.max_new_tokens)
        orders = [(self.stage.order(trial), trial) for trial in trials]
        trial_of = {order.episode: trial for order, trial in orders}
        loop = WatchedLoop(
            self.policy,
            self.tokenizer,
            self.tasks,
            lambda: HarborEnvironment(config.environment, self.stage.site),
            max_length=config.model.max_length,
            worker="evaluator",
            limit=config.environment.max_concurrent_episodes,
            on_turn=self.stage.live.turn,
        )
        loop.watch(sampling, lambda order: starting(trial_of[order.episode]), lambda outcome: self._ended(trial_of, outcome))
        await loop.run(Job(tuple(order for order, _ in orders), sampling), 0)

    def _ended(self, trial_of: dict[str, Trial], outcome: Outcome) -> None:
        trial = trial_of[outcome.order.episode]
        self.stage.then(trial, of_outcome(outcome, trial))


class WatchedLoop(TurnLoop):
    """Tells of each episode when it has its slot and when it ended, not only of all at the end."""

    def watch(self, sampling: SamplingParams, started: Callable[[EpisodeOrder], None], ended: Callable[[Outcome], None]) -> None:
        self.sampling, self.started, self.ended = sampling, started, ended

    async def _act(self, live, generator) -> None:
        self.started(live.order)
        await super()._act(live, generator)

    async def _episode(self, live, generator, grading, slots) -> None:
        await super()._episode(live, generator, grading, slots)
        self.ended(self._outcome(live, self.sampling))


def make_actor(stage: Stage, assignment: Assignment, bank: bytes, tasks: dict[str, Task]) -> SandboxActor | PolicyActor:
    """Raises Refused for a model that cannot be loaded as it was pinned."""
    config = stage.config
    if config.agent != "model":
        return {REGRADE: RegradeActor, WARMING: WarmingActor}.get(config.agent, SandboxActor)(stage)
    if config.model.source.type == "served":
        return ServedActor(stage)
    policy, tokenizer = _policy(stage.config, assignment, bank)
    return PolicyActor(stage, policy, tokenizer, tasks)


def _policy(config: EvaluationConfig, assignment: Assignment, bank: bytes) -> tuple[Policy, Any]:
    """Who is evaluated, and its tokenizer."""
    import torch

    from runner.models.loading import ModelError, load_tokenizer

    source = config.model.source
    if source.type == "endpoint":
        try:
            tokenizer = load_tokenizer(Path(source.tokenizer))
        except (ModelError, OSError, ValueError) as error:
            told = f"the tokenizer cannot be loaded on this node: {error}; copy the model's tokenizer there or correct the path"
            raise Refused(told, "/model/source/tokenizer", source.tokenizer) from None
        return RemotePolicy(source.url, source.name, tokenizer, max_length=config.model.max_length), tokenizer
    torch.set_num_threads(config.resources.threads)
    folder = _folder(config, assignment, bank)
    return make_policy(TransformersEngine(), folder, config.model, seed=config.seed), load_tokenizer(folder)


def _folder(config: EvaluationConfig, assignment: Assignment, bank: bytes) -> Path:
    """The weights, as they were pinned."""
    from runner.models.loading import ModelError, resolve_model

    located, source = assignment.model_checkpoint, config.model.source
    locate = (lambda _: located) if located else None
    try:
        found = resolve_model(source, cache=assignment.cache, bank=bank, seed=config.seed, locate_checkpoint=locate)
    except ModelError as error:
        raise Refused(str(error), "/model/source") from None
    if source.type == "checkpoint" and found.revision != source.revision:
        told = f"the checkpoint on this node is {found.revision[:16]}, the evaluation pinned {str(source.revision)[:16]}; evaluate it anew"
        raise Refused(told, "/model/source/revision", source.revision)
    return found.path


async def _all(coroutines: Iterable[Awaitable[None]]) -> None:
    """All of them; the first that fails, or a cancellation, ends the others, and is passed on when they have ended."""
    async with asyncio.TaskGroup() as group:
        for coroutine in coroutines:
            group.create_task(coroutine)
