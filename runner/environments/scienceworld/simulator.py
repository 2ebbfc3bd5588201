"""A simulator as the process that uses it sees it: every call has a time limit, and what fails is ended and told by its reason."""

import asyncio
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from runner.contract.termination import Termination
from runner.environments.base import EnvironmentFailure
from runner.environments.scienceworld import registry
from runner.environments.scienceworld.java import find_java

LEAF = Path(__file__).with_name("leaf.py")
_REASONS = {"crash": Termination.ENV_CRASH, "oom": Termination.ENV_OOM}
# How long a leaf may take to end Java and itself once its socket is closed.
END_SECONDS = 1.0


class PackageMissing(RuntimeError):
    """The simulator's package is not installed; the message says what to do."""


@lru_cache(maxsize=1)
def classpath() -> str:
    """The simulator's jar, behind the newer py4j that knows tokens: without one any local user could run code in the simulator."""
    simulator = find_spec("scienceworld")
    if simulator is None or find_spec("py4j") is None:
        raise PackageMissing("package scienceworld is not installed on this node; `pip install -r requirements-runner.txt` brings it")
    from py4j.java_gateway import find_jar_path

    return os.pathsep.join([str(Path(find_jar_path()).resolve()), str(Path(simulator.origin).with_name("scienceworld.jar"))])


@dataclass(eq=False)
class Simulator:
    """Use `boot`. `broken` after any failure, and then it has ended. `timings` are the milliseconds of the latest calls, by name."""

    leaf: subprocess.Popen
    link: socket.socket
    place: Path
    java: list[float] = field(default_factory=list)
    entry: Path | None = None
    episodes: int = 0
    broken: bool = False
    boot_seconds: float = 0.0
    timings: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    async def boot(cls, folder: Path, options: list[str], seconds: float) -> "Simulator":
        """`folder` takes the registry, `options` are those of Java. Raises EnvironmentFailure, JavaMissing, PackageMissing."""
        java, jars, begin = find_java(), classpath(), time.perf_counter()
        place = registry.scratch(folder)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            # -P: the leaf's own folder must not stand before the packages it imports.
            command = [sys.executable, "-P", str(LEAF), str(theirs.fileno()), str(os.getpid()), java.path, jars, *options]
            quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            leaf = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=place, **quiet)
        found = cls(leaf, ours, place)
        ready = await found._answer("boot", None, seconds)
        found._register(ready["pid"])
        found.boot_seconds = time.perf_counter() - begin
        return found

    def _register(self, java: int) -> None:
        try:
            self.java = registry.identity(java)
            self.entry = registry.enter(self.place, registry.identity(self.leaf.pid), self.java)
        except psutil.NoSuchProcess as gone:
            self.end()
            raise EnvironmentFailure(Termination.ENV_CRASH, f"the simulator ended as it came up (process {gone.pid})") from gone

    async def call(self, do: str, seconds: float, **arguments: Any) -> Any:
        """What the leaf answers. Raises EnvironmentFailure; the simulator has ended then."""
        if self.broken:
            raise EnvironmentFailure(Termination.ENV_CRASH, "the simulator has ended")
        begin = time.perf_counter()
        answer = await self._answer(do, {"do": do, **arguments}, seconds)
        kept = self.timings.setdefault(do, [])
        kept.append((time.perf_counter() - begin) * 1000)
        del kept[:-1000]
        return answer

    async def _answer(self, do: str, request: dict | None, seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                answer = await self._exchange(request)
        except TimeoutError:
            self.end()
            raise EnvironmentFailure(
                Termination.ENV_TIMEOUT, f"the simulator did not answer {do} within {seconds:g} s and was ended"
            ) from None
        except (OSError, asyncio.IncompleteReadError) as error:
            self.end()
            raise EnvironmentFailure(Termination.ENV_CRASH, f"the simulator's process was lost at {do} ({type(error).__name__})") from error
        except BaseException:
            # Cancelled: an answer is still to come, and would be taken for that of the next call.
            self.end()
            raise
        if "ok" not in answer:
            self.end()
            raise EnvironmentFailure(_REASONS[answer["error"]], f"the simulator failed at {do}: {answer['message']}")
        return answer["ok"]

    async def _exchange(self, request: dict | None) -> dict:
        loop = asyncio.get_running_loop()
        if request is not None:
            data = json.dumps(request).encode()
            await loop.sock_sendall(self.link, struct.pack(">I", len(data)) + data)
        (length,) = struct.unpack(">I", await self._read(loop, 4))
        return json.loads(await self._read(loop, length))

    async def _read(self, loop: asyncio.AbstractEventLoop, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = await loop.sock_recv(self.link, count - len(data))
            if not part:
                raise asyncio.IncompleteReadError(bytes(data), count)
            data += part
        return bytes(data)

    @property
    def resident(self) -> int:
        """Bytes of memory that Java has."""
        try:
            return psutil.Process(int(self.java[0])).memory_info().rss
        except (psutil.NoSuchProcess, IndexError):
            return 0

    @property
    def is_alive(self) -> bool:
        return not self.broken and self.leaf.poll() is None and registry.is_alive(self.java)

    def end(self) -> None:
        """End both processes; a second call does nothing."""
        if self.broken:
            return
        self.broken = True
        if self.java:
            registry.end(self.java)
        self.link.close()
        try:
            # The leaf reaps Java and goes.
            self.leaf.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.leaf.kill()
            self.leaf.wait()
        shutil.rmtree(self.place, ignore_errors=True)
        if self.entry:
            self.entry.unlink(missing_ok=True)
