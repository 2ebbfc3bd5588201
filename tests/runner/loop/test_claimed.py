"""The driver as the control plane starts it: claimed, watched, stopped, fenced. Real processes, real Ray, scripted answers."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest

from runner.contract.canonical import canonical_bytes, digest
from runner.contract.parse import parse
from runner.contract.bank import read_bank
from tests.runner.fake_control import ControlPlane
from tests.runner.loop.conftest import OPEN, ROOT

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture
def plane(document, bank_file, tmp_path):
    plane = ControlPlane()
    config = parse({**document, "evaluation": {"type": "none"}})
    storage = tmp_path / "storage" / "runs" / "r1"
    bundles = [("driver", 0.2), ("learner", 0.8), ("worker-0", 0.5), ("worker-1", 0.5)]
    plane.reply = {
        "token": "assay_t", "run": "r1", "attempt": 1, "config": json.loads(canonical_bytes(config)), "config_hash": digest(canonical_bytes(config)),
        "total_steps": 8, "storage": str(storage), "bank": {"digest": read_bank(bank_file.read_bytes())[2], "url": ""}, "resume": None, "model_checkpoint": None,
        "grant": [{"bundle": name, "node": "n", "node_resource": "node:127.0.0.1", "cpus": cpus, "gpus": 0} for name, cpus in bundles],
    }
    plane.answers["claim"] = lambda number: (200, plane.reply) if number == 1 else (409, {"title": "Claimed already", "detail": "exit"})
    plane.answers["bank"] = (200, bank_file.read_bytes())
    plane.storage = storage
    yield plane
    plane.close()


def drive(plane, ray_address, name):
    environment = {**os.environ, **OPEN, "RAY_ADDRESS": ray_address, "OMP_NUM_THREADS": "1"}
    environment |= {"ASSAY_URL": plane.url, "ASSAY_ATTEMPT": name, "ASSAY_CLAIM_CODE": "code"}
    return subprocess.Popen([sys.executable, "-m", "runner.main"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_until(condition, process, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < end
        time.sleep(0.05)


def actors(plane):
    """The processes that this run registered: other runs on the machine are none of our business."""
    components = plane.bodies("heartbeat")[-1]["components"]
    return [psutil.Process(component["pid"]) for name, component in components.items() if name != "driver"]


def test_a_claimed_run_tells_everything_and_a_second_claimant_is_refused(plane, ray_address):
    process = drive(plane, ray_address, "101")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    (record,) = plane.bodies("exit")
    assert record["outcome"] == "succeeded" and record == json.loads((plane.storage / "attempts" / "1" / "exit.json").read_text())
    assert plane.bodies("state") == [{"state": "running", "phase": "training", "first_step": 1}]
    rows = plane.bodies("checkpoints")
    assert [row["state"] for row in rows if row["step"] == 8] == ["writing", "complete"]
    for row in rows:
        if row["state"] == "complete":
            assert digest(canonical_bytes(row["manifest"])) == digest(open(os.path.join(row["path"], "manifest.json"), "rb").read())
    keys = [(batch.emitter, batch.sequence) for batch in plane.bodies("batches")]
    assert len(keys) == len(set(keys))
    steps = {int(step) for batch in plane.bodies("batches") for step in batch.points.step}
    assert steps >= set(range(1, 9))
    attempt = plane.storage / "attempts" / "1"
    assert not list((attempt / "spool").iterdir()) and not (attempt / "connection.json").exists(), "everything was delivered"
    components = plane.bodies("heartbeat")[-1]["components"]
    assert set(components) == {"driver", "learner", "worker-0", "worker-1"} and all(item["started"] > 1e9 for item in components.values())
    second = drive(plane, ray_address, "101")
    output, _ = second.communicate(timeout=120)
    assert second.returncode == 3 and "Claimed already" in output


def test_a_config_that_cannot_be_run_here_ends_the_attempt_with_the_reason(plane, ray_address):
    plane.reply["config_hash"] = "0" * 64
    process = drive(plane, ray_address, "78")
    said, _ = process.communicate(timeout=300)
    told = plane.bodies("exit")[-1]
    assert process.returncode == 1 and told["outcome"] == "failed" and "is not the one that was launched" in told["reason"], said


def test_a_stop_command_finishes_the_step_saves_and_leaves(plane, ray_address):
    plane.reply["config"]["stages"][1]["steps"] = 5000
    config = parse(plane.reply["config"])
    plane.reply["config_hash"] = digest(canonical_bytes(config))
    process = drive(plane, ray_address, "102")
    wait_until(lambda: any(int(step) >= 4 for batch in plane.bodies("batches") for step in batch.points.step), process)
    plane.answers["heartbeat"] = (200, {"command": "stop", "grace_s": 60})
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    (record,) = plane.bodies("exit")
    assert record["outcome"] == "stopped" and record["reason"] == "stop requested"
    assert plane.bodies("state")[-1]["state"] == "stopping"
    last = plane.bodies("checkpoints")[-1]
    assert (last["state"], last["step"]) == ("complete", record["step"])


def test_a_fenced_driver_leaves_at_once_with_its_actors(plane, ray_address):
    plane.reply["config"]["stages"][1]["steps"] = 5000
    plane.reply["config_hash"] = digest(canonical_bytes(parse(plane.reply["config"])))
    process = drive(plane, ray_address, "103")
    wait_until(lambda: any(int(step) >= 4 for batch in plane.bodies("batches") for step in batch.points.step), process)
    wait_until(lambda: len(plane.bodies("heartbeat")[-1]["components"]) == 4, process)
    mine = actors(plane)
    plane.answers["heartbeat"] = (409, {"title": "Attempt closed", "detail": "attempt 1 is lost; its process must exit"})
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 4, output
    assert not psutil.wait_procs(mine, timeout=30)[1]
    assert not plane.bodies("exit"), "a fenced attempt has no last word"
    logged = (plane.storage / "attempts" / "1" / "driver.log").read_text()
    assert "fenced" in logged


def test_an_outage_of_the_control_plane_costs_no_point(plane, ray_address):
    """Batches are refused for a while in the middle of the run; everything arrives all the same, and once."""
    plane.answers["batches"] = lambda number: (503, {}) if 2 <= number <= 6 else (200, {})
    process = drive(plane, ray_address, "104")
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    taken = {}
    for number, batch in enumerate(plane.bodies("batches"), 1):
        if not 2 <= number <= 6:
            assert (batch.emitter, batch.sequence) not in taken
            taken[batch.emitter, batch.sequence] = batch
    points = [(batch.points.names[series], int(step)) for batch in taken.values() for series, step in zip(batch.points.series, batch.points.step)]
    assert len(points) == len(set(points)) and {step for name, step in points if name == "timing_s/step"} == set(range(1, 9))
    assert sorted(sequence for _, sequence in taken) == list(range(len(taken)))
