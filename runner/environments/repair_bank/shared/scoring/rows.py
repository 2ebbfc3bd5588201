"""Build a source tree and run cases in it, bounded in time and output. Standard library only: it runs in task images.

`identity` holds Popen's user, group and extra_groups; empty means the caller's own.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections import namedtuple
from pathlib import Path

OUTPUT_TAIL = 4000
FILE_LIMIT = 64 << 20  # bytes a build or a case may write to one file
NOBODY = {"user": 65534, "group": 65534, "extra_groups": []}

Done = namedtuple("Done", "code seconds cpu_seconds output")  # code None: it ran past its limit
RowRun = namedtuple("RowRun", "outcome seconds cpu_seconds output")  # outcome: ran, crash, timeout


def execute(argv, cwd, timeout, identity):
    """Run argv with its own process group, which is ended with it. Returns Done; output is the last of stdout and stderr together."""
    with tempfile.TemporaryFile() as log:
        before, start = _children_cpu(), time.perf_counter()
        process = subprocess.Popen(argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **identity)
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            code = None
        _end_group(process)
        seconds, cpu = time.perf_counter() - start, _children_cpu() - before
        log.seek(max(0, log.seek(0, os.SEEK_END) - OUTPUT_TAIL))
        return Done(code, seconds, cpu, log.read().decode(errors="replace"))


def limit_files():
    """From now on neither this process nor its children write a file beyond FILE_LIMIT."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_LIMIT, FILE_LIMIT))


def _end_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    process.wait()


def _children_cpu():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def other_identity(readable):
    """The identity of nobody, where this process may take it and nobody can read the folder `readable`; else empty."""
    try:
        found = subprocess.run(["test", "-x", str(readable)], check=False, **NOBODY).returncode == 0
    except (PermissionError, subprocess.SubprocessError):
        return {}
    return NOBODY if found else {}


@contextlib.contextmanager
def scratch_folder(mode):
    """A temporary folder. What another identity left there may be past removing; it goes with the container."""
    folder = Path(tempfile.mkdtemp(prefix="grade-"))
    folder.chmod(mode)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpack(archive, tree):
    """The pinned source, unpacked into the folder `tree`."""
    tree.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        tar.extractall(tree)


def build(tree, target, timeout, identity):
    """`make target` in the tree; what is up to date stays."""
    return execute(["make", "--silent", "--jobs=2", target], tree, timeout, identity)


def read_row(cases, check):
    """row.json of a case."""
    return json.loads((Path(cases) / check / "row.json").read_text())


def run_row(tree, cases, row, outputs, identity):
    """Run every deck of a case; the frames of deck d go to outputs/d, which exist and are writable. Stops at the first failure."""
    seconds = cpu = 0.0
    for deck in row["decks"]:
        program = Path(tree) / "build" / row["build"]
        argv = [str(program), str(Path(cases) / row["check"] / deck["input"]), str(Path(outputs) / deck["id"])]
        if not program.is_file():
            return RowRun("crash", seconds, cpu, f"{row['build']} was not built")
        done = execute(argv, tree, row["timeout_sec"], identity)
        seconds, cpu = seconds + done.seconds, cpu + done.cpu_seconds
        if done.code != 0:
            return RowRun("timeout" if done.code is None else "crash", seconds, cpu, done.output)
    return RowRun("ran", seconds, cpu, "")
