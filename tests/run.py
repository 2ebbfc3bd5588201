"""`./assay test`: installs the system packages the tests need where it may, then runs pytest with the given arguments."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from runner.environments.repair_bank.factory.workbench import missing_tools
from tests import system

# What is missing, and the packages that bring it; whatever cannot be installed has its tests skipped with the reason.
PACKAGES = (
    ("Chromium for the browser tests", system.chromium, ("chromium",)),
    ("a container engine for the container tests", lambda: shutil.which("dockerd"), ("docker.io", "cgroupfs-mount")),
    ("debootstrap for the base image of task containers", lambda: shutil.which("debootstrap"), ("debootstrap",)),
    ("the compilers of the sample bank", lambda: not missing_tools(), ("make", "gcc", "gfortran", "libc6-dev")),
    ("tmux for the terminal agent", lambda: shutil.which("tmux"), ("tmux",)),
    ("Node, which runs the browser's modules outside of one", lambda: shutil.which("node"), ("nodejs",)),
)

PROCESSES = 2


def install_missing() -> None:
    """As root with apt-get; otherwise the tests skip and say which line to run."""
    missing = [(what, packages) for what, present, packages in PACKAGES if not present()]
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(f"Some tests will be skipped: this machine lacks {'; '.join(what for what, _ in missing)}", flush=True)
        return
    apt("update", "-qq")
    for what, packages in missing:
        print(f"Installing {what} …", flush=True)
        apt("install", "-y", "-qq", "--no-install-recommends", *packages)


def apt(*arguments: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", *arguments]
    if subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False).returncode != 0:
        print(f"`{' '.join(command)}` failed; tests that need it will be skipped.", flush=True)


def sharing(arguments: list[str]) -> list[str]:
    """Two processes for the whole suite where there are two cores; what is named on the command line runs in one."""
    named = any(Path(argument.partition("::")[0]).exists() for argument in arguments)
    own = any(argument.startswith("-n") for argument in arguments)
    if named or own or len(os.sched_getaffinity(0)) < PROCESSES:
        return []
    return ["-n", str(PROCESSES), "--no-loadscope-reorder"]


def main(arguments: list[str]) -> None:
    os.chdir(Path(__file__).resolve().parent.parent)
    install_missing()
    # All processes of a run must collect the same tests in the same order, those parametrized by a set too.
    environment = {"PYTHONHASHSEED": "0", **os.environ}
    # A skipped test says why: what a fresh machine lacks would pass for what cannot be tested.
    os.execve(sys.executable, [sys.executable, "-m", "pytest", "-rs", *sharing(arguments), *arguments], environment)


if __name__ == "__main__":
    main(sys.argv[1:])
