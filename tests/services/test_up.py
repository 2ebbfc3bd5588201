"""The whole house, as `./assay up` starts it: Postgres, broker, web, worker, beat and a real Ray."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from controlplane.env import CHECKOUT
from controlplane.services import processes
from controlplane.services.front import DIRECT
from controlplane.services.house import house_at
from controlplane.services.ports import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.ray]


@pytest.fixture
def home():
    """A home of its own, and an environment without the addresses of this test run."""
    path = Path(f"/tmp/assay-up-{os.getpid()}")
    yield path
    house = house_at(path)
    for folder in (path, house.runtime, house.data):
        shutil.rmtree(folder, ignore_errors=True)


def command(home, *arguments, **changes):
    unset = ("DATABASE_URL", "REDIS_URL", "RAY_ADDRESS", "SECRET_KEY", "DJANGO_SETTINGS_MODULE")
    kept = {key: value for key, value in os.environ.items() if key not in unset and not key.startswith("ASSAY_")}
    environment = {**kept, "ASSAY_HOME": str(home), **changes}
    return subprocess.Popen(
        [sys.executable, "-m", "controlplane.services.commands", *arguments],
        cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )


def start(home, port) -> tuple[subprocess.Popen, str]:
    up = command(home, "up", "--port", str(port))
    lines = []
    for line in up.stdout:
        lines.append(line)
        if line.startswith("Ctrl-C"):
            return up, "".join(lines)
    raise AssertionError("".join(lines))


def status(home) -> dict:
    return json.loads(command(home, "status", "--json").communicate()[0])


def post_job(address: str, script: str, **headers: str) -> None:
    body = json.dumps({"entrypoint": f"{sys.executable} -c '{script}'"}).encode()
    request = urllib.request.Request(f"{address}/api/jobs/", data=body, headers={"content-type": "application/json", **headers})
    deadline = time.monotonic() + 60
    while True:
        try:
            return DIRECT.open(request, timeout=20).close()
        except urllib.error.HTTPError:
            raise
        except OSError:
            # On a loaded machine Ray may be restarting after its own health check gave up.
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def listening_addresses(pids: set[int]) -> set[str]:
    import psutil

    return {c.laddr.ip for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.pid in pids}


def test_a_malformed_variable_is_refused_before_anything_starts(home):
    said = command(home, "up", RAY_ADDRESS="auto").communicate()[0]
    assert said == "assay: RAY_ADDRESS is 'auto'; it must be an http:// or https:// address with a host.\n"
    assert not (home / "house.json").exists()


def test_up_serves_on_loopback_only_and_no_death_leaves_a_process(home):
    port = free_ports(1)[0]
    up, said = start(home, port)
    try:
        assert f"http://127.0.0.1:{port}/login" in said
        assert DIRECT.open(f"http://127.0.0.1:{port}/healthz", timeout=5).status == 200
        report = status(home)
        assert set(report["services"]) == {"postgres", "broker", "ray", "web", "worker", "bulk", "beat"}
        assert all(service["state"] == "running" and service["pss_mib"] > 0 for service in report["services"].values())
        prepared = (home / "logs" / "prepare.log").stat().st_mtime_ns
        again = command(home, "up")
        assert f"already up at http://127.0.0.1:{port}" in (greeting := again.communicate()[0]) and again.returncode == 0
        assert f"Log in once with: http://127.0.0.1:{port}/login/link/" in greeting
        assert (home / "logs" / "prepare.log").stat().st_mtime_ns == prepared, "what serves is not prepared again"

        address = next(line for line in (home / "environment").read_text().splitlines() if line.startswith("RAY_ADDRESS")).split("=")[1]
        for headers in ({}, {"Authorization": "Bearer guessed"}):
            with pytest.raises(urllib.error.HTTPError, match="40[13]"):
                post_job(address, "import time; time.sleep(600)", **headers)
        post_job(address, "import time; time.sleep(600)", Authorization=f"Bearer {(home / 'ray-token').read_text()}")
        family = processes.descendants(up.pid)
        assert listening_addresses({process.pid for process in family}) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    finally:
        os.kill(up.pid, signal.SIGKILL)
        up.communicate()
    assert processes.wait_until_gone(family, seconds=30) == []

    up, _ = start(home, port)
    family = processes.descendants(up.pid)
    warden = json.loads((home / "house.json").read_text())["warden"]
    os.kill(up.pid, signal.SIGSTOP)
    processes.send(processes.Process(*warden), signal.SIGKILL)
    os.kill(up.pid, signal.SIGKILL)
    up.communicate()
    assert "Everything is down." in command(home, "down").communicate()[0]
    assert [process for process in family if processes.alive(process)] == []
    assert "Nothing was running." in command(home, "down").communicate()[0]
