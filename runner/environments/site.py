"""What a rollout worker needs to run container episodes on its node: the task files, the engine, and folders."""

import hashlib
import os
import re
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from runner.assignment import Assignment
from runner.contract.repair import RepairPayload
from runner.contract.run_config import HarborEnvironment as Settings
from runner.repair.cache import TaskCache, TaskUnavailable, http_fetch
from runner.reporting.replay import read_connection
from runner.sandbox.base import Backend, Health, Network
from runner.sandbox.episode import Budgets, EpisodeRunner
from runner.sandbox.labels import HOUSE, NODE
from runner.sandbox.node import Node
from runner.sandbox.reasons import SandboxFailure
from runner.sandbox.results import PhaseEvent
from runner.sandbox.task import SandboxTask, load_task

BUILT_HERE = re.compile(r"^FROM\s+(assay-sandbox-base\S*)", re.MULTILINE)
SLOW_SECONDS, MOST_DANGLING = 20.0, 2000


def house_name(storage: Path) -> str:
    """What this house's containers are labelled with: the same in every process that shares its storage."""
    return hashlib.sha256(str(storage.resolve()).encode()).hexdigest()[:12]


def node_name() -> str:
    """What this node's containers are labelled with. ASSAY_NODE_NAME tells nodes apart that share a machine."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", os.environ.get("ASSAY_NODE_NAME") or socket.gethostname())[:60] or "node"


def make_backend(name: str, house: str) -> Backend:
    """The engine of that name; the module of the other is not imported."""
    labels = {HOUSE: house, NODE: node_name()}
    if name == "docker":
        from runner.sandbox.docker_backend import DockerBackend

        return DockerBackend(labels)
    from runner.sandbox.process_backend import ProcessBackend

    return ProcessBackend(labels)


def site_of(assignment: Assignment, on_phase: Callable[[PhaseEvent], None] = lambda event: None) -> "Site":
    """The site of one worker of this attempt. Task files come from the control plane, where the attempt has one."""
    config, connection = assignment.config, read_connection(assignment.folder)
    fetch = http_fetch(connection.tasks_url, connection.token) if connection else None
    return Site(
        settings=config.environment,
        tasks=TaskCache(assignment.cache / "tasks", fetch),
        jobs=assignment.folder / "jobs",
        house=house_name(assignment.storage.parent),
        attempt=assignment.attempt,
        workers=config.resources.rollout_workers,
        on_phase=on_phase,
    )


@dataclass
class Site:
    """`tasks` gives the task folders by digest, `jobs` takes a folder an episode; `workers` is how many processes share the node,
    `on_phase` hears of every boundary that an episode passes. Open it around episodes: `async with site.open(): …`. `keep_images` leaves
    a task's images on the node for its next episode.
    """

    settings: Settings
    tasks: TaskCache
    jobs: Path
    house: str
    attempt: str
    workers: int = 1
    on_phase: Callable[[PhaseEvent], None] = lambda event: None
    keep_images: bool = True
    runner: EpisodeRunner | None = None

    @property
    def budgets(self) -> Budgets:
        settings = self.settings
        return Budgets(
            build_multiplier=settings.build_timeout_multiplier,
            agent=settings.task_timeout_sec,
            agent_memory_mb=settings.memory_mb_override,
            verifier_memory_mb=settings.verifier_memory_mb_override,
        )

    @property
    def slots(self) -> int:
        """Episodes at once on this node, over all its workers."""
        return self.settings.max_concurrent_episodes * self.workers

    @property
    def node_folder(self) -> Path:
        """Locks of this house on this node. Node-local on purpose: a lock on a shared disk would bind other nodes."""
        return Path(os.environ.get("ASSAY_NODE_FOLDER") or tempfile.gettempdir()) / f"assay-node-{self.house}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Node]:
        """The engine answers, what dead episodes left is swept, and the reaper runs."""
        backend = make_backend(self.settings.backend, self.house)
        async with Node(backend, self.node_folder, name=node_name(), slots=self.slots) as node:
            options = {"budgets": self.budgets, "on_phase": self.on_phase, "regrade_once": self.settings.regrade}
            options["keep_images"] = self.keep_images
            self.runner = EpisodeRunner(node, self.jobs, **options)
            try:
                yield node
            finally:
                self.runner = None

    def load(self, payload: RepairPayload) -> SandboxTask:
        """The task as these settings want it: its network closed unless they open it, its verifier with at least their time.

        Raises TaskUnavailable, or SandboxFailure for a folder that is no task.
        """
        task = load_task(self.tasks.folder(payload.task_digest), payload.reward_key)
        network = Network.PUBLIC if self.settings.network == "public" else Network.NONE
        timeout = max(task.verifier_timeout, float(self.settings.verifier_timeout_sec))
        return replace(task, agent=replace(task.agent, network=network), verifier_timeout=timeout)

    async def problems(self, digests: Sequence[str]) -> list[str]:
        """Why episodes on these tasks would fail on this node, each with its remedy; the task files are fetched as a side effect."""
        folders, found = [], []
        for digest in digests:
            try:
                folders.append(self.tasks.folder(digest))
            except TaskUnavailable as gone:
                found.append(str(gone))
        try:
            async with self.open() as node:
                found += _engine_problems(node.name, await node.health())
                if not found and self.settings.backend == "docker":
                    found += await _missing_images(node, folders)
                    if self.settings.network == "public":
                        found += await _missing_networks(node, self.slots)
        except SandboxFailure as failure:
            found.append(f"node {node_name()}: {failure.reason}: {failure}")
        return found


async def _missing_images(node: Node, folders: Sequence[Path]) -> list[str]:
    """Base images that no registry has: a script of this project builds them."""
    needed = {found for folder in folders for file in folder.glob("*/Dockerfile") for found in BUILT_HERE.findall(file.read_text())}
    missing = [image for image in sorted(needed) if await node.backend.image(image) is None]
    return [f"node {node.name} has no image {image}; run docker/sandbox-base.sh there" for image in missing]


async def _missing_networks(node: Node, slots: int) -> list[str]:
    """Each episode with a network takes one of the engine's, and its address pool may hold too few."""
    free = await node.backend.free_networks()
    if free >= slots:
        return []
    return [
        f"the container engine of node {node.name} has {free} networks left and {slots} episodes at once take {slots}; give it small pools "
        "(default-address-pools, /24 slices of 172.16.0.0/12) and restart it while no container runs, run fewer episodes at once, or take "
        "the network away"
    ]


def _engine_problems(node: str, health: Health) -> list[str]:
    if health.reason:
        return [f"the container engine of node {node} is not well ({health.reason}: {health.detail}); restart it, or take the node out"]
    found = []
    if (health.list_seconds or 0.0) > SLOW_SECONDS:
        found.append(f"the container engine of node {node} takes {health.list_seconds:.0f} s to list its containers; restart it")
    if (health.dangling_images or 0) > MOST_DANGLING:
        found.append(
            f"node {node} holds {health.dangling_images} images without a tag; remove them in batches before they wedge the engine"
        )
    return found
