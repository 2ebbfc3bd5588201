"""One node's containers: how many at once, which belong to whom, and what is swept away."""

import asyncio
import logging
from pathlib import Path
from typing import Self

from runner.sandbox.base import Backend, Health, Leftovers
from runner.sandbox.locks import Gate, LiveEpisodes, try_lock
from runner.sandbox.reasons import SandboxFailure

REAP_PERIOD = 60.0
IMAGE_SWEEP_PERIOD = 900.0
IMAGE_AGE = 24 * 3600.0
_log = logging.getLogger(__name__)


class Node:
    """`folder` is node-local and shared by every process that runs episodes of this house here; one of them sweeps.

    async with Node(backend, folder, name="10.0.0.3", slots=8) as node: …
    """

    def __init__(self, backend: Backend, folder: Path, *, name: str, slots: int = 8, reap_period: float = REAP_PERIOD):
        self.backend, self.folder, self.name = backend, Path(folder), name
        self.gate = Gate(self.folder / "slots", slots)
        self.live = LiveEpisodes(self.folder / "live")
        self.reap_period = reap_period
        self.swept = Leftovers()
        self._reaper: asyncio.Task | None = None

    async def __aenter__(self) -> Self:
        await self.backend.open()
        await self._reap_quietly()
        self._reaper = asyncio.create_task(self._keep_clean())
        return self

    async def __aexit__(self, *error) -> None:
        if self._reaper:
            self._reaper.cancel()
            await asyncio.gather(self._reaper, return_exceptions=True)
        await self.backend.close()

    async def reap(self) -> Leftovers:
        """Remove containers and networks of this house on this node that no living episode owns."""
        return await self.backend.remove_labelled({}, keep=self.live.alive)

    async def health(self) -> Health:
        return await self.backend.health()

    async def _keep_clean(self) -> None:
        elapsed = 0.0
        while True:
            await asyncio.sleep(self.reap_period)
            await self._reap_quietly()
            elapsed += self.reap_period
            if elapsed >= IMAGE_SWEEP_PERIOD:
                elapsed = 0.0
                await self._sweep_quietly()

    async def _reap_quietly(self) -> None:
        await self._alone("reaper", self.reap)

    async def _sweep_quietly(self) -> None:
        await self._alone("image-sweep", lambda: self.backend.sweep_images(older_than=IMAGE_AGE))

    async def _alone(self, name: str, work) -> None:
        """One process of the node at a time; an engine that is away is tried again next time."""
        held = try_lock(self.folder / name)
        if held is None:
            return
        try:
            found = await work()
            self._count(found)
        except SandboxFailure as error:
            _log.warning("%s on node %s: %s", name, self.name, error)
        finally:
            held.release()

    def _count(self, found: Leftovers) -> None:
        seen = self.swept
        self.swept = Leftovers(seen.containers + found.containers, seen.networks + found.networks, seen.images + found.images, found.failed)
        if found.containers or found.networks or found.failed:
            _log.warning("node %s: swept %s", self.name, found)
