"""What the episode runner needs to know of a task, read from a dense task folder (`task.toml` in the Harbor format)."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.repair.files import BadTaskFiles, read_files
from runner.sandbox.base import DEFAULT_LIMITS, Limits, Network
from runner.sandbox.reasons import Reason, SandboxFailure

BUILD_TIMEOUT, VERIFIER_TIMEOUT = 600.0, 600.0
_UNITS = {"": 1, "M": 1, "MB": 1, "G": 1024, "GB": 1024, "T": 1 << 20}


@dataclass(frozen=True)
class Healthcheck:
    """Seconds, and how many failures in a row are too many."""

    command: str
    interval: float = 5.0
    timeout: float = 30.0
    start_period: float = 0.0
    start_interval: float = 5.0
    retries: int = 3


@dataclass(frozen=True)
class EnvironmentSpec:
    """One container: an image that exists, or a folder to build it from. Seconds.

    `read_only` closes the root file system but for /tmp, /logs and `writable` (our own keys of task.toml; others ignore them).
    """

    image: str | None = None
    folder: Path | None = None
    limits: Limits = DEFAULT_LIMITS
    network: Network = Network.PUBLIC
    build_timeout: float = BUILD_TIMEOUT
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    healthcheck: Healthcheck | None = None
    read_only: bool = False
    writable: tuple[str, ...] = ()


@dataclass(frozen=True)
class SandboxTask:
    """A task as containers see it. `verifier` is None where the tests run in the agent's own container ("shared").

    `tests` is uploaded or mounted; None where the verifier's image has them baked in. `artifacts` are paths carried from agent to verifier.
    """

    name: str
    digest: str
    folder: Path
    agent: EnvironmentSpec
    verifier: EnvironmentSpec | None
    tests: Path | None
    instruction: str = ""
    agent_timeout: float | None = None
    verifier_timeout: float = VERIFIER_TIMEOUT
    artifacts: tuple[str, ...] = ("/logs/artifacts",)
    reward_key: str = "reward"

    @property
    def separate(self) -> bool:
        return self.verifier is not None


def load_task(folder: Path, reward_key: str = "reward") -> SandboxTask:
    """Read a dense task folder. Raises SandboxFailure (a bad task) naming the file, the field and the remedy."""
    folder = Path(folder).resolve()
    manifest = _manifest(folder)
    agent = _environment(manifest.get("environment", {}), folder / "environment", "environment")
    verifier_table = manifest.get("verifier", {})
    own = verifier_table.get("environment")
    tests_built = (folder / "tests" / "Dockerfile").is_file()
    separate = verifier_table.get("environment_mode", "separate" if own is not None else "shared") == "separate"
    verifier = None
    if separate:
        verifier = _verifier_environment(own, agent, folder, tests_built)
    instruction = folder / "instruction.md"
    return SandboxTask(
        name=str(manifest.get("task", {}).get("name", folder.name)),
        digest=_digest(folder),
        folder=folder,
        agent=agent,
        verifier=verifier,
        tests=None if separate and tests_built else folder / "tests",
        instruction=_visible(instruction.read_text()) if instruction.is_file() else "",
        agent_timeout=manifest.get("agent", {}).get("timeout_sec"),
        verifier_timeout=float(verifier_table.get("timeout_sec", VERIFIER_TIMEOUT)),
        artifacts=_artifact_paths(manifest.get("artifacts", [])),
        reward_key=reward_key,
    )


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "task.toml"
    try:
        manifest = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise SandboxFailure(
            Reason.CONTEXT_MISSING, f"{path}: no such file; the bank moved or was not compiled, compile it again"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SandboxFailure(Reason.CONTEXT_MISSING, f"{path}: not TOML: {error}") from None
    if manifest.get("steps"):
        raise SandboxFailure(Reason.CONTEXT_MISSING, f"{path}: steps: tasks of several steps are not supported; split it into tasks")
    return manifest


def _environment(table: Mapping[str, Any], folder: Path, field_name: str) -> EnvironmentSpec:
    default = DEFAULT_LIMITS
    limits = Limits(
        cpus=float(table.get("cpus", default.cpus)),
        memory_mb=_megabytes(table, "memory", default.memory_mb),
        disk_mb=_megabytes(table, "storage", default.disk_mb),
    )
    check = table.get("healthcheck")
    return EnvironmentSpec(
        image=table.get("docker_image"),
        folder=folder if (folder / "Dockerfile").is_file() else None,
        limits=limits,
        network=_network(table, field_name),
        build_timeout=float(table.get("build_timeout_sec", BUILD_TIMEOUT)),
        workdir=table.get("workdir"),
        env={str(key): str(value) for key, value in table.get("env", {}).items()},
        healthcheck=_healthcheck(check) if check else None,
        read_only=bool(table.get("read_only", False)),
        writable=tuple(table.get("writable", ())),
    )


def _megabytes(table: Mapping[str, Any], name: str, default: int) -> int:
    """`memory_mb = 2048`, or the older `memory = "2G"`."""
    if f"{name}_mb" in table:
        return int(table[f"{name}_mb"])
    text = str(table.get(name, "")).strip().upper()
    if not text:
        return default
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", text)
    if not match or match[2] not in _UNITS:
        raise SandboxFailure(Reason.CONTEXT_MISSING, f'environment.{name}: {text!r} is no size; write {name}_mb = 2048 or {name} = "2G"')
    return int(float(match[1]) * _UNITS[match[2]])


def _network(table: Mapping[str, Any], field_name: str) -> Network:
    legacy = {True: Network.PUBLIC, False: Network.NONE}.get(table.get("allow_internet"), Network.PUBLIC)
    mode = table.get("network_mode", legacy)
    try:
        return Network(mode)
    except ValueError:
        choices = ", ".join(Network)
        raise SandboxFailure(Reason.CONTEXT_MISSING, f"{field_name}.network_mode: {mode!r}; choose one of {choices}") from None


def _healthcheck(table: Mapping[str, Any]) -> Healthcheck:
    names = {
        "interval": "interval_sec",
        "timeout": "timeout_sec",
        "start_period": "start_period_sec",
        "start_interval": "start_interval_sec",
    }
    times = {name: float(table.get(key, table.get(name, getattr(Healthcheck, name)))) for name, key in names.items()}
    return Healthcheck(command=str(table["command"]), retries=int(table.get("retries", Healthcheck.retries)), **times)


def _verifier_environment(own: Mapping[str, Any] | None, agent: EnvironmentSpec, folder: Path, tests_built: bool) -> EnvironmentSpec:
    """Tests with a Dockerfile are an image of their own; else a fresh copy of the agent's image. Never with a network."""
    table = own or {}
    if tests_built or table.get("docker_image"):
        spec = _environment(table, folder / "tests", "verifier.environment")
        return replace(spec, network=Network.NONE)
    limits = _environment(table, folder / "tests", "verifier.environment").limits if table else agent.limits
    return replace(agent, limits=limits, network=Network.NONE, healthcheck=None)


def _artifact_paths(entries: list[Any]) -> tuple[str, ...]:
    paths = [entry["source"] if isinstance(entry, dict) else str(entry) for entry in entries]
    return ("/logs/artifacts", *(path for path in paths if path.rstrip("/") != "/logs/artifacts"))


def _visible(text: str) -> str:
    """The instruction without its leading canary comments."""
    lines = text.splitlines(keepends=True)
    start = 0
    while start < len(lines) and "canary" in lines[start].lower() and lines[start].lstrip().startswith(("<!--", "#")):
        start += 1
        while start < len(lines) and not lines[start].strip():
            start += 1
    return "".join(lines[start:])


def _digest(folder: Path) -> str:
    try:
        return read_files(folder).digest
    except BadTaskFiles as error:
        raise SandboxFailure(Reason.CONTEXT_UNSAFE, f"{folder}: {error}") from None
