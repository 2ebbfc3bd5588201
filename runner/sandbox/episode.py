"""One episode in containers, phase by phase: admit, build, act, collect, verify, tear down, release.

    result = await EpisodeRunner(node, jobs).run(task, agent, episode="e1", attempt="a1")

or, for an environment that acts itself, `async with runner.open(task, …) as episode` and the phases one by one.
"""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner.contract.termination import HANDLING, Termination
from runner.sandbox.agent import Agent, Budget
from runner.sandbox.base import DEFAULT_ARCHIVE, MIB, ArchiveLimits, Container, ContainerSpec
from runner.sandbox.images import ensure_image, tag_of
from runner.sandbox.labels import ATTEMPT, EPISODE, ROLE
from runner.sandbox.locks import Held
from runner.sandbox.node import Node
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.results import EpisodeResult, Phase, PhaseEvent, PhaseTime
from runner.sandbox.streams import printable
from runner.sandbox.task import Healthcheck, SandboxTask
from runner.sandbox.verifier import TESTS, Delivered, Judging, Verdict, delivered_files, judge, verify

FOLDERS = ("/logs/agent", "/logs/artifacts", "/logs/verifier")
AGENT_LOGS = ArchiveLimits(total_bytes=64 * MIB, entries=2000)
TEARDOWN_SECONDS = 180.0
# What an agent can hold up. Builds and verifiers have limits of their own, and teardown is never cut short by what came before.
BACKSTOPPED = (Phase.HEALTHCHECK, Phase.AGENT_SETUP, Phase.AGENT_EXECUTION, Phase.COLLECT)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Budgets:
    """Seconds a phase may take. `agent` and `agent_memory_mb` replace the task's own when set; the backstop is what the whole may take beyond
    its agent and verifier."""

    admit: float = 24 * 3600.0
    build_multiplier: float = 2.0
    agent_setup: float = 360.0
    agent: float | None = None
    agent_default: float = 3600.0
    agent_multiplier: float = 1.0
    agent_memory_mb: int | None = None
    verifier_multiplier: float = 1.0
    verifier_memory_mb: int | None = None
    collect: float = 300.0
    backstop: float = 600.0
    artifacts: ArchiveLimits = DEFAULT_ARCHIVE

    def agent_seconds(self, task: SandboxTask) -> float:
        return (self.agent or task.agent_timeout or self.agent_default) * self.agent_multiplier

    def verifier_seconds(self, task: SandboxTask) -> float:
        return task.verifier_timeout * self.verifier_multiplier

    def applied(self, task: SandboxTask) -> SandboxTask:
        """The task with these memory limits; the verifier's is its own, a solver killed for memory would read as a wrong answer."""
        agent, verifier = task.agent, task.verifier
        if self.agent_memory_mb:
            agent = replace(agent, limits=replace(agent.limits, memory_mb=self.agent_memory_mb))
        if self.verifier_memory_mb and verifier:
            verifier = replace(verifier, limits=replace(verifier.limits, memory_mb=self.verifier_memory_mb))
        return replace(task, agent=agent, verifier=verifier)


@dataclass
class EpisodeRunner:
    """`jobs` takes a folder per episode. `keep_images` leaves a task's images for its next episode. `build_args` go to every build."""

    node: Node
    jobs: Path
    budgets: Budgets = field(default_factory=Budgets)
    on_phase: Callable[[PhaseEvent], None] = lambda event: None
    regrade_once: bool = True
    keep_images: bool = True
    build_args: Mapping[str, str] = field(default_factory=dict)

    async def run(self, task: SandboxTask, agent: Agent, *, episode: str, attempt: str = "") -> EpisodeResult:
        """The whole episode. What fails is in the result, by name; only a cancellation is raised, after teardown."""
        current = Episode(self, self.budgets.applied(task), episode, attempt)
        result = None
        try:
            try:
                await current.begin()
                await current.setup(agent)
                result = await current.grade(await current.act(agent))
            finally:
                await current.end()
        except SandboxFailure as error:
            result = current.result(error.termination, failure=error)
        except Exception as error:
            _log.exception("episode %s", episode)
            result = current.result(Termination.UNKNOWN, failure=SandboxFailure(Reason.UNCLASSIFIED, f"{type(error).__name__}: {error}"))
        return replace(result, phases=tuple(current.phases))

    @asynccontextmanager
    async def open(self, task: SandboxTask, *, episode: str, attempt: str = "") -> AsyncIterator["Episode"]:
        """An episode whose container is ready; torn down and released at the end of the block."""
        current = Episode(self, self.budgets.applied(task), episode, attempt)
        try:
            await current.begin()
            yield current
        finally:
            await current.end()

    async def regrade(self, task: SandboxTask, artifacts: Path, *, episode: str, attempt: str = "") -> EpisodeResult:
        """Grade saved artifacts again in a fresh verifier container; the caller keeps what it knew of the first grading."""
        current = Episode(self, self.budgets.applied(task), episode, attempt)
        try:
            try:
                await current.admit()
                current.delivered = saved_artifacts(artifacts.resolve())
                verdict = await current.verify(Phase.REGRADE, current.delivered)
            finally:
                await current.end()
            termination = Termination.FINISHED if verdict.failure is None else verifier_termination(verdict.failure)
            result = current.result(termination, verdict=verdict, failure=verdict.failure)
        except SandboxFailure as error:
            result = current.result(error.termination, failure=error)
        return replace(result, regraded=True, artifacts=artifacts, phases=tuple(current.phases))


