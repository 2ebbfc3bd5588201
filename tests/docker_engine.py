"""A container engine for tests: the machine's own when it answers, else one started for this run and ended after it."""

import os
import shutil
import subprocess
import time
from pathlib import Path

START_SECONDS = 60


def answers(host: str | None = None) -> bool:
    """Whether an engine takes commands (at `host`, or where the environment says)."""
    command = ["docker", *(["--host", host] if host else []), "version", "--format", "{{.Server.Version}}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def why_cannot_start() -> str | None:
    if not shutil.which("dockerd"):
        return "no dockerd on this machine; install it with: apt-get install -y docker.io"
    return None if os.geteuid() == 0 else "starting dockerd needs root; start the engine yourself"


class PrivateEngine:
    """An engine with a socket and store of its own. `beside` another one it also has a network namespace of its own: two engines in one
    would take away each other's bridge and firewall rules."""

    def __init__(self, folder: Path, *options: str, beside: bool = True):
        self.folder, self.options, self.beside = folder, options, beside
        self.host = f"unix://{folder}/docker.sock"
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        if shutil.which("cgroupfs-mount") and not Path("/sys/fs/cgroup/cgroup.controllers").exists():
            subprocess.run(["cgroupfs-mount"], check=False)  # a machine without an init system has mounted none
        arguments = ["--host", self.host, "--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"]
        arguments += ["--pidfile", f"{self.folder}/docker.pid", *self.options]
        with open(self.folder / "dockerd.log", "ab") as log:
            command = [*(["unshare", "--net"] if self.beside else []), "dockerd", *arguments]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline = time.monotonic() + START_SECONDS
        while not answers(self.host):
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "dockerd.log").read_text(errors="replace")[-800:]
                self.stop()
                raise RuntimeError(f"dockerd did not start: {tail}")
            time.sleep(0.2)

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def remove(self) -> None:
        """End it, undo mounts of containers it could not end, and remove its store."""
        self.stop()
        for line in Path("/proc/mounts").read_text().splitlines():
            if (mounted := line.split()[1]).startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", mounted], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
