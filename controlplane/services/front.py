"""The front process's side: it starts the warden, hands it services, and lets everything end by closing the pipe."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

from controlplane.env import CHECKOUT
from controlplane.services import processes
from controlplane.services.house import House, HouseError, NotReady

END_S = 60.0
GIVE_UP_AFTER_RESTARTS = 3
# Loopback is never reached through a proxy, whatever http_proxy says.
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Front:
    """Holds the pipe to the warden. A context manager: leaving it ends every service of the house."""

    def __init__(self, house: House):
        self.house = house

    def __enter__(self) -> "Front":
        house = self.house
        house.prepare()
        self.lock = house.lock()
        sweep(house)
        # Should the warden be killed, its orphans come to us and not to init.
        processes.become_subreaper()
        self.warden = subprocess.Popen(
            [sys.executable, "-m", "controlplane.services.warden", str(house.home), str(house.state_file)],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=open(house.log("warden"), "ab"),
            pass_fds=[self.lock],
            start_new_session=True,
        )
        return self

    def start(self, service: dict) -> None:
        self.tell({"start": service})

    def wait_for(self, name: str, probe, seconds: float) -> None:
        """Calls `probe` until it stops raising NotReady; raises HouseError when time is up or the service keeps ending."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                return probe()
            except NotReady as error:
                reason = error
            service = (read_state(self.house) or {"services": {}})["services"].get(name, {"restarts": 0})
            if service["restarts"] >= GIVE_UP_AFTER_RESTARTS or time.monotonic() > deadline:
                raise HouseError(f"{name} does not answer: {reason}\n{tail(self.house.log(name))}")
            time.sleep(0.05)

    def remove_at_end(self, folder: Path) -> None:
        self.tell({"remove": str(folder)})

    def tell(self, command: dict) -> None:
        os.write(self.warden.stdin.fileno(), json.dumps(command).encode() + b"\n")

    def __exit__(self, *_) -> None:
        self.warden.stdin.close()
        try:
            self.warden.wait(END_S)
        except subprocess.TimeoutExpired:
            self.warden.kill()
            self.warden.wait()
        sweep(self.house)
        processes.reap_children()
        os.close(self.lock)


def http_probe(url: str, headers: dict[str, str] | None = None, judge: Callable[[bytes], None] = lambda body: None):
    """A probe that is content with a 2xx answer to GET `url`, unless `judge` raises NotReady over its body."""

    def probe() -> None:
        try:
            with DIRECT.open(urllib.request.Request(url, headers=headers or {}), timeout=5) as answer:
                body = answer.read()
        except (OSError, HTTPException) as error:
            raise NotReady(f"{url}: {error}") from None
        judge(body)

    return probe


def tail(log: Path, lines: int = 12) -> str:
    text = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join([f"  last lines of {log}:", *(f"  | {line}" for line in text[-lines:])])


def read_state(house: House) -> dict | None:
    """What the warden last wrote; None when there is no house or its warden is gone."""
    state = last_state(house)
    return state if state and processes.alive(processes.Process(*state["warden"])) else None


def last_state(house: House) -> dict | None:
    try:
        return json.loads(house.state_file.read_text())
    except FileNotFoundError:
        return None


def leftovers(house: House) -> list[processes.Process]:
    """Living processes of this house: those in the state file, and all that carry the house's name in their environment."""
    state = last_state(house) or {"services": {}}
    known = [processes.Process(s["pid"], s["started"]) for s in state["services"].values() if s["pid"]]
    marked = [p for p in processes.every_process() if processes.environment(p.pid).get("ASSAY_HOUSE") == str(house.home)]
    ours = {os.getpid(), *ancestors(os.getpid())}
    return [p for p in dict.fromkeys([*known, *marked]) if p.pid not in ours and processes.alive(p)]


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1 and (fields := processes.stat_fields(pid)):
        pid = int(fields[1])
        found.append(pid)
    return found


def sweep(house: House) -> int:
    """Ends what an earlier house left behind; returns how many processes that were."""
    left = leftovers(house)
    processes.end(left, grace=2.0)
    house.state_file.unlink(missing_ok=True)
    return len(left)
