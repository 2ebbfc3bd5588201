"""Containers for hostile code: what a backend offers, whichever it is. Every call is awaited and ends within its time.

A backend makes images and containers; a container runs commands and takes and gives files. A failure is a SandboxFailure with a named
reason. What a command prints and what an archive holds is bounded by the caller's limits, whatever the container sends.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Protocol

from runner.sandbox.streams import printable

MIB = 1 << 20


class Network(StrEnum):
    """Who a container may talk to. An allowlist is served as no network at all: tighter than asked, never looser."""

    NONE = "no-network"
    ALLOWLIST = "allowlist"
    PUBLIC = "public"


@dataclass(frozen=True)
class Limits:
    """What a container may use: CPUs, memory and disk in MiB, processes."""

    cpus: float = 1.0
    memory_mb: int = 2048
    disk_mb: int = 4096
    pids: int = 512


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Mount:
    """A folder or file of this node seen read-only at `target`."""

    source: Path
    target: str


@dataclass(frozen=True)
class ContainerSpec:
    """What to create. `folders` are made; where `read_only` is set, only /tmp and `writable` can be written. Capabilities are given back one by one."""

    image: str
    limits: Limits = DEFAULT_LIMITS
    network: Network = Network.NONE
    labels: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    folders: Sequence[str] = ()
    read_only: bool = False
    writable: Sequence[str] = ()
    capabilities: Sequence[str] = ()


@dataclass(frozen=True)
class ExecResult:
    """How a command ended. `exit_code` is None when it was cut off: `timed_out`, or `flooded` (it printed more than the flood limit).

    stdout and stderr hold the first and last bytes within the cap; `printed` counts all bytes that arrived, `truncated` says some are gone.
    """

    exit_code: int | None
    stdout: bytes
    stderr: bytes
    seconds: float
    printed: int = 0
    truncated: bool = False
    timed_out: bool = False
    flooded: bool = False

    @property
    def output(self) -> str:
        """Both streams as text."""
        return printable((self.stdout + self.stderr).decode(errors="replace"))


@dataclass(frozen=True)
class Stats:
    """memory and its peak in bytes (None where the backend cannot tell), CPU seconds, processes, and whether the container still runs."""

    running: bool
    memory: int | None = None
    memory_peak: int | None = None
    cpu_seconds: float | None = None
    pids: int | None = None


@dataclass(frozen=True)
class ArchiveLimits:
    """What may come out of a container: bytes of all files together, number of entries."""

    total_bytes: int = 1 << 30
    entries: int = 20_000


DEFAULT_ARCHIVE = ArchiveLimits()


@dataclass(frozen=True)
class Health:
    """State of the node's engine. `reason` names what is wrong; None is healthy."""

    reason: str | None
    detail: str = ""
    list_seconds: float | None = None
    containers: int | None = None
    dangling_images: int | None = None
    version: str = ""


@dataclass(frozen=True)
class Leftovers:
    """What a sweep removed, and what it could not."""

    containers: int = 0
    networks: int = 0
    images: int = 0
    failed: tuple[str, ...] = ()


class Container(Protocol):
    """One running container. `isolation` is "strong", or "weak" where it shares the host's kernel limits and files."""

    id: str
    labels: Mapping[str, str]
    workdir: str
    isolation: str

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        workdir: str | None = None,
        output_cap: int = MIB,
        flood_limit: int | None = None,
    ) -> ExecResult:
        """Run `argv`. Cut off after `timeout` seconds or `flood_limit` printed bytes; what it started may then still run until `kill`."""

    async def put(self, target: str, source: Path | Mapping[str, bytes]) -> None:
        """Place a folder's files, or files by relative path, under the folder `target`, which is made."""

    async def get(self, source: str, destination: Path, limits: ArchiveLimits = DEFAULT_ARCHIVE) -> int:
        """Copy a file or folder out, whole or not at all; returns its bytes. Raises with an ARCHIVE_… reason or PATH_MISSING."""

    async def read(self, path: str, limit: int = MIB) -> bytes:
        """One small file's bytes."""

    async def out_of_memory(self) -> bool:
        """Whether the kernel ended something in the container for its memory limit."""

    async def stats(self) -> Stats: ...

    async def freeze(self) -> None:
        """Stop every process where it stands; files can still be taken out."""

    async def restart(self) -> None:
        """End every process and wait for commands again, with the files as they are."""

    async def kill(self) -> None:
        """End every process."""

    async def remove(self) -> None:
        """Leave nothing. Never raises for a container that is already gone."""


class Backend(Protocol):
    """One node's engine."""

    name: str
    isolation: str

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def build(
        self,
        context: BinaryIO,
        tag: str,
        *,
        labels: Mapping[str, str],
        timeout: float,
        network: Network = Network.PUBLIC,
        args: Mapping[str, str] | None = None,
    ) -> str:
        """Build a tar with a Dockerfile at its root and tag it; returns the image id. A failed build leaves no tag and no image of its own."""

    async def image(self, tag: str) -> str | None:
        """The id behind a tag."""

    async def remove_image(self, tag: str) -> None: ...

    async def create(self, spec: ContainerSpec) -> Container:
        """A started container that waits for commands."""

    async def attached(self, labels: Mapping[str, str]) -> list[Mapping[str, str]]:
        """Labels of every container and network, running or not, that carries these labels."""

    async def remove_labelled(self, labels: Mapping[str, str], keep: Callable[[str], bool] = ...) -> Leftovers:
        """Remove containers and networks with these labels, but those whose episode is to `keep`, which is asked after listing."""

    async def sweep_images(self, older_than: float, batch: int = 200) -> Leftovers:
        """Remove images without tag and user that are older than so many seconds, `batch` at a time."""

    async def health(self) -> Health: ...