def verifier_termination(failure: SandboxFailure) -> Termination:
    """An episode whose grading failed keeps its turns, whatever it was that failed."""
    timeout = failure.reason is Reason.VERIFIER_TIMEOUT
    return Termination.VERIFIER_TIMEOUT if timeout else Termination.VERIFIER_ERROR


def saved_artifacts(folder: Path) -> list[Delivered]:
    """What an earlier episode kept, by its manifest. Raises SandboxFailure when there is none."""
    try:
        entries = json.loads((folder / "manifest.json").read_text())
        return [Delivered(entry["source"], folder / entry["destination"]) for entry in entries if entry["status"] in ("ok", "empty")]
    except (OSError, ValueError, KeyError, TypeError):
        raise SandboxFailure(Reason.PATH_MISSING, f"{folder}: no readable manifest.json; run the episode again") from None


class Episode:
    """The phases of one episode, in the order they are meant to be called. Every one appends to `phases` and reports its boundaries."""

    def __init__(self, runner: EpisodeRunner, task: SandboxTask, episode: str, attempt: str):
        self.runner, self.task, self.episode, self.attempt = runner, task, episode, attempt
        self.node, self.budgets = runner.node, runner.budgets
        self.labels = {EPISODE: episode, ATTEMPT: attempt}
        short = task.name.rpartition("/")[2][:32]
        self.folder = Path(runner.jobs).resolve() / f"{short}__{secrets.token_hex(4)}"
        self.phases: list[PhaseTime] = []
        self.container: Container | None = None
        self.failure: SandboxFailure | None = None
        self.agent_termination: Termination | None = None
        self.delivered: list[Delivered] = []
        self._locks: list[Held] = []
        self._deadline: float | None = None

    # ------------------------------------------------------------------ phases

    @asynccontextmanager
    async def phase(self, phase: Phase, seconds: float | None = None, late: Reason = Reason.BACKSTOP) -> AsyncIterator[None]:
        """Report both boundaries; end the block after `seconds` with the reason `late`, or at the episode's backstop."""
        started, clock = time.time(), time.monotonic()
        left = max(0.0, self._deadline - clock) if self._deadline and phase in BACKSTOPPED else None
        limits = [limit for limit in (seconds, left) if limit is not None]
        reason = None
        self.runner.on_phase(PhaseEvent(self.episode, self.attempt, phase, started))
        try:
            async with asyncio.timeout(min(limits) if limits else None) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            reason = late if seconds is not None and (left is None or seconds <= left) else Reason.BACKSTOP
            raise SandboxFailure(reason, f"{phase}: not done after {min(limits):.0f} s") from None
        except SandboxFailure as error:
            reason = error.reason
            raise
        except asyncio.CancelledError:
            reason = Reason.CANCELLED
            raise
        finally:
            took = time.monotonic() - clock
            self.phases.append(PhaseTime(phase, started, took))
            self.runner.on_phase(PhaseEvent(self.episode, self.attempt, phase, time.time(), took, reason))

    async def begin(self) -> None:
        """Until the agent's container is ready."""
        await self.admit()
        async with self.phase(Phase.ENV_SETUP):
            await self._start_container()
        self._deadline = time.monotonic() + sum(
            (self.budgets.agent_seconds(self.task), self.budgets.verifier_seconds(self.task), self.budgets.backstop)
        )
        if check := self.task.agent.healthcheck:
            async with self.phase(Phase.HEALTHCHECK):
                await _until_healthy(self.container, check)

    async def admit(self) -> None:
        """A place on this node, and the mark that this episode lives."""
        async with self.phase(Phase.ADMIT):
            self._locks.append(self.node.live.hold(self.episode))
            try:
                self._locks.append(await self.node.gate.enter(self.budgets.admit))
            except TimeoutError:
                message = f"no slot on node {self.node.name} within {self.budgets.admit:.0f} s; run fewer episodes at once"
                raise SandboxFailure(Reason.ADMIT_TIMEOUT, message) from None

    async def _start_container(self) -> None:
        spec = self.task.agent
        timeout = spec.build_timeout * self.budgets.build_multiplier
        image = await ensure_image(self.node, self.task, spec, "agent", timeout, self.runner.build_args)
        self.container = await self.node.backend.create(
            ContainerSpec(
                image=image,
                limits=spec.limits,
                network=spec.network,
                labels={**self.labels, ROLE: "agent"},
                env=spec.env,
                workdir=spec.workdir,
                folders=FOLDERS,
                read_only=spec.read_only,
                writable=("/logs", *spec.writable),
            )
        )

    async def setup(self, agent: Agent) -> None:
        async with self.phase(Phase.AGENT_SETUP, self.budgets.agent_setup, Reason.AGENT_SETUP_TIMEOUT):
            await agent.setup(self.container, self.task)

    async def act(self, agent: Agent) -> Termination:
        """The agent's own time. How it ended is returned; what failed is kept, so that its deliveries can still be taken."""
        seconds = self.budgets.agent_seconds(self.task)
        try:
            async with self.phase(Phase.AGENT_EXECUTION, seconds, Reason.AGENT_TIMEOUT):
                return await agent.run(self.container, self.task, Budget(seconds))
        except SandboxFailure as error:
            self.failure = error
            # The outer guard fired while the agent had turns to its name: its time was up.
            return Termination.AGENT_TIMEOUT if error.reason is Reason.BACKSTOP else error.termination
        except Exception as error:
            _log.exception("episode %s: agent %s", self.episode, agent.name)
            self.failure = SandboxFailure(Reason.UNCLASSIFIED, f"agent {agent.name}: {type(error).__name__}: {error}")
            return Termination.UNKNOWN

    async def grade(self, termination: Termination) -> EpisodeResult:
        """Take what was delivered, judge it, judge it once more when the verifier failed. The agent's own end outranks the verifier's."""
        self.agent_termination = termination
        try:
            await self._collect()
        except SandboxFailure as error:
            ended = error.termination if termination is Termination.FINISHED else termination
            return self.result(ended, failure=self.failure or error)
        if HANDLING[termination].reward == "null":
            return self.result(termination, failure=self.failure)
        verdict = await self._verdict()
        first = verdict.failure
        regraded = False
        if first and self.task.separate and self.runner.regrade_once and first.reason is not Reason.CONTEXT_MISSING:
            verdict, regraded = await self._regraded(verdict)
        seen = {"regraded": regraded, "verifier_reason": first.reason if first else None}
        if verdict.failure:
            return replace(self._ungraded(self.failure or verdict.failure, verdict), **seen)
        return replace(self.result(termination, verdict=verdict, failure=self.failure or first), **seen)

    def _ungraded(self, failure: SandboxFailure, verdict: Verdict) -> EpisodeResult:
        ended = self.agent_termination
        termination = verifier_termination(failure) if ended is Termination.FINISHED else ended
        return self.result(termination, verdict=verdict, failure=failure)

    async def _regraded(self, first: Verdict) -> tuple[Verdict, bool]:
        try:
            return await self.verify(Phase.REGRADE, self.delivered), True
        except SandboxFailure:
            return first, True

    async def _collect(self) -> None:
        async with self.phase(Phase.COLLECT, self.budgets.collect, Reason.COLLECT_TIMEOUT):
            if self.task.separate:
                # Frozen, so that nothing is swapped while it is read; a container that died of something is read as it lies.
                with suppress(SandboxFailure):
                    await self.container.freeze()
            await self._take_artifacts()
            with suppress(SandboxFailure):
                await self.container.get("/logs/agent", self.folder / "agent", AGENT_LOGS)
            if self.task.separate:
                await self.container.remove()

    async def _take_artifacts(self) -> None:
        root, manifest = self.folder / "artifacts", []
        for path in self.task.artifacts:
            kept = root / path.strip("/")
            entry = {"source": path, "destination": path.strip("/"), "type": None, "status": "failed", "service": "agent", "exclude": []}
            manifest.append(entry)
            try:
                await self.container.get(path, kept, self.budgets.artifacts)
            except SandboxFailure as error:
                if error.reason is not Reason.PATH_MISSING:
                    _write_manifest(root, manifest)
                    raise
                continue
            self.delivered.append(Delivered(path, kept))
            full = kept.is_file() or any(kept.iterdir())
            entry.update(type="directory" if kept.is_dir() else "file", status="ok" if full else "empty")
        _write_manifest(root, manifest)

    async def _verdict(self) -> Verdict:
        if self.task.separate:
            return await self.verify(Phase.VERIFIER, self.delivered)
        async with self.phase(Phase.VERIFIER):
            return await self._verify_in_place()

    async def verify(self, phase: Phase, delivered: list[Delivered]) -> Verdict:
        """A fresh verifier container over delivered artifacts."""
        async with self.phase(phase):
            try:
                image = await self._verifier_image()
            except SandboxFailure as error:
                built = error.reason in (Reason.BUILD_FAILED, Reason.BUILD_TIMEOUT)
                return Verdict({}, None, SandboxFailure(Reason.VERIFIER_BUILD_FAILED if built else error.reason, str(error)))
            name = "verifier" if phase is Phase.VERIFIER else "regrade"
            timeout = self.budgets.verifier_seconds(self.task)
            return await verify(self.node, self.task, image, delivered, self.labels, self._judging(timeout, name))

    async def _verifier_image(self) -> str:
        spec = self.task.verifier
        role = "agent" if spec.folder == self.task.agent.folder else "verifier"
        timeout = spec.build_timeout * self.budgets.build_multiplier
        return await ensure_image(self.node, self.task, spec, role, timeout, self.runner.build_args)

    async def _verify_in_place(self) -> Verdict:
        """Shared mode: the tests enter the agent's own container after every process of the agent's was ended there."""
        await self.container.restart()
        await self.container.exec(["rm", "-rf", TESTS, "/logs/verifier"], timeout=30)
        await self.container.put("/logs/verifier", {})
        await self.container.put(TESTS, self.task.tests)
        timeout = self.budgets.verifier_seconds(self.task)
        return await judge(self.container, self.task, self._judging(timeout, "verifier"))

    def _judging(self, timeout: float, name: str) -> Judging:
        return Judging(timeout, self.folder / name, lambda: self.phase(Phase.PARSE_REWARD))

    # ------------------------------------------------------------------ end

    async def end(self) -> None:
        """Teardown, then the slot: the next episode meets a clean node. Runs to its end even when the caller is cancelled again."""
        await _finish(asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        try:
            async with self.phase(Phase.TEARDOWN, TEARDOWN_SECONDS):
                await self._tear_down()
        except Exception as error:  # what the episode came to stands; what is left is the reaper's
            _log.warning("episode %s: teardown: %s", self.episode, error)
        finally:
            async with self.phase(Phase.RELEASE):
                while self._locks:
                    held = self._locks.pop()
                    held.release(remove=not self._locks)

    async def _tear_down(self) -> None:
        """By handle and then by label: what a cancelled call made has a label but no handle."""
        if self.container:
            await self.container.remove()
        left = await self.node.backend.remove_labelled({EPISODE: self.episode})
        if left.failed:
            _log.warning("episode %s: left to the reaper: %s", self.episode, "; ".join(left.failed))
        if not self.runner.keep_images:
            for role in ("agent", "verifier"):
                await self.node.backend.remove_image(tag_of(self.task, role))

    def result(self, termination: Termination, *, verdict: Verdict | None = None, failure: SandboxFailure | None = None) -> EpisodeResult:
        artifacts = self.folder / "artifacts"
        return EpisodeResult(
            episode=self.episode,
            attempt=self.attempt,
            task=self.task.name,
            node=self.node.name,
            isolation=self.node.backend.isolation,
            verifier_mode="separate" if self.task.separate else "shared",
            termination=termination,
            agent_termination=self.agent_termination,
            reason=failure.reason if failure else None,
            detail=printable(str(failure)) if failure else "",
            rewards=dict(verdict.rewards) if verdict else {},
            score=verdict.score if verdict and HANDLING[termination].reward != "null" else None,
            verifier_output=verdict.output if verdict else "",
            folder=self.folder,
            artifacts=artifacts if artifacts.is_dir() else None,
            delivered=tuple(delivered_files(self.delivered)),
            phases=tuple(self.phases),
        )


async def _until_healthy(container: Container, check: Healthcheck) -> None:
    began, failures = time.monotonic(), 0
    while True:
        result = await container.exec(["sh", "-c", check.command], timeout=check.timeout)
        if result.exit_code == 0:
            return
        starting = time.monotonic() - began < check.start_period
        failures += not starting
        if failures >= check.retries:
            message = f"{check.command!r} failed {failures} times: {result.output[-300:]}"
            raise SandboxFailure(Reason.HEALTHCHECK_FAILED, message)
        await asyncio.sleep(check.start_interval if starting else check.interval)


async def _finish(task: asyncio.Future) -> None:
    """Await to the end; a cancellation meanwhile is passed on afterwards."""
    cancelled = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled:
        raise cancelled


def _write_manifest(folder: Path, entries: list[dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / ".manifest.part"
    part.write_text(json.dumps(entries, indent=1))
    part.replace(folder / "manifest.json")
