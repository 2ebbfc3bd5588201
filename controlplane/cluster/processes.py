"""Whether registered processes are still there. A pid alone proves nothing: it is one only with its start time."""

import os
import signal
import socket
from dataclasses import dataclass, field

import psutil

START_TOLERANCE_S = 1.0


@dataclass(frozen=True)
class Seen:
    """`alive` and `gone` are of this host; `elsewhere` cannot be seen from here."""

    alive: list[dict] = field(default_factory=list)
    gone: list[dict] = field(default_factory=list)
    elsewhere: list[dict] = field(default_factory=list)


def look(registered: list[dict]) -> Seen:
    """Sort {component, host, pid, started} entries by what this host can say of them."""
    here, seen = socket.gethostname(), Seen()
    for entry in registered:
        if entry["host"] != here:
            seen.elsewhere.append(entry)
        else:
            (seen.alive if is_alive(entry["pid"], entry["started"]) else seen.gone).append(entry)
    return seen


def is_alive(pid: int, started: float) -> bool:
    """Whether the process that began at `started` (Unix seconds) runs; a zombie does not."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) <= START_TOLERANCE_S and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def describe(entry: dict) -> str:
    """A registered process in words. One that the kernel keeps from dying is told apart: no signal helps it."""
    try:
        stuck = psutil.Process(entry["pid"]).status() == psutil.STATUS_DISK_SLEEP
    except psutil.Error:
        stuck = False
    return f"{entry['component']} (pid {entry['pid']} on {entry['host']}{', in uninterruptible sleep' if stuck else ''})"


def kill(entries: list[dict]) -> None:
    """SIGKILL each process of this host that is still the registered one."""
    for entry in look(entries).alive:
        try:
            os.kill(entry["pid"], signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def merge(registered: list[dict], components: dict, default_host: str) -> list[dict]:
    """`registered` with every process named in a heartbeat's components added once."""
    known = {(entry["host"], entry["pid"], round(entry["started"])) for entry in registered}
    merged = list(registered)
    for name, component in components.items():
        pid, started = component.get("pid"), component.get("started")
        if not isinstance(pid, int) or not isinstance(started, int | float):
            continue
        host = str(component.get("host") or default_host)
        if (host, pid, round(started)) not in known:
            known.add((host, pid, round(started)))
            merged.append({"component": name, "host": host, "pid": pid, "started": float(started)})
    return merged
