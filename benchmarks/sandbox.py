"""What an episode in containers costs beyond the task's own work, beside the `docker` command doing the same steps by hand.

Both make an agent's container with the same limits, run one command in it, freeze it, take its artifacts and logs, remove it; make a verifier's
container with the artifacts mounted read-only, run its tests, take the reward and the report, remove it. The task's work is one `echo`, so that
what is measured is overhead. The two take turns, each episode of ours next to one by hand, on the same images and the same engine.
"""

import asyncio
import contextlib
import io
import secrets
import statistics
import subprocess
import tarfile
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import docker
from benchmarks.record import publish, record
from runner.agents.anchors import Nop
from runner.contract.termination import Termination
from runner.sandbox.docker_backend import DockerBackend
from runner.sandbox.episode import FOLDERS, EpisodeRunner
from runner.sandbox.images import tag_of
from runner.sandbox.labels import HOUSE, NODE
from runner.sandbox.node import Node
from runner.sandbox.results import Phase
from runner.sandbox.task import SandboxTask, load_task
from runner.sandbox.verifier import CAPABILITIES, ENTRY
from tests.runner.sandbox import scratch

EPISODES, PER_LEVEL, LEVELS = 40, 24, (1, 4, 8)
TARGET = 1.15
DELIVER = "echo 42 > /logs/artifacts/answer"
VERIFIER = "[ -s /logs/artifacts/answer ] && echo 1 > /logs/verifier/reward.txt"
MANIFEST = """[task]
name = "bench/echo"
[environment]
cpus = 1
memory_mb = 256
network_mode = "no-network"
[verifier.environment]
cpus = 1
memory_mb = 256
"""


class Echo(Nop):
    """Delivers one line."""

    async def run(self, container, task, budget) -> Termination:
        await container.exec(["sh", "-c", DELIVER], timeout=60)
        return Termination.FINISHED


def main() -> None:
    publish(asyncio.run(measure()))


async def measure(episodes: int = EPISODES, per_level: int = PER_LEVEL) -> dict:
    """Target: at most 1.15 times the steps by hand, at the median and at p95."""
    with tempfile.TemporaryDirectory(prefix="assay-bench-") as place:
        async with prepared(Path(place)) as (runner, task):
            ours, by_hand = await side_by_side(runner, task, episodes, Path(place))
            rates = {str(level): await rate(runner, task, level, per_level) for level in LEVELS}
            version = (await runner.node.health()).version
    found = {"ours": percentiles([seconds for seconds, _ in ours]), "docker by hand": percentiles(by_hand)}
    over = {name: round(found["ours"][name] / found["docker by hand"][name], 3) for name in found["ours"]}
    also = {
        **found,
        "ours over by hand": over,
        "episodes a minute at concurrency": rates,
        "phases_ms": phases([result for _, result in ours]),
    }
    settings = {"episodes": episodes, "episodes_per_level": per_level, "engine": version, "target": f"at most {TARGET} times, p50 and p95"}
    return record("sandbox", found["ours"]["p50_ms"], found["docker by hand"]["p50_ms"], "ms, p50", settings, also, lower_is_better=True)


@asynccontextmanager
async def prepared(folder: Path) -> AsyncIterator[tuple[EpisodeRunner, SandboxTask]]:
    """A node of its own on this machine's engine, and a task whose two images are built; both are gone afterwards."""
    house = f"bench-{secrets.token_hex(4)}"
    image = f"assay-bench-scratch:{house}"
    await asyncio.to_thread(import_base, image)
    task = write_task(folder / "task", image)
    async with Node(DockerBackend({HOUSE: house, NODE: "bench"}), folder / "node", name="bench", slots=max(LEVELS)) as node:
        try:
            runner = EpisodeRunner(node, folder / "jobs")
            await episode(runner, task)
            yield runner, task
        finally:
            for tag in (tag_of(task, "agent"), tag_of(task, "verifier"), image):
                await node.backend.remove_image(tag)


def import_base(image: str) -> None:
    repository, _, tag = image.partition(":")
    docker.from_env().api.import_image_from_data(scratch.rootfs(), repository=repository, tag=tag)


