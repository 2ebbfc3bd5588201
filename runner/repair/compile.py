"""Sparse → dense: fill tokens and fan files out, as one env.toml per environment says. The same input gives the same bytes.

OUT/<env>/<category>/<tier>/<task>/   dense task folders
OUT/<env>/index.jsonl                 one row per task; its presence marks a compiled environment
OUT/compile.json                      which commit was compiled, when, for which mirror, and each task's digest
"""

import json
import re
import shlex
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path

from runner.contract.canonical import digest as sha256
from runner.contract.repair import TIERS
from runner.repair import apply_defect
from runner.repair.env_file import BANK_PREFIX, SOURCE_TAR, TASK_PREFIX, EnvFile, FileRule, InvalidEnvFile, read_env_file
from runner.repair.files import BadTaskFiles, read_files, task_paths
from runner.repair.layouts import INDEX, MANIFEST, Found, NoTasks, discover
from runner.repair.sources import pack_source
from runner.repair.task import Task, load

COMPILER_VERSION = 1
REPORT = "compile.json"
TOKEN = re.compile(r"@([A-Z][A-Z0-9_]*)@")
# category → companion files that a sparse task of it must have. Any other category needs them all.
_COMPANIONS = ("defect.json", "fix.json", "authoring/provenance.json")
_OPTIONAL_FOR = {"acceleration": frozenset(_COMPANIONS)}
_DEFECT_PLACES = (
    ("defect.json", ("environment/defect/defect.json", "tests/defect/defect.json")),
    ("fix.json", ("solution/defect_fix.json",)),
)


class CompileError(ValueError):
    """The bank cannot be compiled; the message names the task or file, the value and the remedy."""


@dataclass(frozen=True)
class Compiled:
    """One dense task. `path` is relative to the output folder."""

    name: str
    path: str
    digest: str
    row: dict


