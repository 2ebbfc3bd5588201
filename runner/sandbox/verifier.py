"""Grading: the tests run on what the agent delivered, in a container of their own without a network, and leave a reward file."""

import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from runner.sandbox.base import MIB, ArchiveLimits, Container, ContainerSpec, ExecResult, Mount
from runner.sandbox.labels import ROLE
from runner.sandbox.node import Node
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.rewards import read_rewards, score
from runner.sandbox.streams import printable
from runner.sandbox.task import SandboxTask

OUTPUT_KEPT = 256 << 10
LISTED = 1000
FLOOD = 64 * MIB
# The grader runs as root and gives these up for the code it judges; the agent's container has none of them.
CAPABILITIES = ("SETUID", "SETGID", "KILL")
TESTS = "/tests"
RESULTS = "/logs/verifier"
RESULT_LIMITS = ArchiveLimits(total_bytes=64 * MIB, entries=2000)
# A mounted file's mode may lack the bit, and then its first line is not asked either.
ENTRY = 'if [ -x /tests/test.sh ]; then exec /tests/test.sh; fi; exec "$(command -v bash || command -v sh)" /tests/test.sh'
_CUTS = {
    Reason.START_FAILED: Reason.VERIFIER_START_FAILED,
    Reason.IMAGE_MISSING: Reason.VERIFIER_START_FAILED,
    Reason.OUT_OF_MEMORY: Reason.VERIFIER_OUT_OF_MEMORY,
    Reason.CONTAINER_DIED: Reason.VERIFIER_DIED,
    Reason.EXEC_FAILED: Reason.VERIFIER_START_FAILED,
}


@dataclass(frozen=True)
class Verdict:
    """What the verifier said. `failure` is set, and `score` None, when it said nothing that can be trusted."""

    rewards: Mapping[str, float]
    score: float | None
    failure: SandboxFailure | None = None
    output: str = ""


@dataclass(frozen=True)
class Judging:
    """How long the tests may take (seconds), where the verifier's files go (must not exist yet), and what surrounds the reading of the reward."""

    timeout: float
    folder: Path
    parsing: Callable[[], AbstractAsyncContextManager]


@dataclass(frozen=True)
class Delivered:
    """An artifact on this node: where it lay in the agent's container and lies in the verifier's, and where it is kept."""

    path: str
    kept: Path


async def verify(
    node: Node, task: SandboxTask, image: str, delivered: Sequence[Delivered], labels: Mapping[str, str], judging: Judging
) -> Verdict:
    """Grade in a separate container. Failures are in the verdict."""
    try:
        async with _container(node, task, image, delivered, labels) as container:
            return await judge(container, task, judging)
    except SandboxFailure as error:
        return Verdict({}, None, _renamed(error))


def _renamed(error: SandboxFailure) -> SandboxFailure:
    return SandboxFailure(_CUTS.get(error.reason, error.reason), str(error))


@asynccontextmanager
async def _container(node: Node, task: SandboxTask, image: str, delivered: Sequence[Delivered], labels: Mapping[str, str]):
    spec = task.verifier
    mounts = [Mount(item.kept, item.path) for item in delivered]
    if task.tests is not None:
        mounts.append(Mount(task.tests, TESTS))
    container = await node.backend.create(
        ContainerSpec(
            image=image,
            limits=spec.limits,
            network=spec.network,
            labels={**labels, ROLE: "verifier"},
            mounts=mounts,
            env=spec.env,
            workdir=spec.workdir,
            folders=(RESULTS,),
            read_only=spec.read_only,
            writable=(RESULTS, *spec.writable),
            capabilities=CAPABILITIES,
        )
    )
    try:
        yield container
    finally:
        await container.remove()


async def judge(container: Container, task: SandboxTask, judging: Judging) -> Verdict:
    """Run the tests in this container and read the reward."""
    timeout, folder = judging.timeout, judging.folder
    try:
        result = await container.exec(["sh", "-c", ENTRY], timeout=timeout, output_cap=OUTPUT_KEPT, flood_limit=FLOOD)
    except SandboxFailure as error:
        return Verdict({}, None, _renamed(error))
    output = result.output
    rewards: dict[str, float] = {}
    try:
        _require_end(result, timeout)
        async with judging.parsing():
            rewards = await read_rewards(container)
        verdict = Verdict(rewards, score(rewards, task.reward_key), output=output)
    except SandboxFailure as error:
        verdict = Verdict(rewards, None, _renamed(await _blame_memory(container, error)), output)
    if result.exit_code is not None:
        await _keep(container, folder)
    _write_output(folder, output)
    return verdict


def _require_end(result: ExecResult, timeout: float) -> None:
    if result.timed_out:
        message = f"the verifier did not end within {timeout:.0f} s; raise verifier.timeout_sec or mend the grader"
        raise SandboxFailure(Reason.VERIFIER_TIMEOUT, message)
    if result.flooded:
        raise SandboxFailure(Reason.VERIFIER_OUTPUT_FLOOD, f"the verifier printed over {FLOOD >> 20} MiB; a grader prints a report")


async def _blame_memory(container: Container, error: SandboxFailure) -> SandboxFailure:
    """A grader whose solver was killed for its memory writes no reward, or waits for ever: name the cause, not the symptom."""
    with suppress(SandboxFailure):
        if await container.out_of_memory():
            message = f"the verifier ran out of memory ({error}); raise verifier.environment.memory_mb"
            return SandboxFailure(Reason.VERIFIER_OUT_OF_MEMORY, message)
    return error


async def _keep(container: Container, folder: Path) -> None:
    """The report is evidence, not the grade: that it cannot be taken is no failure."""
    with suppress(SandboxFailure):
        await container.get(RESULTS, folder, RESULT_LIMITS)


def _write_output(folder: Path, output: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "test-stdout.txt"
    if not target.is_symlink():
        target.write_text(output, errors="replace")


def delivered_files(delivered: Sequence[Delivered]) -> list[str]:
    """Paths of the files that were delivered, as the agent's container had them; at most LISTED of them."""
    found = []
    for item in delivered:
        inside = sorted(path for path in item.kept.rglob("*") if path.is_file()) if item.kept.is_dir() else [item.kept]
        found += [printable(posixpath.normpath(posixpath.join(item.path, path.relative_to(item.kept)))) for path in inside]
    return found[:LISTED]
