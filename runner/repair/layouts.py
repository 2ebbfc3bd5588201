"""Find the tasks below a folder, in any of three layouts: authored (sparse), compiled (dense), or a plain Harbor dataset."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runner.contract.repair import CATEGORIES, TIERS

INDEX = "index.jsonl"
MANIFEST = "task.toml"
MAX_TASKS = 20_000
MAX_DEPTH = 10
# Traces of a task whose task.toml is missing.
TRACES = ("instruction.md", "defect.json")
Layout = Literal["authored", "compiled", "harbor"]


class NoTasks(ValueError):
    """Nothing below the folder is a task; the message says what was looked for."""


@dataclass(frozen=True)
class Found:
    """A task's folder. `category` and `tier` are what the folders above it say, None where the layout has no such folder."""

    folder: Path
    path: str
    layout: Layout
    env: str
    env_folder: Path | None = None
    category: str | None = None
    tier: str | None = None

    @property
    def is_dense(self) -> bool:
        return (self.folder / "environment" / "Dockerfile").is_file()


@dataclass
class Bank:
    """The tasks of a folder, by path; `notes` tell of what was passed over."""

    root: Path
    layout: Layout
    tasks: list[Found] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def discover(root: Path, name: str = "") -> Bank:
    """The bank below `root`; `name` is the environment of tasks that stand in no folder of their own. Raises NoTasks.

    A compiled bank wins over the authored one it was made from, so that no task counts twice.
    """
    compiled = compiled_root(root)
    base = compiled or root
    folders = sorted(_task_folders(base, 0), key=lambda folder: folder.as_posix())
    if not folders:
        raise NoTasks(f"no {MANIFEST} below {root.name or root}; give the folder that holds the bank's tasks")
    if len(folders) > MAX_TASKS:
        raise NoTasks(f"more than {MAX_TASKS:,} tasks below {root.name}; import its environments one by one")
    placed = [_place(folder, base, compiled is not None, name or root.name) for folder in folders]
    bank = Bank(root, max((item.layout for item in placed), key=[item.layout for item in placed].count))
    for item in placed:
        if item.layout != "harbor" and item.tier is not None and item.tier not in TIERS:
            bank.notes.append(f"{item.path}: passed over, folder {item.tier!r} is none of the tiers {', '.join(TIERS)}")
        else:
            bank.tasks.append(item)
    return bank


def compiled_root(root: Path) -> Path | None:
    """The folder whose environments hold an index.jsonl, the nearest to `root` when there are several; None when there is none."""
    if (root / INDEX).is_file():
        return root.parent
    found = sorted(_indexed(root, 0), key=lambda folder: (len(folder.parts), folder.as_posix()))
    return found[0].parent if found else None


def _indexed(folder: Path, depth: int) -> Iterator[Path]:
    names = set(os.listdir(folder))
    if INDEX in names:
        yield folder
    elif depth < MAX_DEPTH and not _is_task(names):
        for child in _children(folder, names):
            yield from _indexed(child, depth + 1)


def _task_folders(folder: Path, depth: int) -> Iterator[Path]:
    names = set(os.listdir(folder))
    if _is_task(names):
        yield folder
    elif depth < MAX_DEPTH:
        for child in _children(folder, names):
            yield from _task_folders(child, depth + 1)


def _is_task(names: set[str]) -> bool:
    return MANIFEST in names or any(trace in names for trace in TRACES)


def _children(folder: Path, names: set[str]) -> Iterator[Path]:
    for name in sorted(names):
        child = folder / name
        if child.is_dir() and not child.is_symlink() and not name.startswith((".", "__")):
            yield child


def _place(folder: Path, base: Path, is_compiled: bool, name: str) -> Found:
    path = folder.relative_to(base)
    parts = path.parts
    if is_compiled and len(parts) == 4:
        return Found(folder, path.as_posix(), "compiled", parts[0], base / parts[0], parts[1], parts[2])
    if "tasks" in parts and 1 <= (at := parts.index("tasks")) and len(parts) - at in (3, 4):
        tier = parts[at + 2] if len(parts) - at == 4 else None
        return Found(folder, path.as_posix(), "authored", parts[at - 1], base.joinpath(*parts[:at]), parts[at + 1], tier)
    if len(parts) >= 4 and parts[-2] in TIERS and parts[-3] in CATEGORIES:  # a subset was compiled, and so no index written
        return Found(folder, path.as_posix(), "compiled", parts[-4], base.joinpath(*parts[:-3]), parts[-3], parts[-2])
    env = parts[-2] if len(parts) > 1 else name
    above = [base, *(base.joinpath(*parts[:depth]) for depth in range(1, len(parts)))]
    for assets in (place / kind / env for place in above for kind in ("environments", "envs")):
        if assets.is_dir() and not folder.is_relative_to(assets):
            return Found(folder, path.as_posix(), "authored", env, assets)
    return Found(folder, path.as_posix() if parts else folder.name, "harbor", env)