def canary_of(name: str) -> str:
    """The GUID that marks a task's text: a function of its name."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


def compile_bank(bank: Path, out: Path, only: str = "*", mirror: str = "") -> list[Compiled]:
    """Compile the authored bank at `bank` into `out`. `only` is a glob over task folder names.

    A full compile replaces `out` whole and writes the index; a subset replaces its own tasks alone. Raises CompileError.
    """
    envs = _envs(bank)
    if only == "*":
        _replace(out)
    done = [task for env_folder, tasks in envs for task in _compile_env(bank, env_folder, tasks, out, only, mirror)]
    if not done:
        raise CompileError(f"{only!r} matches no task of {bank.name}")
    if only == "*":
        _write_indexes(done, out)
    _write_report(bank, out / REPORT, done, mirror)
    return done


def _envs(bank: Path) -> list[tuple[Path, list[Found]]]:
    root = bank / "envs"
    if not root.is_dir():
        raise CompileError(f"{bank}: no folder envs; give the root of an authored bank")
    try:
        found = [item for item in discover(bank).tasks if item.layout == "authored" and item.env_folder]
    except NoTasks as error:
        raise CompileError(str(error)) from None
    folders = sorted({item.env_folder for item in found})
    return [(folder, [item for item in found if item.env_folder == folder]) for folder in folders]


def _replace(out: Path) -> None:
    # Only a folder that a compiler wrote is wiped: a mistyped path must not cost anybody's work.
    if out.is_dir() and any(out.iterdir()) and not (out / REPORT).is_file():
        raise CompileError(f"{out} is not empty and holds no {REPORT}; give an empty folder or an earlier output")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)


def _compile_env(bank: Path, env_folder: Path, tasks: list[Found], out: Path, only: str, mirror: str) -> Iterator[Compiled]:
    try:
        env = read_env_file(env_folder)
        builder = Builder(bank, env_folder, env, mirror)
    except (InvalidEnvFile, BadTaskFiles) as error:
        raise CompileError(str(error)) from None
    for found in tasks:
        if fnmatchcase(found.folder.name, only):
            yield builder.build(load(found), out)


# ---------------------------------------------------------------- one environment
class Builder:
    """Builds the tasks of one environment."""

    def __init__(self, bank: Path, env_folder: Path, env: EnvFile, mirror: str):
        self.bank, self.env_folder, self.env, self.mirror = bank, env_folder, env, mirror
        self.source_name, self.source = self._source()
        self.applier = Path(apply_defect.__file__).read_bytes()

    def _source(self) -> tuple[str, bytes]:
        declared = self.env.source
        place = self.env_folder / (declared.directory or declared.archive)
        if not place.exists():
            raise InvalidEnvFile(f"{place}: named by [source] of {self.env.name}'s env.toml, but not there")
        if declared.directory:
            return SOURCE_TAR, pack_source(place)
        packed = place.read_bytes()
        if (found := sha256(packed)) != declared.sha256:
            raise InvalidEnvFile(f"{place}: its SHA-256 is {found}, env.toml says {declared.sha256}; restore the pinned archive")
        return place.name, packed

    def build(self, task: Task, out: Path) -> Compiled:
        """Write one dense task below `out`. Raises CompileError."""
        check(task, self.env)
        kind, found = task.manifest.taxonomy, task.found
        path = f"{self.env.name}/{kind.category}/{found.tier}/{found.folder.name}"
        folder = out / path
        shutil.rmtree(folder, ignore_errors=True)
        if found.is_dense:
            self._copy_through(task, folder)
        else:
            target = Target(folder)
            self._companions(task, target)
            self._rules(task, target)
        try:
            digest = read_files(folder).digest
        except BadTaskFiles as error:
            raise CompileError(f"{found.path}: {error}") from None
        return Compiled(task.manifest.name, path, digest, index_row(task, path, found.is_dense))

    def _copy_through(self, task: Task, folder: Path) -> None:
        for path in task_paths(task.folder):
            Target(folder).write(path.relative_to(task.folder).as_posix(), path.read_bytes(), _is_executable(path))

    def _companions(self, task: Task, target: "Target") -> None:
        for name in (MANIFEST, "instruction.md", "authoring/provenance.json"):
            if (path := task.folder / name).is_file():
                target.write(name, path.read_bytes())
        for name, places in _DEFECT_PLACES:
            if (path := task.folder / name).is_file():
                for place in places:
                    target.write(place, path.read_bytes())
                    target.write(f"{place.rpartition('/')[0]}/apply_defect.py", self.applier, executable=True)
        for place in self.env.source.to:
            target.write(f"{place}/{self.source_name}", self.source)

    def _rules(self, task: Task, target: "Target") -> None:
        tokens = self._tokens(task)
        kind = task.manifest.taxonomy
        for rule in self.env.files:
            if (not rule.categories or kind.category in rule.categories) and (not rule.trees or kind.tree in rule.trees):
                for check in self._repeats(rule, task):
                    self._place(rule, check, task, target, tokens)

    def _repeats(self, rule: FileRule, task: Task) -> list[str]:
        return self.env.trees[task.manifest.taxonomy.tree].checks if "{check}" in rule.origin else [""]

    def _place(self, rule: FileRule, check: str, task: Task, target: "Target", tokens: dict[str, str]) -> None:
        origin = rule.origin.replace("{check}", check)
        base = {TASK_PREFIX: task.folder, BANK_PREFIX: self.bank}.get(origin.partition(":")[0] + ":", self.env_folder)
        source = base / origin.removeprefix(TASK_PREFIX).removeprefix(BANK_PREFIX)
        if not source.exists():
            if rule.optional:
                return
            raise CompileError(f"{task.found.path}: {source} is not there; correct `from = {rule.origin!r}` or set optional = true")
        files = task_paths(source) if source.is_dir() else [source]
        for place in rule.to:
            place = place.replace("{check}", check)
            for path in files:
                below = f"/{path.relative_to(source).as_posix()}" if path != source else ""
                executable = _is_executable(path) if rule.executable is None else rule.executable
                target.write(place + below, self._content(path, rule, tokens, task), executable)

    def _content(self, path: Path, rule: FileRule, tokens: dict[str, str], task: Task) -> bytes:
        if not rule.fill:
            return path.read_bytes()
        try:
            return fill(path.read_text(encoding="utf-8"), tokens).encode()
        except UnicodeDecodeError:
            raise CompileError(f"{path}: not UTF-8, so it cannot be filled; set fill = false") from None
        except KeyError as error:
            known = ", ".join(sorted(tokens))
            raise CompileError(
                f"{task.found.path}: {path.name} has the token @{error.args[0]}@, which nothing fills; known are {known}"
            ) from None

    def _tokens(self, task: Task) -> dict[str, str]:
        manifest, kind, env = task.manifest, task.manifest.taxonomy, self.env
        edits = [edit for edit in (task.defect or {}).get("edits", []) if isinstance(edit, dict)]
        floor = kind.floor_native_estimate
        own = {
            "NAME": manifest.short_name,
            "TASK_NAME": manifest.name,
            "CANARY": task.canary,
            "CATEGORY": kind.category,
            "FAMILY": kind.family,
            "TREE": kind.tree,
            "MODE": kind.mode,
            "TIER": task.found.tier,
            "FLOOR": "0.0" if floor is None else repr(floor),
            "CHECKS_JSON": json.dumps(kind.affected_checks),
            "CHECKS_SH": shlex.join(kind.affected_checks),
            "BASE_IMAGE": env.base.image,
            "BASE_DIGEST": env.base.digest,
            "SOURCE_ARCHIVE": self.source_name,
            "SOURCE_SHA256": sha256(self.source),
            "SOURCE_COMMIT": env.source.commit,
            "STRIP_SH": shlex.join(env.source.strip),
            "DEFECT_FILES_SH": shlex.join(dict.fromkeys(str(edit.get("file")) for edit in edits)),
            "APT_MIRROR": self.mirror,
            "ROW_TIMEOUT": "120",
            "STRAW_TIMEOUT": f"{kind.straw_timeout_sec or 600:g}",
        }
        return own | env.tokens | env.trees[kind.tree].tokens | ({"APT_MIRROR": self.mirror} if self.mirror else {})


class Target:
    """A dense task's folder while it is written: every path once."""

    def __init__(self, folder: Path):
        self.folder = folder

    def write(self, path: str, content: bytes, executable: bool = False) -> None:
        """Raises CompileError when two rules write the same path with different content."""
        place = self.folder / path
        if place.is_file() and place.read_bytes() != content:
            raise CompileError(f"{self.folder.name}: two sources for {path}; let one rule of env.toml name it")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        place.chmod(0o755 if executable else 0o644)


