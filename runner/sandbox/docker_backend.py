"""Containers by the Docker engine of this node, through its API; the calls run on threads of their own."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from docker.errors import APIError, ImageNotFound, NotFound
from docker.types import LogConfig, Ulimit
from docker.types import Mount as DockerMount

from runner.sandbox import archives
from runner.sandbox.address_pools import free_networks
from runner.sandbox.base import DEFAULT_ARCHIVE, MIB, ArchiveLimits, ContainerSpec, ExecResult, Health, Leftovers, Network, Stats
from runner.sandbox.docker_builds import build
from runner.sandbox.docker_sweeps import remove_labelled, sweep_images
from runner.sandbox.engine import ENGINE_ERRORS, Engine, EventWatch, Stopped, failure, gone, unreachable, wedged
from runner.sandbox.labels import HOUSE
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.streams import Frames, HeadTail
from runner.sandbox.threads import Threads

ENGINE_TIMEOUT = 60.0
DISK_PERIOD = 5.0
RETURN_PATIENCE = 15.0
LEAVING_PATIENCE = 2.0
STEADY = 3
SLOW_LIST = 20.0
MANY_DANGLING = 2000
FREEZE_TRIES, FREEZE_AGAIN_S, UNFREEZABLE = 5, 0.2, "unable to freeze"
# What the engine prints in place of the command, with exit code 126 or 127, when there was no such program, or no container any more.
NEVER_STARTED = b"OCI runtime exec failed"


class DockerBackend(Threads):
    """`labels` are on everything made here; events of other containers are not looked at."""

    name, isolation = "docker", "strong"

    def __init__(self, labels: Mapping[str, str], base_url: str | None = None, threads: int = 64):
        super().__init__("docker", threads)
        if HOUSE not in labels:
            raise ValueError(f"labels: {dict(labels)}; name the house ({HOUSE}), sweeping without it would sweep everything")
        self.labels, self.base_url = dict(labels), base_url
        self.engine: Engine | None = None
        self.watch: EventWatch | None = None
        self.containers: dict[str, DockerContainer] = {}
        self.quota: bool | None = None
        self._watchdog: asyncio.Task | None = None

    async def open(self) -> None:
        await self.call(self._connect)
        self._watchdog = asyncio.create_task(self._watch_disks())

    def _connect(self) -> None:
        try:
            self.engine = Engine(self.base_url, ENGINE_TIMEOUT)
            self.watch = EventWatch(Engine(self.base_url, ENGINE_TIMEOUT), [f"{key}={value}" for key, value in self.labels.items()])
            # A quota per container exists only over some file systems; elsewhere the watchdog measures.
            backing = dict(self.engine.info().get("DriverStatus") or []).get("Backing Filesystem", "")
            self.quota = backing == "xfs"
        except ENGINE_ERRORS as error:
            raise failure(error, Reason.DAEMON_UNREACHABLE, "connect") from None

    async def close(self) -> None:
        if self._watchdog:
            self._watchdog.cancel()
        if self.watch:
            self.watch.close()
        self.shut()
        if self.engine:
            self.engine.close()

    def explain(self, error: Exception, otherwise: Reason, doing: str) -> SandboxFailure:
        """Like `failure`, but an engine that is only restarting is told from one that stays away; returns once it is back."""
        return self.loss(error, doing) if self.went_away(error) else failure(error, otherwise, doing)

    def loss(self, error: Exception, doing: str) -> SandboxFailure:
        if self.returns():
            return SandboxFailure(Reason.DAEMON_RESTARTED, f"{doing}: the container engine was restarted meanwhile: {error}")
        return SandboxFailure(Reason.DAEMON_UNREACHABLE, f"{doing}: the container engine went away and stays away: {error}; start dockerd")

    def went_away(self, error: Exception) -> bool:
        """Whether the engine is gone, or going: on its way out it still answers, with whatever a part that it closed already says."""
        if unreachable(error):
            return True
        if wedged(error) or (isinstance(error, APIError) and not error.is_server_error()):
            return False
        interruptions, deadline = self.watch.interruptions, time.monotonic() + LEAVING_PATIENCE
        while time.monotonic() < deadline:
            if self.watch.interruptions != interruptions or not self.answers():
                return True
            time.sleep(0.1)
        return False

    def answers(self) -> bool:
        try:
            return self.engine.ping()
        except ENGINE_ERRORS:
            return False

    def returns(self) -> bool:
        """Wait a while for an engine that went away; one that is going may answer once more, so that one answer is not enough."""
        deadline, answered = time.monotonic() + RETURN_PATIENCE, 0
        while time.monotonic() < deadline and answered < STEADY:
            answered = answered + 1 if self.answers() else 0
            time.sleep(0.25)
        return answered == STEADY

    async def free_networks(self) -> int:
        """How many networks the engine's address pools still give."""
        return await self.call(self._free_networks)

    def _free_networks(self) -> int:
        try:
            return free_networks(self.engine.info(), self.engine.networks())
        except ENGINE_ERRORS as error:
            raise self.explain(error, Reason.EXEC_FAILED, "count the networks") from None

    # ------------------------------------------------------------------ images

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
        try:
            return await self.stoppable(build, self.engine, context, tag, {**self.labels, **labels}, timeout, network, args or {})
        except SandboxFailure as error:
            cause = error.__cause__ or error
            if error.reason is not Reason.BUILD_TIMEOUT and await self.call(self.went_away, cause):
                raise await self.call(self.loss, cause, f"build {tag}") from None
            raise

    async def image(self, tag: str) -> str | None:
        return await self.call(self._image, tag)

    def _image(self, tag: str) -> str | None:
        try:
            return self.engine.inspect_image(tag)["Id"]
        except ImageNotFound:
            return None
        except ENGINE_ERRORS as error:
            raise self.explain(error, Reason.IMAGE_MISSING, f"look for image {tag}") from None

    async def remove_image(self, tag: str) -> None:
        await self.call(self._remove_image, tag)

    def _remove_image(self, tag: str) -> None:
        try:
            self.engine.remove_image(tag, force=True)
        except ImageNotFound:
            pass
        except ENGINE_ERRORS as error:
            raise self.explain(error, Reason.EXEC_FAILED, f"remove image {tag}") from None

    # ------------------------------------------------------------------ containers

    async def create(self, spec: ContainerSpec) -> "DockerContainer":
        return await self.call(self._create, spec, undo=lambda container: container.remove())

    def _create(self, spec: ContainerSpec) -> "DockerContainer":
        spec_labels = {**self.labels, **spec.labels}
        network = made = None
        try:
            if spec.network is Network.PUBLIC:
                network = f"assay-{secrets.token_hex(6)}"
                self.engine.create_network(network, driver="bridge", labels=spec_labels)
            made = self._create_container(spec, spec_labels, network or "none")
            container = DockerContainer(self, made, spec, spec_labels, network)
            if spec.folders and not spec.read_only:
                self.engine.put_archive(made, "/", archives.pack_folders(list(spec.folders)))
            # Registered before it runs, or its first seconds would go unwatched.
            self.containers[made] = container
            self.engine.start(made)
            if spec.folders and spec.read_only:
                self.engine.exec_start(self.engine.exec_create(made, ["mkdir", "-p", *spec.folders])["Id"])
            return container
        except ENGINE_ERRORS as error:
            self.containers.pop(made, None)
            self._undo(made, network)
            raise self.explain(error, Reason.START_FAILED, f"start a container of {spec.image}") from None

    def _undo(self, container: str | None, network: str | None) -> None:
        with suppress(*ENGINE_ERRORS):
            if container:
                self.engine.remove_container(container, force=True, v=True)
        with suppress(*ENGINE_ERRORS):
            if network:
                self.engine.remove_network(network)

    def _create_container(self, spec: ContainerSpec, labels: Mapping[str, str], network: str) -> str:
        config = {"image": spec.image, "entrypoint": ["sleep"], "command": ["infinity"], "labels": labels, "environment": dict(spec.env)}
        if spec.workdir:
            config["working_dir"] = spec.workdir
        volumes = self.engine.inspect_image(spec.image)["Config"].get("Volumes") or {}
        host = self._host_options(spec, volumes, network)
        return self.engine.create_container(**config, host_config=self.engine.create_host_config(**host))["Id"]

    def _host_options(self, spec: ContainerSpec, volumes: Iterable[str], network: str) -> dict[str, Any]:
        limits = spec.limits
        memory, disk = limits.memory_mb * MIB, limits.disk_mb * MIB
        # A volume the image declares would lie outside the disk limit; in memory it counts against that of the container.
        temporary = {path: f"size={limits.disk_mb}m,mode=1777" for path in [*volumes, *(["/tmp"] if spec.read_only else [])]}
        mounts = [DockerMount(mount.target, str(mount.source), type="bind", read_only=True) for mount in spec.mounts]
        # Files cannot be taken out of memory-backed folders, so that results go to volumes that die with the container.
        mounts += [DockerMount(path, None, type="volume") for path in spec.writable]
        return {
            "network_mode": network,
            "cap_drop": ["ALL"],
            "cap_add": list(spec.capabilities) or None,
            "security_opt": ["no-new-privileges"],
            "pids_limit": limits.pids,
            "mem_limit": memory,
            "memswap_limit": memory,
            "nano_cpus": int(limits.cpus * 1e9),
            "ulimits": [Ulimit(name="fsize", soft=disk, hard=disk), Ulimit(name="core", soft=0, hard=0)],
            "storage_opt": {"size": f"{limits.disk_mb}m"} if self.quota else None,
            "read_only": spec.read_only,
            "tmpfs": temporary or None,
            "mounts": mounts or None,
            "init": True,
            "ipc_mode": "private",
            "log_config": LogConfig(type="none"),
        }

    async def _watch_disks(self) -> None:
        while True:
            await asyncio.sleep(DISK_PERIOD)
            if not self.containers:
                continue
            with suppress(*ENGINE_ERRORS):
                for identifier, size in (await self.call(self.engine.sizes, {"id": list(self.containers)})).items():
                    container = self.containers.get(identifier)
                    if container and size > container.spec.limits.disk_mb * MIB:
                        limit = container.spec.limits.disk_mb
                        container.ended = SandboxFailure(Reason.DISK_LIMIT_EXCEEDED, f"{size} bytes written, at most {limit} MiB may be")
                        await container.kill()

    # ------------------------------------------------------------------ housekeeping

    async def attached(self, labels: Mapping[str, str]) -> list[Mapping[str, str]]:
        return await self.call(self._attached, labels)

    def _attached(self, labels: Mapping[str, str]) -> list[Mapping[str, str]]:
        filters = {"label": [f"{key}={value}" for key, value in {**self.labels, **labels}.items()]}
        try:
            found = [*self.engine.containers(all=True, filters=filters), *self.engine.networks(filters=filters)]
        except ENGINE_ERRORS as error:
            raise self.explain(error, Reason.EXEC_FAILED, "list containers") from None
        return [item["Labels"] for item in found]

    async def remove_labelled(self, labels: Mapping[str, str], keep: Callable[[str], bool] = lambda episode: False) -> Leftovers:
        return await self.call(remove_labelled, self.engine, {**self.labels, **labels}, keep)

    async def sweep_images(self, older_than: float, batch: int = 200) -> Leftovers:
        return await self.stoppable(sweep_images, self.engine, older_than, batch)

    async def health(self) -> Health:
        return await self.call(self._health)

    def _health(self) -> Health:
        started = time.monotonic()
        try:
            engine = self.engine or Engine(self.base_url, ENGINE_TIMEOUT)
            containers = len(engine.containers(all=True))
            seconds = time.monotonic() - started
            version = engine.info()["ServerVersion"]
            dangling = len(engine.images(filters={"dangling": True}, quiet=True))
        except ENGINE_ERRORS as error:
            named = failure(error, Reason.DAEMON_UNREACHABLE, "ask the engine for its state")
            return Health(named.reason, str(named))
        reason = detail = None
        if seconds > SLOW_LIST:
            reason, detail = Reason.DAEMON_WEDGED, f"listing containers took {seconds:.0f} s; restart the engine"
        elif dangling > MANY_DANGLING:
            reason, detail = Reason.DAEMON_WEDGED, f"{dangling} dangling images; drain this node and sweep its images"
        return Health(reason, detail or "", seconds, containers, dangling, version)


