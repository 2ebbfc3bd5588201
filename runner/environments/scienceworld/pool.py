"""Simulators that are used again and again: one owner at a time, replaced when they are old, grown too large, or broken.

A pool outlives the event loops it is used from: a worker runs each job in one of its own.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.contract.scienceworld import SIMULATOR_BYTES, VERSION
from runner.contract.termination import Termination
from runner.environments.base import EnvironmentFailure
from runner.environments.scienceworld import registry
from runner.environments.scienceworld.java import JavaMissing, find_java
from runner.environments.scienceworld.simulator import PackageMissing, Simulator, classpath

log = logging.getLogger(__name__)
# Beyond its heap: classes, code, stacks, and the leaf.
BESIDE_HEAP_BYTES = SIMULATOR_BYTES - (256 << 20)


class NoRoom(RuntimeError):
    """Memory is too short for a single simulator; the message has the numbers."""


def fit(wanted: int, heap_mb: int, available: int) -> tuple[int, str]:
    """How many of `wanted` simulators fit in `available` bytes, and what to say where that is fewer. Raises NoRoom."""
    each = (heap_mb << 20) + BESIDE_HEAP_BYTES
    count = min(wanted, available // each)
    told = f"{wanted} simulators need {wanted * each / 2**30:.1f} GB at {each / 2**30:.2f} GB each, {available / 2**30:.1f} GB are free"
    if count < 1:
        raise NoRoom(f"{told}: not even one fits; free memory, or lower environment.heap_mb {heap_mb}")
    return count, "" if count == wanted else f"{told}: {count} run at a time, the other episodes wait"


class Pool:
    """At most `size` simulators, by default as many as `settings` allow and memory takes. `workers` is how many pools share the memory."""

    def __init__(self, settings: Settings, folder: Path | None = None, workers: int = 1, size: int | None = None):
        self.settings, self.folder, self.workers = settings, folder or registry.node_folder(), workers
        self.size = size
        self.restarts = self._booting = 0
        self._idle: list[Simulator] = []
        self._busy: set[Simulator] = set()
        self._waiting: deque[asyncio.Future] = deque()
        # First prompts by task, so that measuring prompts loads each task once.
        self.previews: dict[str, list[dict[str, str]]] = {}

    @property
    def options(self) -> list[str]:
        """Options of Java: a capped heap and one thread of garbage collection."""
        return [f"-Xmx{self.settings.heap_mb}m", "-XX:+UseSerialGC"]

    def prepare(self) -> str:
        """Sweep what dead owners left and settle the size; returns what to say where memory makes it smaller. Raises NoRoom."""
        if ended := registry.sweep(self.folder):
            log.warning("ended %d simulator processes whose owner was gone", ended)
        if self.size is not None:
            return ""
        available = psutil.virtual_memory().available // self.workers
        self.size, told = fit(self.settings.max_concurrent_episodes, self.settings.heap_mb, available)
        if told:
            log.warning("%s", told)
        return told

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[Simulator]:
        """A simulator for one episode, given back afterwards."""
        simulator = await self.acquire()
        try:
            yield simulator
        finally:
            self.release(simulator)

    async def acquire(self) -> Simulator:
        """An idle simulator, else a fresh one, once there is room. Raises EnvironmentFailure."""
        if self.size is None:
            self.prepare()
        while len(self._busy) + self._booting >= self.size:
            await self._room()
        while self._idle:
            simulator = self._idle.pop()
            if simulator.is_alive:
                self._busy.add(simulator)
                return simulator
            simulator.end()
        return await self._boot()

    async def _room(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake()
            raise

    def _wake(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done() and not waiter.get_loop().is_closed():
                return waiter.set_result(None)

    async def _boot(self) -> Simulator:
        # Counted while it comes up, so that a burst of episodes does not start more than `size`.
        self._booting += 1
        try:
            simulator = await self._boot_twice()
        except BaseException as error:
            self._wake()
            if isinstance(error, JavaMissing | PackageMissing):
                raise EnvironmentFailure(Termination.ENV_CRASH, str(error)) from error
            raise
        finally:
            self._booting -= 1
        self._busy.add(simulator)
        return simulator

    async def _boot_twice(self) -> Simulator:
        """Java that was killed while it came up gets a second chance."""
        seconds = self.settings.boot_timeout_sec
        try:
            return await Simulator.boot(self.folder, self.options, seconds)
        except EnvironmentFailure:
            self.restarts += 1
            return await Simulator.boot(self.folder, self.options, seconds)

    def release(self, simulator: Simulator) -> None:
        """Give it back; one that is broken, old or too large is ended."""
        self._busy.discard(simulator)
        simulator.episodes += 1
        if simulator.broken:
            self.restarts += 1
        elif simulator.episodes >= self.settings.recycle_episodes or simulator.resident > self.most_resident:
            simulator.end()
        else:
            self._idle.append(simulator)
        self._wake()

    @property
    def most_resident(self) -> int:
        """Bytes beyond which a simulator is replaced: twice what is planned for one."""
        return 2 * ((self.settings.heap_mb << 20) + BESIDE_HEAP_BYTES)

    @property
    def simulators(self) -> list[Simulator]:
        """Those that run, idle or busy."""
        return [*self._idle, *self._busy]

    def close(self) -> None:
        """End them all."""
        for simulator in self.simulators:
            simulator.end()
        self._idle.clear()
        self._busy.clear()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Pool"]:
        """Around a job. Simulators stay for the next one."""
        self.prepare()
        yield self

    async def problems(self, digests: Sequence[str] = ()) -> list[str]:
        """Why no episode would run on this node, each with its remedy. `digests`, of files that tasks need, is empty here."""
        found = []
        for check in (find_java, classpath, version, self.prepare):
            try:
                check()
            except (JavaMissing, PackageMissing, NoRoom) as problem:
                found.append(str(problem))
        return found


def version() -> str:
    """Of the installed simulator. Raises PackageMissing where it is another than the one that is pinned."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as of

    try:
        installed = of("scienceworld")
    except PackageNotFoundError:
        raise PackageMissing("package scienceworld is not installed on this node") from None
    if installed != VERSION:
        raise PackageMissing(f"scienceworld {installed} is installed, {VERSION} is pinned: texts and gold paths differ between versions")
    return installed
