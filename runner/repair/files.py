"""The files of a task's folder: what is kept, what is refused, and the digest that names them."""

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from runner.contract.repair import MAX_FILE_BYTES, MAX_TASK_BYTES, MAX_TASK_FILES, FileEntry, task_digest

# Never part of a task: other people's measurements, caches, version control.
LEFT_OUT = frozenset({"eval", "__pycache__", ".git", ".DS_Store"})


class BadTaskFiles(ValueError):
    """A task's files cannot be kept; the message names the file and the remedy."""


@dataclass(frozen=True)
class TaskFiles:
    """The files below `folder`, sorted by path. Empty folders are not kept."""

    folder: Path
    entries: tuple[FileEntry, ...]
    size: int

    @property
    def digest(self) -> str:
        return task_digest(self.entries)


def read_files(folder: Path) -> TaskFiles:
    """Hash every file of a task. A link inside the folder counts as the file it points to. Raises BadTaskFiles."""
    entries, size = [], 0
    for path in task_paths(folder):
        info = path.stat()
        size += info.st_size
        name = path.relative_to(folder).as_posix()
        if info.st_size > MAX_FILE_BYTES or size > MAX_TASK_BYTES or len(entries) >= MAX_TASK_FILES:
            raise BadTaskFiles(
                f"{name}: a task may have {MAX_TASK_FILES} files, {MAX_FILE_BYTES >> 20} MiB each and {MAX_TASK_BYTES >> 20} MiB in all; "
                "build large inputs inside the image"
            )
        entries.append(FileEntry(name, bool(info.st_mode & stat.S_IXUSR), sha256_of(path)))
    if unprintable := next((entry.path for entry in entries if not entry.path.isprintable()), None):
        raise BadTaskFiles(f"{unprintable!r}: a file name must be printable text; rename it")
    return TaskFiles(folder, tuple(entries), size)


def task_paths(folder: Path) -> list[Path]:
    """Every file of a task, sorted by its relative path. Raises BadTaskFiles on a link that leaves the folder and on anything no file."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for name in folders:
            if (linked := Path(parent, name)).is_symlink():
                raise BadTaskFiles(f"{linked.relative_to(folder)}: a linked folder; put a copy in its place")
        found += [_checked(Path(parent, name), folder) for name in names if name not in LEFT_OUT]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix().encode("utf-8", "surrogateescape"))


def _checked(path: Path, folder: Path) -> Path:
    name = path.relative_to(folder)
    if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
        raise BadTaskFiles(f"{name}: a link that leaves the task's folder; put a copy in its place")
    if not path.is_file():
        raise BadTaskFiles(f"{name}: neither a file nor a folder, or a link to nothing; remove it")
    return path


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
