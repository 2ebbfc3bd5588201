"""Sandboxes without a container engine: namespaces, limits per process and folders of this node. Weaker than containers, and said so wherever
one served: the host's programs are seen, memory is limited per process and watched in sum, and an image is what `prepare.sh` of its folder
makes, not what a Dockerfile says.
"""

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import psutil

from runner.sandbox import archives
from runner.sandbox.base import DEFAULT_ARCHIVE, MIB, ArchiveLimits, ContainerSpec, ExecResult, Health, Leftovers, Limits, Network, Stats
from runner.sandbox.labels import EPISODE, HOUSE, ROLE
from runner.sandbox.locks import Held, try_lock
from runner.sandbox.pipes import Exchange, run
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.threads import Threads

CELL = Path(__file__).with_name("cell.py")
START_SECONDS = 20
TRANSFER_SECONDS = 300.0
WATCH_PERIOD = 1.0
FIRST_USER, USERS = 1_900_000_000, 100_000_000
FOLDERS = ("app", "logs", "tests", "solution", "root", "tmp", "etc", "var/tmp")
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin", "HOME": "/root", "LANG": "C.UTF-8"}
PREPARE = "prepare.sh"
BUILD_LIMITS = Limits(cpus=2, memory_mb=4096, disk_mb=8192, pids=1024)
SHOWN = 2000
LOCK = "lock"
MISSING = 44
PACK = f'cd "$1" 2>/dev/null && {{ [ -e "$2" ] || [ -L "$2" ]; }} || exit {MISSING}; exec tar -cf - -- "$2" 2>/dev/null'