def write_task(folder: Path, image: str) -> SandboxTask:
    files = {
        "task.toml": MANIFEST,
        "environment/Dockerfile": f"FROM {image}\n",
        "tests/Dockerfile": f"FROM {image}\nCOPY test.sh /tests/test.sh\n",
        "tests/test.sh": f"#!/bin/sh\n{VERIFIER}\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return load_task(folder)


async def episode(runner: EpisodeRunner, task: SandboxTask):
    """One of ours, which must have gone well."""
    result = await runner.run(task, Echo(), episode=secrets.token_hex(6))
    if result.score != 1.0:
        raise RuntimeError(f"the benchmark's own episode failed: {result.reason}: {result.detail}")
    return result


async def side_by_side(runner: EpisodeRunner, task: SandboxTask, count: int, folder: Path) -> tuple[list, list[float]]:
    """Seconds of each episode; ours come with their results."""
    tags = tag_of(task, "agent"), tag_of(task, "verifier")
    ours, by_hand = [], []
    for index in range(count):
        for ours_now in (True, False) if index % 2 else (False, True):
            started = time.monotonic()
            if ours_now:
                result = await episode(runner, task)
                ours.append((time.monotonic() - started, result))
            else:
                await asyncio.to_thread(episode_by_hand, *tags, folder / "hand" / str(index))
                by_hand.append(time.monotonic() - started)
    return ours, by_hand


def episode_by_hand(agent_image: str, verifier_image: str, folder: Path) -> None:
    """The same steps with the command, one after the other."""
    folder.mkdir(parents=True)
    with removed(started(agent_image, FOLDERS, [])) as agent:
        run("exec", agent, "sh", "-c", DELIVER)
        run("pause", agent)
        run("cp", f"{agent}:/logs/artifacts", str(folder / "artifacts"))
        run("cp", f"{agent}:/logs/agent", str(folder / "agent"))
    capabilities = [f"--cap-add={name}" for name in CAPABILITIES]
    mount = f"--mount=type=bind,source={folder / 'artifacts'},target=/logs/artifacts,readonly"
    with removed(started(verifier_image, ("/logs/verifier",), [*capabilities, mount])) as verifier:
        run("exec", verifier, "sh", "-c", ENTRY)
        run("cp", f"{verifier}:/logs/verifier/reward.txt", str(folder / "reward.txt"))
        run("cp", f"{verifier}:/logs/verifier", str(folder / "verifier"))
    if float((folder / "reward.txt").read_text()) != 1.0:
        raise RuntimeError("the episode by hand was not graded 1")


def started(image: str, folders: tuple[str, ...], options: list[str]) -> str:
    limits = [
        "--network=none",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--pids-limit=512",
        "--memory=256m",
        "--memory-swap=256m",
    ]
    limits += ["--cpus=1", "--init", "--ipc=private", "--log-driver=none", "--ulimit=core=0", f"--ulimit=fsize={4 << 30}"]
    container = run("create", *limits, *options, "--entrypoint=sleep", image, "infinity").decode().strip()
    run("cp", "-", f"{container}:/", stdin=folders_tar(folders))
    run("start", container)
    return container


@contextlib.contextmanager
def removed(container: str):
    try:
        yield container
    finally:
        run("rm", "--force", "--volumes", container)


def folders_tar(folders: tuple[str, ...]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name in ("logs", *(folder.lstrip("/") for folder in folders)):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
    return out.getvalue()


def run(*arguments: str, stdin: bytes | None = None) -> bytes:
    return subprocess.run(["docker", *arguments], input=stdin, capture_output=True, check=True).stdout


async def rate(runner: EpisodeRunner, task: SandboxTask, concurrency: int, count: int) -> float:
    """Whole episodes a minute, `concurrency` at a time."""
    places = asyncio.Semaphore(concurrency)

    async def one() -> None:
        async with places:
            await episode(runner, task)

    started = time.monotonic()
    await asyncio.gather(*(one() for _ in range(count)))
    return round(60 * count / (time.monotonic() - started), 1)


def percentiles(seconds: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=20, method="inclusive")
    return {"p50_ms": round(1000 * statistics.median(seconds), 1), "p95_ms": round(1000 * cuts[-1], 1)}


def phases(results: list) -> dict[str, float]:
    """Median of each phase in ms; the reading of the reward is part of the verifier's."""
    spent: Callable[[Phase], float] = lambda phase: statistics.median(result.seconds(phase) for result in results)
    return {str(phase): round(1000 * spent(phase), 1) for phase in Phase if spent(phase)}
