"""The client and the reconciler against a real Ray head, with a real driver process at the other end."""

import os
import secrets
import shlex
import signal
import sys
import time
from pathlib import Path

import pytest

from controlplane.cluster.models import Grant, Node
from controlplane.runs import reconcile
from controlplane.runs.models import Run
from controlplane.runs.ray_jobs import JobExists, RayJobs, RayUnreachable
from controlplane.runs.services import request_stop
from controlplane.services import ray_head
from controlplane.services.front import Front
from controlplane.services.house import House
from tests.controlplane.runs.conftest import make_due, run_due

pytestmark = [pytest.mark.ray, pytest.mark.slow]
PATIENT_S = 30.0
DRIVER = Path(__file__).with_name("trivial_driver.py")


@pytest.fixture(scope="module")
def cluster():
    """Address and token of a head of this module's own."""
    folder = Path(f"/tmp/assay-test-ray-{os.getpid()}-{secrets.token_hex(3)}")
    folder.mkdir(mode=0o711)
    house = House(home=folder / "home", data=folder / "data", runtime=folder / "run")
    inherited = {key: value for key, value in os.environ.items() if key not in ("SECRET_KEY", "DATABASE_URL", "REDIS_URL", "RAY_ADDRESS")}
    with Front(house) as front:
        front.remove_at_end(folder)
        service, address = ray_head.service(house, inherited)
        front.start(service)
        front.wait_for("ray", ray_head.probe(house, address), seconds=120)
        yield address, ray_head.token_file(house).read_text()


@pytest.fixture
def head(cluster, settings):
    """Its address, the control plane having its token."""
    address, settings.RAY_AUTH_TOKEN = cluster
    return address


def until(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.3)
    return found


def test_a_job_is_submitted_once_found_and_stopped(head):
    client, name = RayJobs(head, timeout=PATIENT_S), f"assay-{secrets.token_hex(4)}"
    [node] = until(client.nodes)
    assert node.name == "local" and node.cpus == os.cpu_count() and node.resource == "assay_node:local"
    submission = {"env": {"GREETING": "hello"}, "metadata": {"run": "r"}, "resources": {node.resource: 0.001}}
    entrypoint = f"{shlex.quote(sys.executable)} -c 'import os, time; print(os.environ[\"GREETING\"], flush=True); time.sleep(300)'"
    assert client.job(name) is None
    client.submit(name, entrypoint, **submission)
    with pytest.raises(JobExists):
        client.submit(name, entrypoint, **submission)
    until(lambda: client.job(name).status == "RUNNING")
    assert client.job(name).metadata == {"run": "r"}
    until(lambda: "hello" in client.logs(name))
    assert name in [job.submission_id for job in client.jobs()] and client.groups() == []
    assert client.stop(name) is True
    assert until(lambda: client.job(name).is_over and client.job(name)).status == "STOPPED"
    assert client.delete(name) is True and client.job(name) is None


def test_without_the_token_nothing_is_run_or_read(head, settings):
    for settings.RAY_AUTH_TOKEN in ("", "guessed"):
        for ask in (lambda client: client.submit("assay-stranger", "true", {}, {}, {}), RayJobs.jobs, RayJobs.nodes):
            with pytest.raises(RayUnreachable, match="does not take our token"):
                ask(RayJobs(head, timeout=PATIENT_S))


def step(run, wanted, number):
    """A tick now and then until attempt `number` is in state `wanted`; returns it."""

    def looked():
        make_due(run)
        run_due()
        return run.attempts.filter(number=number, state=wanted).first()

    return until(looked)


@pytest.mark.django_db(transaction=True)
def test_a_run_starts_survives_its_drivers_death_and_stops(head, settings, live_server, launch, owner, monkeypatch):
    settings.RAY_ADDRESS, settings.ASSAY_CALLBACK_URL = head, live_server.url
    monkeypatch.setattr(reconcile, "RayJobs", lambda: RayJobs(timeout=PATIENT_S))
    asked = reconcile.job_request
    entrypoint = f"{shlex.quote(sys.executable)} {shlex.quote(str(DRIVER))}"
    monkeypatch.setattr(reconcile, "job_request", lambda attempt: {**asked(attempt), "entrypoint": entrypoint})

    run = launch()
    first = step(run, "running", number=1)
    [driver] = [entry for entry in first.processes if entry["component"] == "driver"]
    assert Node.objects.get().state == "ready" and first.resumed_from is None

    os.kill(driver["pid"], signal.SIGKILL)
    step(run, "running", number=2)
    assert run.attempts.get(number=1).state == "lost"
    assert Grant.objects.get(attempt=first).state == "released"

    request_stop(owner, Run.objects.get(pk=run.pk))
    ended = step(run, "stopped", number=2)
    assert ended.exit_record["outcome"] == "stopped"
    until(lambda: (make_due(run), run_due(), Grant.objects.get(attempt=ended).state == "released")[-1])
    run.refresh_from_db()
    assert (run.state, run.reason) == ("stopped", "as asked")
