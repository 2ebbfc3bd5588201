"""Which simulators belong to whom: a file a leaf, so that what a killed owner left is found and ended by the next one that starts.

A process is known by pid and start time: pids are used again.
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

import psutil


def node_folder() -> Path:
    """Node-local on purpose: pids mean nothing on another node."""
    return Path(os.environ.get("ASSAY_NODE_FOLDER") or tempfile.gettempdir()) / f"assay-scienceworld-{os.getuid()}"


def identity(pid: int) -> list[float]:
    """[pid, start time]. Raises psutil.NoSuchProcess."""
    return [pid, psutil.Process(pid).create_time()]


def is_alive(process: list[float]) -> bool:
    """Whether it still runs; a zombie does not."""
    try:
        found = psutil.Process(int(process[0]))
        return found.create_time() == process[1] and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(process: list[float]) -> None:
    """SIGKILL, unless the pid is another's by now."""
    if is_alive(process):
        try:
            psutil.Process(int(process[0])).kill()
        except psutil.NoSuchProcess:
            pass


def scratch(folder: Path) -> Path:
    """A working folder for one simulator, which writes a file into whichever it stands in."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Path(tempfile.mkdtemp(prefix="simulator-", dir=folder))


def enter(place: Path, leaf: list[float], java: list[float]) -> Path:
    """Write down, beside their working folder, that this process owns the two; returns the file, to be removed when they have ended."""
    folder = place.parent
    path = folder / f"{int(leaf[0])}-{leaf[1]:.2f}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"owner": identity(os.getpid()), "leaf": leaf, "java": java, "place": place.name}))
    partial.replace(path)
    return path


def sweep(folder: Path) -> int:
    """End the processes whose owner is gone; returns how many were found running."""
    ended = 0
    for path in folder.glob("*.json"):
        try:
            entry = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if is_alive(entry["owner"]):
            continue
        left = [process for process in (entry["java"], entry["leaf"]) if is_alive(process)]
        for process in left:
            end(process)
        ended += len(left)
        shutil.rmtree(folder / Path(entry["place"]).name, ignore_errors=True)
        path.unlink(missing_ok=True)
    return ended