class DockerContainer:
    """A container of this backend. `ended` says why it is dead when we know."""

    isolation = "strong"

    def __init__(self, backend: DockerBackend, identifier: str, spec: ContainerSpec, labels: Mapping[str, str], network: str | None):
        self.backend, self.id, self.spec, self.labels, self.network = backend, identifier, spec, labels, network
        self.workdir = spec.workdir or "/"
        self.ended: SandboxFailure | None = None
        self.interruptions = backend.watch.interruptions

    @property
    def engine(self) -> Engine:
        return self.backend.engine

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
        options = {"environment": dict(env or {}), "user": user or "", "workdir": workdir or self.spec.workdir}
        return await self.backend.stoppable(self._exec, list(argv), timeout, options, output_cap, flood_limit)

    def _exec(self, argv, timeout, options, output_cap, flood_limit, cancelled) -> ExecResult:
        started = time.monotonic()
        streams, timed_out, flooded = {1: HeadTail(output_cap), 2: HeadTail(output_cap)}, False, False
        try:
            identifier = self.engine.exec_create(self.id, argv, **options)["Id"]
            frames = Frames()
            output = self.engine.exec_output(identifier, lambda: cancelled.is_set() or time.monotonic() - started > timeout)
            try:
                for packet in output:
                    for stream, data in frames.feed(packet):
                        streams[stream].add(data)
                    if flooded := bool(flood_limit) and sum(stream.total for stream in streams.values()) > flood_limit:
                        break
            except Stopped:
                timed_out = True
            finally:
                output.close()
            kept = {stream: held.value() for stream, held in streams.items()}
            exit_code = None if timed_out or flooded else self._exit_code(identifier, kept)
        except ENGINE_ERRORS as error:
            raise self._explain(error, f"run {argv[0]!r}") from None
        if self.ended:  # its processes die a moment before the engine says that the container has
            raise self.ended
        printed = sum(stream.total for stream in streams.values())
        truncated = any(stream.omitted for stream in streams.values())
        return ExecResult(exit_code, kept[1], kept[2], time.monotonic() - started, printed, truncated, timed_out, flooded)

    def _exit_code(self, identifier: str, printed: Mapping[int, bytes]) -> int:
        deadline = time.monotonic() + 10
        while (state := self.engine.exec_inspect(identifier))["Running"] and time.monotonic() < deadline:
            time.sleep(0.01)
        if state["ExitCode"] in (None, 126, 137) or any(said.startswith(NEVER_STARTED) for said in printed.values()):
            # One process was killed or could not start, or the whole container died: only the second is a failure of ours.
            self._require_running()
        return state["ExitCode"] if state["ExitCode"] is not None else -1

    def _require_running(self) -> None:
        # Looked at for a second: a container's last process is gone before the engine takes note.
        for _ in range(10):
            if not self.engine.inspect_container(self.id)["State"]["Running"]:
                raise APIError("the container is not running")
            time.sleep(0.1)

    def _explain(self, error: Exception, doing: str, otherwise: Reason = Reason.EXEC_FAILED) -> SandboxFailure:
        """Why a call failed: the engine is away or was restarted, the container is dead and of what, or an ordinary refusal."""
        if self.ended:
            return self.ended
        if self.backend.went_away(error):
            return self.backend.loss(error, doing)
        if self.backend.watch.interruptions != self.interruptions:
            return SandboxFailure(Reason.DAEMON_RESTARTED, f"{doing}: the container engine was restarted under this container")
        with suppress(*ENGINE_ERRORS):
            state = self.engine.inspect_container(self.id)["State"]
            if state["OOMKilled"] and not state["Running"]:
                return SandboxFailure(Reason.OUT_OF_MEMORY, f"{doing}: the container ran out of its {self.spec.limits.memory_mb} MiB")
            if not state["Running"]:
                return SandboxFailure(Reason.CONTAINER_DIED, f"{doing}: the container ended with {state['ExitCode']}")
        if gone(error):
            missing = otherwise if otherwise is Reason.PATH_MISSING else Reason.CONTAINER_DIED
            return SandboxFailure(missing, f"{doing}: {error.explanation}")
        return failure(error, otherwise, doing)

    async def put(self, target: str, source: Path | Mapping[str, bytes]) -> None:
        await self.backend.call(self._put, target, source)

    def _put(self, target: str, source: Path | Mapping[str, bytes]) -> None:
        try:
            self.engine.put_archive(self.id, "/", archives.pack_upload(source, target))
        except ENGINE_ERRORS as error:
            raise self._explain(error, f"put files into {target}") from None

    async def get(self, source: str, destination: Path, limits: ArchiveLimits = DEFAULT_ARCHIVE) -> int:
        return await self.backend.call(self._get, source, Path(destination), limits)

    def _get(self, source: str, destination: Path, limits: ArchiveLimits) -> int:
        try:
            with self.engine.archive(self.id, source) as chunks:
                return archives.unpack(chunks, destination, limits)
        except ENGINE_ERRORS as error:
            raise self._explain(error, f"take {source}", Reason.PATH_MISSING) from None

    async def read(self, path: str, limit: int = MIB) -> bytes:
        return await self.backend.call(self._read, path, limit)

    def _read(self, path: str, limit: int) -> bytes:
        try:
            with self.engine.archive(self.id, path) as chunks:
                return archives.only_file(chunks, limit)
        except ENGINE_ERRORS as error:
            raise self._explain(error, f"read {path}", Reason.PATH_MISSING) from None

    async def out_of_memory(self) -> bool:
        return await self.backend.call(self.backend.watch.ran_out, self.id)

    async def stats(self) -> Stats:
        return await self.backend.call(self._stats)

    def _stats(self) -> Stats:
        try:
            seen = self.engine.stats(self.id, stream=False, one_shot=True)
        except ENGINE_ERRORS as error:
            raise self._explain(error, "measure") from None
        memory = seen.get("memory_stats", {})
        return Stats(
            running=bool(memory),
            memory=memory.get("usage"),
            memory_peak=memory.get("max_usage"),
            cpu_seconds=seen["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9 if memory else None,
            pids=seen.get("pids_stats", {}).get("current"),
        )

    async def freeze(self) -> None:
        await self.backend.call(self._freeze)

    def _freeze(self) -> None:
        for tried in range(1, FREEZE_TRIES + 1):
            try:
                return self.engine.pause(self.id)
            except ENGINE_ERRORS as error:
                # On a busy machine the runtime gives up on processes that never stand still together; later they do.
                if tried == FREEZE_TRIES or UNFREEZABLE not in str(error):
                    raise self._explain(error, "freeze") from None
            time.sleep(FREEZE_AGAIN_S)

    async def restart(self) -> None:
        await self.backend.call(self._restart)

    def _restart(self) -> None:
        try:
            self.engine.restart(self.id, timeout=0)
        except ENGINE_ERRORS as error:
            raise self._explain(error, "restart") from None

    async def kill(self) -> None:
        await self.backend.call(self._kill)

    def _kill(self) -> None:
        with suppress(*ENGINE_ERRORS):
            self.engine.kill(self.id)

    async def remove(self) -> None:
        await self.backend.call(self._remove)

    def _remove(self) -> None:
        self.backend.containers.pop(self.id, None)
        try:
            self.engine.remove_container(self.id, force=True, v=True)
        except NotFound:
            pass
        except ENGINE_ERRORS:
            self._remove_again()
        self.backend.watch.forget(self.id)
        with suppress(*ENGINE_ERRORS):
            if self.network:
                self.engine.remove_network(self.network)

    def _remove_again(self) -> None:
        """After a restart of the engine, or while it is removing the container already. What stays is the reaper's."""
        if self.backend.returns():
            with suppress(*ENGINE_ERRORS):
                self.engine.remove_container(self.id, force=True, v=True)
