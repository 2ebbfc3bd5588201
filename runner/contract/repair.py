"""A containerised repair task as a bank version stores it: facts, hints, findings, and the digest that names its files."""

from typing import Any, Iterable, Literal, NamedTuple

from pydantic import Field

from runner.contract.bank import MenuEdit
from runner.contract.canonical import Document, digest
from runner.contract.harbor import NetworkMode

TIERS = ("easy", "medium", "hard", "unrated")
HintLevel = Literal["L1", "L2", "L3"]
HINT_LEVELS: tuple[HintLevel, ...] = ("L1", "L2", "L3")
HINT_LIMIT = 400
BLOCKED = "blocked"
"""The split of tasks that cannot run. It is neither trained on nor evaluated."""

RewardKey = Literal["reward", "reward_repair", "reward_gpu"]
_REWARD_KEYS: dict[str, RewardKey] = {"repair": "reward_repair", "implementation": "reward_repair", "acceleration": "reward", "": "reward"}
CATEGORIES = tuple(filter(None, _REWARD_KEYS))

ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
# A task's files beyond these are refused at import.
MAX_TASK_FILES = 5_000
MAX_FILE_BYTES = 256 << 20
MAX_TASK_BYTES = 1 << 30


def reward_key(category: str, gpus: int = 0) -> RewardKey | None:
    """Which number of reward.json counts for a category; None for one that is not known. GPU accelerations have their own."""
    return "reward_gpu" if category == "acceleration" and gpus else _REWARD_KEYS.get(category)


# ---------------------------------------------------------------- files
class FileEntry(NamedTuple):
    """One file of a task: POSIX path below the task's folder, executable bit, SHA-256 of the content."""

    path: str
    executable: bool
    sha256: str


def write_listing(files: Iterable[FileEntry]) -> bytes:
    """Each file on a line, sorted by path. Its SHA-256 is the task's digest. Raises ValueError on a path that is no plain text."""
    ordered = sorted(files, key=lambda file: file.path.encode())
    for file in ordered:
        if not file.path.isprintable():
            raise ValueError(f"{file.path!r}: a file name must be printable text; rename it")
    return "".join(f"{file.sha256} {'x' if file.executable else '-'} {file.path}\n" for file in ordered).encode()


def read_listing(data: bytes) -> list[FileEntry]:
    """The files of a listing. Raises ValueError on anything that `write_listing` would not write."""
    files = []
    for line in data.decode().splitlines():
        sha256, bit, path = line[:64], line[65:66], line[67:]
        files.append(FileEntry(path, bit == "x", sha256))
    if write_listing(files) != data:
        raise ValueError("not a listing of task files")
    return files


def task_digest(files: Iterable[FileEntry]) -> str:
    """What names a task's content: changes with any file's path, executable bit or bytes, and with nothing else."""
    return digest(write_listing(files))


# ---------------------------------------------------------------- findings
class Rule(NamedTuple):
    """What a finding's code means and what to do about it. `blocks`: nothing, the whole task, or only the terminal agent."""

    title: str
    remedy: str
    blocks: Literal["", "task", "terminal"] = ""


