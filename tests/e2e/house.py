"""A whole embedded Assay of its own, as a user's machine has it: started by the code of `./assay up`, reached over HTTP alone."""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.env import CHECKOUT
from controlplane.services import processes
from controlplane.services.front import DIRECT
from controlplane.services.house import house_at
from controlplane.services.ports import free_ports

OURS = ("DATABASE_URL", "REDIS_URL", "RAY_ADDRESS", "SECRET_KEY", "DJANGO_SETTINGS_MODULE")
LOGIN = "Log in once with: "
PATIENCE_S = 300.0


class House:
    """url, login (the one-time link), and two other doors: REST and the command line."""

    def __init__(self, **settings: str):
        """`settings` are variables of its environment."""
        self.home = Path(tempfile.mkdtemp(prefix="assay-e2e-"))
        self.folders = (self.home, house_at(self.home).runtime, house_at(self.home).data)
        kept = {key: value for key, value in os.environ.items() if key not in OURS and not key.startswith("ASSAY_")}
        self.environment = {**kept, "ASSAY_HOME": str(self.home), **settings}
        self.port = free_ports(1)[0]
        self.start()

    def start(self) -> None:
        """Serve from this home, until `end`."""
        argv = [sys.executable, "-m", "tests.e2e.house_process", str(self.port), str(os.getpid())]
        self.process = subprocess.Popen(
            argv, cwd=CHECKOUT, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        said = self._until_serving()
        self.login = next(line.removeprefix(LOGIN) for line in said if line.startswith(LOGIN))
        self.url = self.login.split("/login/")[0]
        self.family = processes.descendants(self.process.pid)

    def _until_serving(self) -> list[str]:
        said = []
        for line in self.process.stdout:
            said.append(line.strip())
            if line.startswith("Ctrl-C"):
                return said
        raise AssertionError("the house did not start:\n" + "\n".join(said))

    def end(self) -> tuple[list, list[Path]]:
        """Ends the house as Ctrl-C does; returns the processes and folders it left behind."""
        self.family = list({*self.family, *processes.descendants(self.process.pid)})
        self.process.terminate()
        self.process.communicate(timeout=120)
        return processes.wait_until_gone(self.family, seconds=30), [folder for folder in self.folders if folder.exists()]

    def rest(self, path: str, token: str, document: dict | None = None) -> bytes:
        """The body of a GET, or of a POST of `document`; raises urllib's HTTPError for a refusal."""
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        body = None if document is None else json.dumps(document).encode()
        with DIRECT.open(urllib.request.Request(f"{self.url}/api/v1{path}", data=body, headers=headers), timeout=120) as answer:
            return answer.read()

    def token(self) -> str:
        """What the command line of this house uses."""
        return (self.home / "token").read_text().strip()

    def run(self, identifier: str) -> dict:
        return json.loads(self.rest(f"/runs/{identifier}", self.token()))

    def cli(self, *arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "controlplane.cli", *arguments]
        return subprocess.run(command, cwd=CHECKOUT, env=self.environment, capture_output=True, text=True)

    def drivers(self) -> list[processes.Process]:
        """Drivers of runs that live now."""
        return [process for process in processes.descendants(self.process.pid) if is_driver(process)]


def is_driver(process: processes.Process) -> bool:
    words = command(process).split()
    return bool(words) and "python" in words[0] and words[1:] == ["-m", "runner.main"]


def command(process: processes.Process) -> str:
    """Its command line; empty when it is gone."""
    try:
        return (processes.PROC / str(process.pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


@contextmanager
def served(kind: type[House]) -> Iterator[House]:
    """A house of that kind while the block runs; afterwards nothing of it may be left, no process and no folder."""
    house = kind()
    try:
        yield house
    finally:
        left = house.end()
    assert left == ([], [])
