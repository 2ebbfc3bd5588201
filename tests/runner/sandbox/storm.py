"""Many episodes at once while containers, workers and the engine are killed at random moments. What must hold afterwards: no container,
network or image is left, every episode has a reason, and no reward was invented.

Workers are processes of their own (this module run as a program); they take episodes from a folder and append what came of them to a file.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import docker
from runner.contract.termination import Termination
from runner.sandbox.docker_backend import DockerBackend
from runner.sandbox.episode import EpisodeRunner
from runner.sandbox.images import tag_of
from runner.sandbox.labels import HOUSE, NODE, ROLE
from runner.sandbox.node import Node
from tests.docker_engine import PrivateEngine
from tests.runner.sandbox.tasks import PASSING, Nop, Shell, write_task

WORKERS, PER_WORKER = 2, 4
CHECKOUT = Path(__file__).resolve().parents[3]
EXPECTED = {"right": 1.0, "nop": 0.0}
SLOW_TEST = PASSING.replace("echo graded", "sleep 1")
HOUSE_NAME = "storm"


@dataclass
class Outcome:
    """Episodes by how they ended, what was killed, and what broke a promise."""

    terminations: Counter = field(default_factory=Counter)
    reasons: Counter = field(default_factory=Counter)
    kills: Counter = field(default_factory=Counter)
    graded: int = 0
    broken: list[str] = field(default_factory=list)


# ---------------------------------------------------------------------- a worker


async def work(folder: Path, host: str) -> None:
    """Take episodes until none is left."""
    task = write_task(folder / "task", SLOW_TEST, agent_timeout=60, verifier_timeout=60)
    backend = DockerBackend({HOUSE: HOUSE_NAME, NODE: "here"}, host)
    async with Node(backend, folder / "node", name="here", slots=WORKERS * PER_WORKER, reap_period=2.0) as node:
        runner = EpisodeRunner(node, folder / "jobs")
        await asyncio.gather(*(_take(folder, runner, task) for _ in range(PER_WORKER)))


async def _take(folder: Path, runner: EpisodeRunner, task) -> None:
    for path in sorted((folder / "queue").iterdir()):
        taken = folder / "taken" / f"{os.getpid()}.{path.name}"
        try:
            path.rename(taken)
        except FileNotFoundError:
            continue
        kind = path.name.rpartition("-")[2]
        agent = Shell("echo 42 > /logs/artifacts/answer; sleep 1") if kind == "right" else Nop()
        result = await runner.run(task, agent, episode=path.name)
        done = {"episode": path.name, "termination": result.termination, "reason": result.reason, "score": result.score}
        with open(folder / "results.jsonl", "a") as out:
            out.write(json.dumps(done) + "\n")
        taken.unlink()


# ---------------------------------------------------------------------- the storm


class Storm:
    """`engine` is restarted at will, so it must be nobody else's. Reproducible kills need more than a seed, but the choice of kinds is seeded."""

    def __init__(self, engine: PrivateEngine, folder: Path, episodes: int, seed: int = 0):
        self.engine, self.folder, self.episodes, self.random = engine, folder, episodes, random.Random(seed)
        self.outcome = Outcome()
        self.workers: list[subprocess.Popen] = []
        for name in ("queue", "taken"):
            (folder / name).mkdir(parents=True)
        for index in range(episodes):
            (folder / "queue" / f"{index:04d}-{'right' if index % 2 else 'nop'}").touch()

    def run(self, timeout: float) -> Outcome:
        deadline = time.monotonic() + timeout
        restarts = [self.episodes // 4, self.episodes // 2]
        while self._staff():
            if time.monotonic() > deadline:
                self.outcome.broken.append(f"not done after {timeout:.0f} s")
                break
            time.sleep(self.random.uniform(0.5, 2.5))
            if restarts and self._finished() >= restarts[0]:
                restarts.pop(0)
                self._restart_engine()
            else:
                self._strike()
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self._count()
        asyncio.run(self._look_for_leftovers())
        return self.outcome

    def _staff(self) -> bool:
        """Keep the workers many; False when there is nothing left to do."""
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        if any((self.folder / "queue").iterdir()):
            while len(self.workers) < WORKERS:
                command = [sys.executable, "-m", "tests.runner.sandbox.storm", str(self.folder), self.engine.host]
                log = open(self.folder / "workers.log", "ab")
                self.workers.append(subprocess.Popen(command, cwd=CHECKOUT, stdout=log, stderr=log))
                log.close()
        return bool(self.workers)

    def _finished(self) -> int:
        path = self.folder / "results.jsonl"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def _strike(self) -> None:
        kind = self.random.choices(("agent", "verifier", "worker"), (4, 4, 1))[0]
        if kind == "worker":
            if self.workers and self._finished():
                self.random.choice(self.workers).kill()
                self.outcome.kills[kind] += 1
            return
        with suppress(docker.errors.DockerException, OSError):
            client = docker.APIClient(self.engine.host, version="auto", timeout=20)
            found = client.containers(filters={"label": [f"{HOUSE}={HOUSE_NAME}", f"{ROLE}={kind}"]})
            if found:
                client.kill(self.random.choice(found)["Id"])
                self.outcome.kills[kind] += 1

    def _restart_engine(self) -> None:
        self.engine.stop()
        self.engine.start()
        self.outcome.kills["engine"] += 1

    def _count(self) -> None:
        lines = (self.folder / "results.jsonl").read_text().splitlines()
        results = {item["episode"]: item for item in map(json.loads, lines)}
        # An inquiry finds the worker dead: that is the reason of what it was doing.
        lost = {path.name.partition(".")[2] for path in (self.folder / "taken").iterdir()} - set(results)
        self.outcome.terminations[str(Termination.INFRA_LOST)] += len(lost)
        for episode, item in results.items():
            expected = EXPECTED[episode.rpartition("-")[2]]
            self.outcome.terminations[item["termination"]] += 1
            self.outcome.reasons[str(item["reason"])] += 1
            self.outcome.graded += item["score"] is not None
            if item["score"] not in (None, expected):
                self.outcome.broken.append(f"{episode}: score {item['score']}, could only be {expected}")
            if item["score"] is None and not item["reason"]:
                self.outcome.broken.append(f"{episode}: {item['termination']} without a reason")
            if item["termination"] == Termination.UNKNOWN:
                self.outcome.broken.append(f"{episode}: unclassified")
        if len(results) + len(lost) != self.episodes:
            self.outcome.broken.append(f"{len(results)} results and {len(lost)} lost of {self.episodes}")

    async def _look_for_leftovers(self) -> None:
        """A node that starts sweeps; after that nothing may be left."""
        task = write_task(self.folder / "task", SLOW_TEST, agent_timeout=60, verifier_timeout=60)
        backend = DockerBackend({HOUSE: HOUSE_NAME, NODE: "here"}, self.engine.host)
        async with Node(backend, self.folder / "node", name="here") as node:
            left = await backend.attached({})
            for role in ("agent", "verifier"):
                await backend.remove_image(tag_of(task, role))
            await backend.sweep_images(older_than=-1)
            images = await asyncio.to_thread(backend.engine.images, filters={"label": f"{HOUSE}={HOUSE_NAME}"}, all=True)
            parts = [str(path) for path in self.folder.rglob("*.part")]
            locks = list((node.folder / "live").iterdir())
            alive = [path.name for path in locks if node.live.alive(path.name)]
        for name, found in (("containers or networks", left), ("images", images), ("half-written files", parts), ("live episodes", alive)):
            if found:
                self.outcome.broken.append(f"left: {name}: {found}")


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2]))