RULES: dict[str, Rule] = {
    "E01": Rule("task.toml is missing or cannot be read", "write a task.toml of schema 1.0 to 1.5", "task"),
    "E02": Rule("the name is not org/name, or another task has it", "give each task one name of its own, org/name, without '..'", "task"),
    "E03": Rule(
        "the instruction is missing, only a canary, or has an unfilled token", "write instruction.md and fill its @TOKEN@s", "task"
    ),
    "E04": Rule("not compiled: no environment/Dockerfile and no docker_image", "import with --compile, or compile the bank first", "task"),
    "E05": Rule("the verifier has nothing to run", "add tests/test.sh, tests/Dockerfile or an image of the verifier", "task"),
    "E06": Rule("the category differs from the folder's", "move the folder or correct metadata.taxonomy.category", "task"),
    "E07": Rule("no reward is known for the category", f"use one of {', '.join(CATEGORIES)}", "task"),
    "E08": Rule(
        "allowed_hosts without an allowlist, or a host that is none", 'set network_mode = "allowlist" and name hosts alone', "task"
    ),
    "E09": Rule(f"a hint is longer than {HINT_LIMIT} characters", "shorten candidate.note in authoring/provenance.json", "task"),
    "E10": Rule("the defect's old text is not found exactly once", "widen `old` until it stands once in the pinned source", "task"),
    "E11": Rule("the fix is not the inverse of the defect", "swap old and new of every edit, in reverse order", "task"),
    "E12": Rule("the source archive is another one", "restore the pinned archive, or correct its SHA-256", "task"),
    "E13": Rule("the task's files are gone or changed since the import", "import the bank again and rebuild its datasets", "task"),
    "E14": Rule("[[steps]]: tasks of several steps are not supported", "split the task into one task a step", "task"),
    "E15": Rule("the agent's image copies the solution, the tests or the reference", "copy only what the agent may see", "task"),
    "E16": Rule("the agent's image has no tmux", "install tmux in environment/Dockerfile, or use the menu agent", "terminal"),
    "W01": Rule("the tier is unrated", "measure a pass rate and set metadata.taxonomy.difficulty"),
    "W02": Rule("the floor is above 0.65", "little is left to earn; choose checks that the defect breaks harder"),
    "W03": Rule("the native and the container floor differ", "the container's counts; look why the broken build crashes there"),
    "W04": Rule("a row's timeout is below five times its measured wall time", "raise timeout_sec in the case's row.json and compile again"),
    "W05": Rule("the agent has the public network", "the answer is one clone away; use no-network or an allowlist"),
    "W06": Rule("the task needs a GPU and no node has one", "add a GPU node, or leave such tasks out"),
    "W07": Rule("the defect's line is not known, so L1 says what L2 says", "record candidate.meta.line, or import with the source archive"),
    "W08": Rule("nearly the same as another task", "keep one of the cluster in training"),
    "W09": Rule("the verifier may take longer than runs allow", "raise the run's verifier timeout to the task's"),
    "W10": Rule("no canary", "set metadata.taxonomy.canary, so that leaks into training data can be found"),
    "W11": Rule("no oracle and nop result for these files", "prove the anchors"),
}


class Finding(Document):
    """One thing wrong with a task: E blocks, W warns. `detail` names the file, the value and the place."""

    code: str = Field(pattern=r"^[EW]\d\d$")
    detail: str

    @property
    def rule(self) -> Rule:
        return RULES[self.code]

    @property
    def is_error(self) -> bool:
        return self.code[0] == "E"


def is_blocked(findings: Iterable[Finding]) -> bool:
    """Whether a task with these findings can run at all."""
    return any(RULES[finding.code].blocks == "task" for finding in findings)


# ---------------------------------------------------------------- the record
class RepairPayload(Document):
    """A containerised task. `task_digest` names its files; times are seconds, None where the task sets no limit.

    `hints` holds the text of each level that has one; `hint_degraded` says that L1 could only say what L2 says. `floor` is what the
    unrepaired code scores: the container's where it is known, else the native one, else 0. `facts` came with the task, among them
    measured pass rates.
    """

    task_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    name: str
    env: str = ""
    category: str = ""
    family: str = ""
    tree: str = ""
    tier: str = "unrated"
    mode: str = ""
    reward_key: RewardKey = "reward"
    instruction: str = ""
    description: str = ""
    canary: str = ""
    checks: list[str] = []
    floor: float = Field(0.0, ge=0, le=1)
    floor_native: float | None = None
    floor_container: float | None = None
    gpus: int = 0
    cpus: float | None = None
    memory_mb: int | None = None
    network_mode: NetworkMode = "no-network"
    allowed_hosts: list[str] = []
    verifier_mode: Literal["shared", "separate"] = "separate"
    timeout_sec: float | None = None
    verifier_timeout_sec: float = 600.0
    build_timeout_sec: float = 600.0
    verifier_build_timeout_sec: float = 600.0
    hints: dict[str, str] = {}
    hint_degraded: bool = False
    menu: list[MenuEdit] = []
    near_duplicate: str = ""
    facts: dict[str, Any] = {}
    findings: list[Finding] = []
    files: int = 0
    bytes: int = 0
