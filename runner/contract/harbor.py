"""task.toml of a Harbor task, schema 1.0 to 1.5, with legacy keys and the defaults that hold when a key is absent."""

import ipaddress
import re
import tomllib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

SCHEMA_VERSIONS = ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5")
AGENT_SETUP_TIMEOUT_S = 360.0
NetworkMode = Literal["no-network", "public", "allowlist"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST = re.compile(r"(\*\.)?([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)*[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?\s*", re.IGNORECASE)
_MEBIBYTES = {"": 1 / 2**20, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}


class InvalidManifest(ValueError):
    """task.toml was refused; the message names the key, the value and the remedy."""


def _number(value: Any) -> Any:
    if isinstance(value, bool | str):
        raise ValueError(f"{value!r} is no number; write it without quotes")
    return value


def mebibytes(size: str) -> int:
    """The legacy sizes of `memory` and `storage`, such as "2G" or "512M", in MiB. Raises ValueError."""
    match = _SIZE.fullmatch(str(size))
    if match is None:
        raise ValueError(f"{size!r} is no size; write 2G, 512M, or use the key that ends in _mb")
    return int(float(match[1]) * _MEBIBYTES[match[2].upper()])


Number = Annotated[float, BeforeValidator(_number), Field(gt=0)]
Megabytes = Annotated[int, BeforeValidator(_number), Field(gt=0)]


class Section(BaseModel):
    """A table of task.toml. Unknown keys are ignored: other readers of the format have their own."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Healthcheck(Section):
    """When a started container counts as ready. Times in seconds."""

    command: str
    interval_sec: Number = 5.0
    timeout_sec: Number = 30.0
    start_period_sec: Annotated[float, BeforeValidator(_number), Field(ge=0)] = 0.0
    start_interval_sec: Number = 5.0
    retries: int = Field(3, ge=1)


class Container(Section):
    """What a container gets. Times in seconds, sizes in MiB; None means that the task does not say."""

    cpus: Number | None = None
    memory_mb: Megabytes | None = None
    storage_mb: Megabytes | None = None
    gpus: int = Field(0, ge=0)
    gpu_types: list[str] = []
    docker_image: str | None = None
    workdir: str | None = None
    env: dict[str, str] = {}
    build_timeout_sec: Number = 600.0
    network_mode: NetworkMode = "public"
    allowed_hosts: list[str] = []
    healthcheck: Healthcheck | None = None

    @model_validator(mode="before")
    @classmethod
    def _legacy(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        table = dict(table)
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            if old in table:
                table.setdefault(new, mebibytes(table[old]))
        if isinstance(table.get("allow_internet"), bool):
            table.setdefault("network_mode", "public" if table["allow_internet"] else "no-network")
        return table


class Phase(Section):
    """What differs from the container while the agent acts."""

    timeout_sec: Number | None = None
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None


class Verifier(Section):
    """How the deliverables are judged. `environment` is the verifier's own container, None when it shares the agent's."""

    timeout_sec: Number = 600.0
    environment_mode: Literal["shared", "separate"] | None = None
    user: str | int | None = None
    env: dict[str, str] = {}
    environment: Container | None = None

    @property
    def mode(self) -> Literal["shared", "separate"]:
        """An explicit mode wins; else a verifier with its own environment is separate."""
        return self.environment_mode or ("separate" if self.environment else "shared")


class Provenance(Section):
    """Where the code comes from."""

    upstream_repo: str = ""
    upstream_commit: str = ""
    upstream_license: str = ""
    source_archive_sha256: str = ""


class Taxonomy(Section):
    """What kind of task it is. Empty where the dataset has no taxonomy."""

    category: str = ""
    mode: str = ""
    family: str = ""
    tree: str = ""
    affected_checks: list[str] = []
    defect_file: str = ""
    floor_native_estimate: float | None = Field(None, ge=0, le=1)
    canary: str = ""
    difficulty: str = ""
    difficulty_basis: str = ""
    difficulty_design: str = ""
    straw_timeout_sec: Number | None = None


class DifficultyFacts(Section):
    """Measurements that came with the task."""

    measured_pass_rates: dict[str, list[int]] = {}
    container_floor: float | None = Field(None, ge=0, le=1)
    k_sites: int | None = None
    checks_count: int | None = None
    verification_cost: str = ""
    literal_defect: bool | None = None
    near_duplicate_cluster: str | int | None = None
    instruction_disclosure: str | int | float | bool | None = None


class Manifest(Section):
    """task.toml, whole. `name` is org/name, empty when the file has none; `has_steps` tells of a multi-step task."""

    schema_version: str = "1.0"
    artifacts: list[str | dict[str, Any]] = []
    name: str = ""
    description: str = ""
    provenance: Provenance = Provenance()
    taxonomy: Taxonomy = Taxonomy()
    facts: DifficultyFacts = DifficultyFacts()
    environment: Container = Container()
    agent: Phase = Phase()
    verifier: Verifier = Verifier()
    has_steps: bool = False

    @property
    def short_name(self) -> str:
        """The part after the organisation."""
        return self.name.rpartition("/")[2]

    @property
    def agent_network(self) -> NetworkMode:
        """The network of the agent's phase."""
        return self.agent.network_mode or self.environment.network_mode

    @property
    def agent_hosts(self) -> list[str]:
        """The hosts that the agent's phase may reach under an allowlist."""
        return self.environment.allowed_hosts if self.agent.allowed_hosts is None else self.agent.allowed_hosts

    @property
    def verifier_container(self) -> Container:
        """The container that the verifier runs in; the agent's own where there is no other."""
        return self.verifier.environment or self.environment


def read_manifest(text: str) -> Manifest:
    """Read task.toml. Raises InvalidManifest."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidManifest(f"not TOML: {error}") from None
    version = document.get("schema_version", document.get("version", "1.0"))
    if str(version) not in SCHEMA_VERSIONS:
        raise InvalidManifest(f"schema_version {version!r} is unknown; {SCHEMA_VERSIONS[0]} to {SCHEMA_VERSIONS[-1]} can be read")
    try:
        return Manifest.model_validate({**_tables(document), "schema_version": str(version)})
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']} (got {item['input']!r:.60})" for item in error.errors()[:3])
        raise InvalidManifest(told) from None


def _tables(document: dict[str, Any]) -> dict[str, Any]:
    task, metadata = _table(document, "task"), _table(document, "metadata")
    found = {name: document[name] for name in ("artifacts", "environment", "agent", "verifier") if name in document}
    return found | {
        "name": task.get("name", ""),
        "description": task.get("description", ""),
        "provenance": metadata.get("provenance", {}),
        "taxonomy": metadata.get("taxonomy", {}),
        "facts": metadata.get("difficulty_facts", {}),
        "has_steps": bool(document.get("steps")),
    }


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise InvalidManifest(f"{name}: must be a table, got {table!r:.60}")
    return table


def is_task_name(name: str) -> bool:
    """Whether `name` is org/name without a way out of a folder."""
    return bool(_NAME.fullmatch(name)) and ".." not in name and len(name) <= 200


def host_problem(host: str) -> str | None:
    """Why `host` may not stand in an allowlist, or None: host names, *.host, addresses and CIDR blocks may."""
    try:
        ipaddress.ip_network(host, strict=False)
        return None
    except ValueError:
        pass
    if "://" in host:
        return f"{host!r} is a URL; give the host alone"
    if ":" in host or "/" in host:
        return f"{host!r} has a port or a path; give the host alone"
    return None if _HOST.fullmatch(host) and len(host) <= 253 else f"{host!r} is no host name, *.host, address or CIDR block"