class ProcessBackend(Threads):
    """`folder` takes images and sandboxes; node-local, shared by the processes of a house. Nothing outlives this process but folders, which
    the next sweep removes."""

    name, isolation = "process", "weak"

    def __init__(self, labels: Mapping[str, str], folder: Path | None = None):
        super().__init__("sandbox")
        if HOUSE not in labels:
            raise ValueError(f"labels: {dict(labels)}; name the house ({HOUSE}), sweeping without it would sweep everything")
        folder = folder or Path(tempfile.gettempdir()) / f"assay-sandboxes-{labels[HOUSE]}"
        self.folder, self.labels = Path(folder).resolve(), dict(labels)
        self.boxes: dict[str, ProcessContainer] = {}
        self._watchdog: asyncio.Task | None = None

    async def open(self) -> None:
        if sys.platform != "linux":
            raise SandboxFailure(
                Reason.ISOLATION_UNAVAILABLE, f"platform: {sys.platform}; sandboxes without an engine need Linux, use Docker"
            )
        for name in ("images", "boxes"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._watchdog = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._watchdog:
            self._watchdog.cancel()
        for box in list(self.boxes.values()):
            await box.remove()
        for folder in (self.folder / "boxes", self.folder / "images", self.folder):
            with suppress(OSError):  # kept while images, or another process's sandboxes, are in it
                folder.rmdir()
        self.shut()

    # ------------------------------------------------------------------ images

    def _image_folder(self, tag: str) -> Path:
        return self.folder / "images" / quote(tag, safe="")

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
        """Runs `prepare.sh` in a copy of the context: at /tests for a verifier, else at /build, which does not stay."""
        where = "/tests" if labels.get(ROLE) == "verifier" else "/build"
        spec = ContainerSpec("", BUILD_LIMITS, network, labels, env=dict(args or {}), workdir=where)
        box = await self.create(spec)
        try:
            await self.call(_unpack_context, context, box.root / where.lstrip("/"), box.user)
            result = await box.exec(["sh", PREPARE], timeout=timeout, env={"ASSAY_TESTS": "/tests"})
            self._require_built(tag, result, timeout)
            await box.kill()
            await self.call(self._keep, box, tag)
        finally:
            await box.remove()
        return tag

    @staticmethod
    def _require_built(tag: str, result: ExecResult, timeout: float) -> None:
        if result.timed_out:
            raise SandboxFailure(Reason.BUILD_TIMEOUT, f"build {tag}: {PREPARE} did not end within {timeout:.0f} s")
        if result.exit_code != 0:
            message = f"build {tag}: {PREPARE} ended with {result.exit_code}; a task needs one to run without Docker"
            raise SandboxFailure(Reason.BUILD_FAILED, f"{message}\n{result.output[-SHOWN:]}")

    def _keep(self, box: "ProcessContainer", tag: str) -> None:
        target = self._image_folder(tag)
        part = target.with_name(f".{secrets.token_hex(4)}.part")
        part.mkdir()
        for name in ("app", "tests", "solution", "root"):
            if (box.root / name).is_dir():
                shutil.copytree(box.root / name, part / name, symlinks=True)
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)

    async def image(self, tag: str) -> str | None:
        return tag if self._image_folder(tag).is_dir() else None

    async def remove_image(self, tag: str) -> None:
        await self.call(lambda: shutil.rmtree(self._image_folder(tag), ignore_errors=True))

    # ------------------------------------------------------------------ sandboxes

    async def create(self, spec: ContainerSpec) -> "ProcessContainer":
        return await self.call(self._create, spec, undo=lambda box: box.remove())

    def _create(self, spec: ContainerSpec) -> "ProcessContainer":
        image = self._image_folder(spec.image)
        if spec.image and not image.is_dir():
            raise SandboxFailure(Reason.IMAGE_MISSING, f"image {spec.image!r} was not prepared on this node; build it first")
        box = ProcessContainer(self, spec, {**self.labels, **spec.labels})
        try:
            box.lay_out(image if spec.image else None)
            box.start()
        except (OSError, SandboxFailure) as error:
            box.discard()
            if isinstance(error, SandboxFailure):
                raise
            raise SandboxFailure(Reason.START_FAILED, f"start a sandbox of {spec.image}: {error}") from None
        self.boxes[box.id] = box
        return box

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_PERIOD)
            for box in list(self.boxes.values()):
                with suppress(OSError, psutil.Error):
                    await self.call(box.check_limits)

    # ------------------------------------------------------------------ housekeeping

    def _found(self, labels: Mapping[str, str]) -> Iterator[tuple[Path, dict]]:
        for path in (self.folder / "boxes").glob("*/labels.json"):
            with suppress(OSError, ValueError):
                found = json.loads(path.read_text())
                if labels.items() <= found.items():
                    yield path.parent, found

    async def attached(self, labels: Mapping[str, str]) -> list[Mapping[str, str]]:
        return [found for _, found in self._found({**self.labels, **labels})]

    async def remove_labelled(self, labels: Mapping[str, str], keep: Callable[[str], bool] = lambda episode: False) -> Leftovers:
        """Of our own, what has an episode (a build has none); of others', what a process that ended left."""
        count = 0
        for path, found in list(self._found({**self.labels, **labels})):
            box = self.boxes.get(path.name)
            if box and EPISODE in found and not keep(found[EPISODE]):
                await box.remove()
                count += 1
            elif not box and (held := try_lock(path / LOCK)):
                await self.call(lambda path=path: shutil.rmtree(path, ignore_errors=True))
                held.release()
                count += 1
        return Leftovers(containers=count)

    async def sweep_images(self, older_than: float, batch: int = 200) -> Leftovers:
        """Half-made images of builds that were cut off."""
        due = [path for path in (self.folder / "images").glob(".*.part") if path.stat().st_mtime < time.time() - older_than][:batch]
        for path in due:
            shutil.rmtree(path, ignore_errors=True)
        return Leftovers(images=len(due))

    async def health(self) -> Health:
        """Starts a sandbox to see whether this machine allows it."""
        started = time.monotonic()
        try:
            box = await self.create(ContainerSpec(""))
            await box.remove()
        except SandboxFailure as error:
            return Health(error.reason, str(error))
        return Health(None, "no container engine: sandboxes of processes", time.monotonic() - started, len(self.boxes), 0, "process")