def fill(text: str, tokens: dict[str, str]) -> str:
    """Replace every @TOKEN@. Raises KeyError naming the first one that `tokens` lacks."""
    return TOKEN.sub(lambda match: tokens[match[1]], text)


def _is_executable(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o100)


# ---------------------------------------------------------------- checks
def check(task: Task, env: EnvFile) -> None:
    """What a sparse task must satisfy to be compiled. Raises CompileError naming all that is wrong."""
    if task.manifest is None:
        raise CompileError(f"{task.found.path}/{MANIFEST}: {task.problem}")
    if wrong := list(_wrong(task, env)):
        raise CompileError(f"{task.found.path}: {'; '.join(wrong)}")


def _wrong(task: Task, env: EnvFile) -> Iterator[str]:
    manifest, kind, found = task.manifest, task.manifest.taxonomy, task.found
    if found.tier is None:
        yield f"stands directly under {found.category!r}; move it into a tier folder: {', '.join(TIERS)}"
    elif found.tier != (kind.difficulty or "unrated"):
        yield f"taxonomy.difficulty is {kind.difficulty!r}, its tier folder {found.tier!r}; make them equal"
    if found.category != kind.category:
        yield f"taxonomy.category is {kind.category!r}, its folder {found.category!r}; make them equal"
    if manifest.short_name != found.folder.name:
        yield f"task.name is {manifest.name!r}, its folder {found.folder.name!r}; make the short name equal"
    if canary_of(manifest.name) not in kind.canary:
        yield f"taxonomy.canary is {kind.canary!r}; it must contain {canary_of(manifest.name)}"
    if kind.tree not in env.trees:
        yield f"taxonomy.tree is {kind.tree!r}; env.toml has {', '.join(sorted(env.trees))}"
    elif kind.affected_checks != env.trees[kind.tree].checks:
        yield f"taxonomy.affected_checks are {kind.affected_checks}, those of tree {kind.tree!r} are {env.trees[kind.tree].checks}"
    if not found.is_dense:
        yield from _missing(task, kind.category)


def _missing(task: Task, category: str) -> Iterable[str]:
    needed = {"instruction.md", *_COMPANIONS} - _OPTIONAL_FOR.get(category, frozenset())
    return (f"{name} is missing" for name in sorted(needed) if not (task.folder / name).is_file())


# ---------------------------------------------------------------- records
def index_row(task: Task, path: str, dense: bool) -> dict:
    """A row of index.jsonl."""
    kind = task.manifest.taxonomy
    named = (
        "mode",
        "family",
        "tree",
        "affected_checks",
        "floor_native_estimate",
        "canary",
        "difficulty",
        "difficulty_basis",
        "difficulty_design",
    )
    row = {"task": task.manifest.short_name, "category": kind.category, "path": path.partition("/")[2], "dense": dense}
    return row | {name: getattr(kind, name) for name in named}


def _write_indexes(done: list[Compiled], out: Path) -> None:
    for env in sorted({task.path.partition("/")[0] for task in done}):
        rows = [task.row | {"digest": task.digest} for task in sorted(done, key=lambda task: task.path) if task.path.startswith(f"{env}/")]
        text = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)
        (out / env / INDEX).write_text(text)


def _write_report(bank: Path, path: Path, done: list[Compiled], mirror: str) -> None:
    earlier = json.loads(path.read_text())["digests"] if path.is_file() else {}
    report = {
        "compiler": COMPILER_VERSION,
        "commit": commit_of(bank),
        "mirror": mirror or None,
        "compiled_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "digests": earlier | {task.name: task.digest for task in done},
    }
    path.write_text(json.dumps(report, ensure_ascii=False, indent=1, sort_keys=True) + "\n")


def commit_of(folder: Path) -> dict | None:
    """{commit, dirty} of the checkout that holds `folder`, None when it is in none or git is not installed."""
    try:
        commit = _git(folder, "rev-parse", "HEAD").strip()
        return {"commit": commit, "dirty": bool(_git(folder, "status", "--porcelain", "--", ".").strip())}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    # A repository's own configuration may name programs to run; these are the ones that reading could start.
    quiet = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    command = ["git", *quiet, "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, stdin=subprocess.DEVNULL).stdout
