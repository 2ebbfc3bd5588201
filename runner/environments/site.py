"""What a rollout worker needs to run container episodes on its node: the task files, the engine, and folders."""

import hashlib
import os
import re
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.assignment import Assignment
from runner.contract.run_config import HarborEnvironment as Settings
from runner.repair.cache import TaskCache, http_fetch
from runner.reporting.replay import read_connection
from runner.sandbox.base import Backend
from runner.sandbox.episode import Budgets, EpisodeRunner
from runner.sandbox.labels import HOUSE, NODE
from runner.sandbox.node import Node
from runner.sandbox.results import PhaseEvent


def house_name(storage: Path) -> str:
    """What this house's containers are labelled with: the same in every process that shares its storage."""
    return hashlib.sha256(str(storage.resolve()).encode()).hexdigest()[:12]


def node_name() -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:60] or "node"


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
    `on_phase` hears of every boundary that an episode passes. Open it around episodes: `async with site.open(): …`.
    """

    settings: Settings
    tasks: TaskCache
    jobs: Path
    house: str
    attempt: str
    workers: int = 1
    on_phase: Callable[[PhaseEvent], None] = lambda event: None
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
    def node_folder(self) -> Path:
        """Locks of this house on this node. Node-local on purpose: a lock on a shared disk would bind other nodes."""
        return Path(os.environ.get("ASSAY_NODE_FOLDER") or tempfile.gettempdir()) / f"assay-node-{self.house}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Node]:
        """The engine answers, what dead episodes left is swept, and the reaper runs."""
        slots = self.settings.max_concurrent_episodes * self.workers
        backend = make_backend(self.settings.backend, self.house)
        async with Node(backend, self.node_folder, name=node_name(), slots=slots) as node:
            options = {"budgets": self.budgets, "on_phase": self.on_phase, "regrade_once": self.settings.regrade}
            self.runner = EpisodeRunner(node, self.jobs, **options)
            try:
                yield node
            finally:
                self.runner = None