def _unpack_context(context: BinaryIO, target: Path, user: int) -> None:
    """The context was packed by us and checked then."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=context) as tar:
        tar.extractall(target, filter="data")
    _give(target, user)


def _give(folder: Path, user: int) -> None:
    if not user:
        return
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, user, user, follow_symlinks=False)


class ProcessContainer:
    """A folder seen as the root of a file system, and the process that starts commands in it."""

    isolation = "weak"

    def __init__(self, backend: ProcessBackend, spec: ContainerSpec, labels: Mapping[str, str]):
        self.backend, self.spec, self.labels = backend, spec, dict(labels)
        self.id = secrets.token_hex(8)
        self.folder = backend.folder / "boxes" / self.id
        self.root = self.folder / "root"
        self.workdir = spec.workdir or "/app"
        # As root each sandbox acts as a user of its own, who owns nothing else; otherwise as ourselves, who are 0 inside.
        self.user = FIRST_USER + secrets.randbelow(USERS) if os.geteuid() == 0 else 0
        self.ended: SandboxFailure | None = None
        self.process: subprocess.Popen | None = None
        self.control: socket.socket | None = None
        self.held: Held | None = None
        self._asking = threading.Lock()

    # ------------------------------------------------------------------ life

    def lay_out(self, image: Path | None) -> None:
        self.root.mkdir(parents=True)
        self.held = try_lock(self.folder / LOCK)
        (self.folder / "labels.json").write_text(json.dumps(self.labels))
        if image:
            shutil.copytree(image, self.root, symlinks=True, dirs_exist_ok=True)
        for name in (*FOLDERS, *(folder.lstrip("/") for folder in self.spec.folders), self.workdir.lstrip("/")):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "tmp").chmod(0o1777)
        user = self.user
        (self.root / "etc" / "passwd").write_text(f"root:x:{user}:{user}:root:/root:/bin/sh\n")
        (self.root / "etc" / "group").write_text(f"root:x:{user}:\n")
        _give(self.root, user)

    def start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        limits = self.spec.limits
        spec = {
            "root": str(self.root),
            "uid": self.user,
            "network": self.spec.network is Network.PUBLIC,
            "mounts": [[str(mount.source), mount.target] for mount in self.spec.mounts],
            "limits": {"memory": limits.memory_mb * MIB, "disk": limits.disk_mb * MIB, "pids": limits.pids},
        }
        with theirs:
            command = [sys.executable, "-I", "-S", str(CELL), str(theirs.fileno())]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "env": {}}
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True, **quiet)
        self.control = ours
        ours.settimeout(START_SECONDS)
        ours.sendall(json.dumps(spec).encode())
        answer = self._answer()
        if "ready" not in answer:
            message = f"{answer.get('error', 'it did not start')}; allow user namespaces (sysctl kernel.unprivileged_userns_clone=1) or use Docker"
            raise SandboxFailure(Reason.ISOLATION_UNAVAILABLE, message)

    def _answer(self) -> dict:
        try:
            return json.loads(self.control.recv(4096) or b"{}")
        except (OSError, ValueError):
            return {}

    def _signal(self, number: int) -> None:
        with self._asking, suppress(OSError):
            self.control.sendall(json.dumps({"signal": number}).encode())
            self._answer()

    def check_limits(self) -> None:
        """End a sandbox that uses more memory or disk than it may, all its processes and files together."""
        limits = self.spec.limits
        memory = sum(process.memory_info().rss for process in self._processes())
        if memory > limits.memory_mb * MIB:
            self._end(SandboxFailure(Reason.OUT_OF_MEMORY, f"{memory >> 20} MiB in use, at most {limits.memory_mb} may be"))
        elif (disk := _disk_use(self.root)) > limits.disk_mb * MIB:
            self._end(SandboxFailure(Reason.DISK_LIMIT_EXCEEDED, f"{disk >> 20} MiB written, at most {limits.disk_mb} may be"))

    def _processes(self) -> list[psutil.Process]:
        """All but our own two: the program's outer and inner process."""
        with suppress(psutil.NoSuchProcess):
            found = []
            for inner in psutil.Process(self.process.pid).children():
                found += inner.children(recursive=True)
            return found
        return []

    def _end(self, why: SandboxFailure) -> None:
        self.ended = why
        self._signal(signal.SIGKILL)

    async def freeze(self) -> None:
        await self.backend.call(self._signal, signal.SIGSTOP)

    async def kill(self) -> None:
        await self.backend.call(self._signal, signal.SIGKILL)

    async def restart(self) -> None:
        await self.kill()

    async def remove(self) -> None:
        self.backend.boxes.pop(self.id, None)
        await self.backend.call(self.discard)

    def discard(self) -> None:
        if self.control:
            self.control.close()
        if self.process:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.held:
            self.held.release()

    # ------------------------------------------------------------------ commands

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
        """`user` is not heard: there is one user inside."""
        with self._exchange(argv, env, workdir) as exchange:
            result = await self.backend.stoppable(run, exchange, timeout, output_cap, flood_limit)
        if self.ended:
            raise self.ended
        if result.exit_code is None and not result.timed_out and not result.flooded:
            raise self._dead(argv[0])
        return result

    @contextmanager
    def _exchange(self, argv: Sequence[str], env: Mapping[str, str] | None = None, workdir: str | None = None, stdin=None):
        """Ask for a command; its streams are ours to read until the block ends."""
        if self.ended:
            raise self.ended
        request = {
            "argv": list(argv),
            "env": {**ENVIRONMENT, **self.spec.env, **(env or {})},
            "workdir": workdir or self.workdir,
        }
        exchange = Exchange(stdin)
        try:
            with self._asking:
                socket.send_fds(self.control, [json.dumps(request).encode()], exchange.theirs)
        except OSError:
            exchange.close()
            raise self._dead(argv[0]) from None
        exchange.close_theirs()
        try:
            yield exchange
        finally:
            exchange.close()

    def _dead(self, doing: str) -> SandboxFailure:
        return self.ended or SandboxFailure(Reason.CONTAINER_DIED, f"run {doing!r}: the sandbox has ended")

    # ------------------------------------------------------------------ files: by a tar inside, where links lead nowhere else

    async def put(self, target: str, source: Path | Mapping[str, bytes]) -> None:
        await self.backend.stoppable(self._put, target, source)

    def _put(self, target: str, source: Path | Mapping[str, bytes], cancelled: threading.Event) -> None:
        with archives.pack_upload(source, target) as packed:
            packed.rollover()
            with self._exchange(["tar", "-xf", "-", "-C", "/", "--no-same-owner"], stdin=packed.fileno()) as exchange:
                result = run(exchange, TRANSFER_SECONDS, SHOWN, None, cancelled)
        if result.exit_code != 0:
            raise self.ended or SandboxFailure(Reason.EXEC_FAILED, f"put files into {target}: {result.output}")

    async def get(self, source: str, destination: Path, limits: ArchiveLimits = DEFAULT_ARCHIVE) -> int:
        return await self.backend.call(self._get, source, Path(destination), limits)

    def _get(self, source: str, destination: Path, limits: ArchiveLimits) -> int:
        with self._packed(source) as chunks:
            return archives.unpack(chunks, destination, limits)

    async def read(self, path: str, limit: int = MIB) -> bytes:
        return await self.backend.call(self._read, path, limit)

    def _read(self, path: str, limit: int) -> bytes:
        with self._packed(path) as chunks:
            return archives.only_file(chunks, limit)

    @contextmanager
    def _packed(self, path: str):
        folder, name = os.path.split(path.rstrip("/"))
        with self._exchange(["sh", "-c", PACK, "sh", folder or "/", name]) as exchange:
            chunks = exchange.chunks(TRANSFER_SECONDS)
            first = next(chunks, b"")
            if not first:
                missing = exchange.status(START_SECONDS) == MISSING
                raise SandboxFailure(Reason.PATH_MISSING, f"take {path}: no such file in the sandbox") if missing else self._dead("tar")
            yield _chain(first, chunks)

    # ------------------------------------------------------------------ state

    async def out_of_memory(self) -> bool:
        return self.ended is not None and self.ended.reason is Reason.OUT_OF_MEMORY

    async def stats(self) -> Stats:
        return await self.backend.call(self._stats)

    def _stats(self) -> Stats:
        memory = cpu = pids = 0
        for process in self._processes():
            with suppress(psutil.Error):
                memory, pids = memory + process.memory_info().rss, pids + 1
                cpu += sum(process.cpu_times()[:2])
        return Stats(self.process.poll() is None and self.ended is None, memory, None, float(cpu), pids)


def _chain(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def _disk_use(folder: Path) -> int:
    total = 0
    for root, folders, files in os.walk(folder, onerror=None):
        for name in files:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_blocks * 512
        folders[:] = [name for name in folders if not os.path.ismount(os.path.join(root, name))]
    return total
