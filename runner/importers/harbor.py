"""Banks of repair tasks: from a folder, a commit of a checkout, or an archive, in any of three layouts.

The files of a task are content-addressed: each is a blob named by its SHA-256, and a task's digest names the listing of its files. What
several tasks share is kept and sent once.
"""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.contract.bank import Demonstration, Task
from runner.contract.repair import ARCHIVE_SUFFIXES, write_listing
from runner.contract.repair_statistics import repair_statistics
from runner.environments import repair_menu
from runner.importers.errors import ImportRefused
from runner.importers.report import Report
from runner.repair.archives import UnsafeArchive, unpack
from runner.repair.bank import Entry, RepairBank, read_bank
from runner.repair.compile import REPORT, CompileError, commit_of, compile_bank
from runner.repair.files import BadTaskFiles
from runner.repair.layouts import NoTasks, discover
from runner.repair.task import parse_json, read_text

GIT_SECONDS = 300.0
# Of the lessons in answering menus: the same bank gives the same ones.
WARM_START_SEED = 20_260_828


@dataclass
class HarborReport(Report):
    """A report that also tells what a bank of repair tasks is made of."""

    bank: RepairBank | None = None
    compiled: dict[str, Any] | None = None

    def document(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """The common report, and under `harbor`: layout, compile, counts, floors, hints, findings, untrained strata, bytes."""
        return super().document(tasks) | {"harbor": statistics(self.bank) | {"compile": self.compiled}}


@dataclass(frozen=True)
class HarborBank:
    """Records and, by digest, the content that they name: a path for a file, bytes for a listing. Valid while it is open."""

    tasks: list[Task]
    demonstrations: list[Demonstration]
    report: HarborReport
    blobs: Mapping[str, Path | bytes] = field(default_factory=dict)


@contextmanager
def opened(source: str, name: str = "", ref: str | None = None, is_sparse: bool = False, mirror: str = "") -> Iterator[HarborBank]:
    """The bank at path `source`: a folder, an archive, or with `ref` that commit of the checkout which holds the folder.

    `is_sparse` compiles it first; `name` stands for the environment of tasks that have none. Raises ImportRefused.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="assay-harbor-")))
        try:
            root, origin = locate(Path(source), scratch, ref)
            compiled = None
            if is_sparse:
                compile_bank(root, scratch / "compiled", mirror=mirror)
                compiled = parse_json(read_text(scratch / "compiled" / REPORT))
                root = scratch / "compiled"
            bank = read_bank(discover(root, name))
        except (UnsafeArchive, NoTasks, CompileError, BadTaskFiles) as error:
            raise ImportRefused(str(error)) from error
        report = HarborReport(origin | {"name": source}, read=len(bank.entries), notes=notes(bank), bank=bank, compiled=compiled)
        tasks = [entry.record for entry in bank.entries]
        yield HarborBank(tasks, list(repair_menu.demonstrations(tasks, WARM_START_SEED)), report, blobs_of(bank.entries))


# ---------------------------------------------------------------- sources
def locate(path: Path, scratch: Path, ref: str | None) -> tuple[Path, dict[str, Any]]:
    """The folder to read and where it comes from. Raises ImportRefused, UnsafeArchive."""
    if path.is_dir() and ref:
        return _export(path, scratch, ref)
    if path.is_dir():
        return path.resolve(), {"kind": "folder", "checkout": commit_of(path)}
    if path.is_file() and path.name.endswith(ARCHIVE_SUFFIXES):
        folder = scratch / "unpacked"
        folder.mkdir()
        unpack(path, folder)
        return _below_wrappers(folder), {"kind": "archive", "file": path.name}
    raise ImportRefused(f"{path} is neither a folder nor an archive ({', '.join(ARCHIVE_SUFFIXES)}); correct the path")


def _below_wrappers(folder: Path) -> Path:
    # Archives of a repository hold one folder named after it.
    while len(entries := list(folder.iterdir())) == 1 and entries[0].is_dir():
        if any((entries[0] / name).exists() for name in ("task.toml", "index.jsonl", "env.toml")):
            break
        folder = entries[0]
    return folder


def _export(path: Path, scratch: Path, ref: str) -> tuple[Path, dict[str, Any]]:
    """The folder as it is in commit `ref` of its checkout, whatever has been changed since."""
    if ref.startswith("-"):
        raise ImportRefused(f"{ref!r} is no commit, branch or tag")
    commit = _git(path, "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}").decode().strip()
    prefix = _git(path, "rev-parse", "--show-prefix").decode().strip()
    packed, folder = scratch / "commit.tar", scratch / "commit"
    top = _git(path, "rev-parse", "--show-toplevel").decode().strip()
    _git(Path(top), "archive", "--format=tar", f"--output={packed}", f"{commit}:{prefix.rstrip('/')}" if prefix else commit)
    folder.mkdir()
    unpack(packed, folder)
    return folder, {"kind": "git", "ref": ref, "checkout": {"commit": commit, "dirty": False}}


def _git(folder: Path, *arguments: str) -> bytes:
    quiet = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    try:
        done = subprocess.run(
            ["git", *quiet, "-C", str(folder), *arguments], capture_output=True, timeout=GIT_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ImportRefused(f"git cannot read {folder}: {error}") from error
    if done.returncode:
        told = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise ImportRefused(f"git cannot read {folder}: {told}; the folder must be in a checkout that has that commit")
    return done.stdout


# ---------------------------------------------------------------- what is sent
def blobs_of(entries: list[Entry]) -> dict[str, Path | bytes]:
    """Every file and every listing by its SHA-256; what tasks share is there once."""
    blobs: dict[str, Path | bytes] = {}
    for entry in entries:
        blobs[entry.files.digest] = write_listing(entry.files.entries)
        for file in entry.files.entries:
            blobs.setdefault(file.sha256, entry.files.folder / file.path)
    return blobs


def notes(bank: RepairBank) -> list[str]:
    """What a reader of the report should know: folders passed over, strata that are never trained."""
    untrained = [
        f"{' '.join(filter(None, group)) or 'all tasks'}: stratum {'/'.join(stratum)} is held out whole, so it is never trained on"
        for group, stratum in bank.untrained
    ]
    return bank.notes + untrained


# ---------------------------------------------------------------- the report
def statistics(bank: RepairBank) -> dict[str, Any]:
    """What the bank is made of, its layout, the strata that are held out whole, and the bytes that its files take when each is kept once."""
    files = {file.sha256: entry.files.folder / file.path for entry in bank.entries for file in entry.files.entries}
    return repair_statistics([entry.record for entry in bank.entries]) | {
        "layout": bank.found.layout,
        "untrained": [{"group": list(group), "stratum": list(stratum)} for group, stratum in bank.untrained],
        "stored_bytes": sum(path.stat().st_size for path in files.values()),
    }
