"""What the processes of one node agree on through file locks, which the kernel gives back however a process ends."""

import asyncio
import fcntl
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, unquote

POLL = 0.05


class Held:
    """A locked file. Released by `release` or by the end of this process."""

    def __init__(self, descriptor: int, path: Path):
        self.descriptor, self.path = descriptor, path

    def release(self, remove: bool = False) -> None:
        if self.descriptor >= 0:
            if remove:
                self.path.unlink(missing_ok=True)
            os.close(self.descriptor)
            self.descriptor = -1


def try_lock(path: Path) -> Held | None:
    """Lock a file, made when absent; None while another holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _still_there(path, descriptor):
            return Held(descriptor, path)
        os.close(descriptor)  # its last holder removed it between our open and our lock


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.stat(path).st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


@asynccontextmanager
async def locked(path: Path, timeout: float) -> AsyncIterator[None]:
    """Hold a lock for the block. Raises TimeoutError."""
    async with asyncio.timeout(timeout):
        while (held := try_lock(path)) is None:
            await asyncio.sleep(POLL)
    try:
        yield
    finally:
        held.release()


class Gate:
    """At most `slots` episodes at once on this node, whichever of its processes runs them."""

    def __init__(self, folder: Path, slots: int):
        if slots < 1:
            raise ValueError(f"slots: {slots}; at least one episode must run at a time")
        self.folder, self.slots = Path(folder), slots

    async def enter(self, timeout: float) -> Held:
        """A slot, to be released by its holder. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while True:
            for index in range(self.slots):
                if slot := try_lock(self.folder / f"slot-{index}"):
                    return slot
            if time.monotonic() > deadline:
                raise TimeoutError
            await asyncio.sleep(POLL)


class LiveEpisodes:
    """Which episodes have a living process behind them."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def _path(self, episode: str) -> Path:
        return self.folder / quote(episode, safe="")

    def hold(self, episode: str) -> Held:
        """Declare an episode alive. Raises ValueError when it already is."""
        if held := try_lock(self._path(episode)):
            return held
        raise ValueError(f"episode {episode!r} runs on this node already; give each episode its own id")

    def alive(self, episode: str) -> bool:
        """Whether the episode runs; without a name, whether any does."""
        if not episode:
            return any(self.alive(unquote(path.name)) for path in list(self.folder.glob("*")))
        path = self._path(episode)
        if not path.exists():
            return False
        held = try_lock(path)
        if held:
            held.release(remove=True)
        return held is None
