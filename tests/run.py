"""`./assay test`: installs the system packages the tests need where it may, then runs pytest with the given arguments."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import system


def install_chromium() -> None:
    """As root with apt-get; otherwise the browser tests skip and say which line to run."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        print(f"Browser tests will be skipped: {system.why_no_chromium()}", flush=True)
        return
    print("Installing Chromium for the browser tests …", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"]):
        done = subprocess.run(command, env=environment, stdout=subprocess.DEVNULL)
        if done.returncode != 0:
            print(f"`{' '.join(command)}` failed; the browser tests will be skipped.", flush=True)
            return


def main(arguments: list[str]) -> None:
    os.chdir(Path(__file__).resolve().parent.parent)
    if not system.chromium():
        install_chromium()
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
