"""Processes as the kernel tells of them. Standard library only: the warden lives on this, and must outlive everything else.

A process is named by its pid and its start time (clock ticks since boot): a pid alone may have been given to somebody else since.
"""

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")


class Process(NamedTuple):
    pid: int
    started: int


def prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def become_subreaper() -> None:
    """Orphaned descendants become our children instead of init's, however often they fork."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signal_number: int) -> None:
    prctl(PR_SET_PDEATHSIG, signal_number)


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the command name: state, parent, group, session, …; None for no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rsplit(")", 1)[1].split()


def identify(pid: int) -> Process | None:
    """The process that has this pid now; None when there is none or only its corpse is left."""
    fields = stat_fields(pid)
    return None if fields is None or fields[0] in "ZX" else Process(pid, int(fields[19]))


def alive(process: Process) -> bool:
    return identify(process.pid) == process


def every_process() -> list[Process]:
    found = (identify(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return [process for process in found if process]


def descendants(ancestor: int) -> list[Process]:
    """All living descendants of a pid, children before grandchildren."""
    children: dict[int, list[Process]] = {}
    for process in every_process():
        fields = stat_fields(process.pid)
        if fields:
            children.setdefault(int(fields[1]), []).append(process)
    found: list[Process] = list(children.get(ancestor, []))
    for process in found:
        found.extend(children.get(process.pid, []))
    return found


def environment(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty where we may not read it."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)


def send(process: Process, signal_number: int) -> None:
    """Signals exactly this process, not a later one that got its pid."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (ProcessLookupError, OSError):
        return
    try:
        if alive(process):
            signal.pidfd_send_signal(descriptor, signal_number)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def wait_until_gone(processes: list[Process], seconds: float) -> list[Process]:
    """Waits for all of them; returns those still alive at the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        left = [process for process in processes if alive(process)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def reap_children() -> list[tuple[int, int]]:
    """Collects every child that ended: (pid, exit code as os.waitstatus_to_exitcode gives it)."""
    ended = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, os.waitstatus_to_exitcode(status)))


def end(processes: list[Process], grace: float) -> None:
    """TERM, then KILL for those that stay."""
    for process in processes:
        send(process, signal.SIGTERM)
    for process in wait_until_gone(processes, grace):
        send(process, signal.SIGKILL)
    wait_until_gone(processes, 5.0)


def pss_bytes(pid: int) -> int:
    """Proportional set size: shared pages counted once over all who share them. 0 where we may not read it."""
    try:
        text = (PROC / str(pid) / "smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:")), 0)
