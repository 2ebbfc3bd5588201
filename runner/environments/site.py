"""What a rollout worker needs to run container episodes on its node: the task files, the engine, and folders."""

import hashlib
import os
import re
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from runner.contract.run_config import HarborEnvironment as Settings
from runner.repair.cache import TaskCache
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


@dataclass
class Site:
    """`tasks` gives the task folders by digest, `jobs` takes a folder an episode; `workers` is how many processes share the node.

    Open it around episodes: `async with site.open(): …`. `phases` collects the boundaries that episodes passed.
    """

    settings: Settings
    tasks: TaskCache
    jobs: Path
    house: str
    attempt: str
    workers: int = 1
    phases: list[PhaseEvent] = field(default_factory=list)
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
    async def open(self) -> AsyncIterator["Site"]:
        """The engine answers, what dead episodes left is swept, and the reaper runs."""
        slots = self.settings.max_concurrent_episodes * self.workers
        backend = make_backend(self.settings.backend, self.house)
        async with Node(backend, self.node_folder, name=node_name(), slots=slots) as node:
            options = {"budgets": self.budgets, "on_phase": self.phases.append, "regrade_once": self.settings.regrade}
            self.runner = EpisodeRunner(node, self.jobs, **options)
            try:
                yield self
            finally:
                self.runner = None
