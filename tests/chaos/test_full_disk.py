"""A disk that is really full: a tmpfs of a few MiB. Each writer says so, and nothing that was whole before is torn."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controlplane import storage
from controlplane.env import CHECKOUT
from runner.contract.canonical import canonical_bytes, digest
from runner.contract.events import CONTENT_TYPE, encode_batch
from runner.contract.parse import parse
from runner.learning import checkpoints
from runner.reporting.batches import read_batches
from runner.reporting.emitter import Emitter
from runner.reporting.exit_record import exit_record, write_exit_record
from tests.chaos.test_checkpoint_writer import write
from tests.controlplane.factories import make_batch
from tests.runner.fake_control import ControlPlane

SIZE_MIB = 4


@pytest.fixture
def disk(tmp_path):
    """A file system of SIZE_MIB, and `fill` and `drain` for it."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "tmpfs", str(tmp_path)]
    mounted = subprocess.run(mount, check=False, capture_output=True, text=True) if shutil.which("mount") else None
    if mounted is None or mounted.returncode != 0:
        why = mounted.stderr.strip() if mounted else "there is no mount command"
        pytest.skip(f"no file system of a fixed size can be mounted here: {why}")
    yield Disk(tmp_path)
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


class Disk:
    def __init__(self, path: Path):
        self.path, self.ballast = path, path / "ballast"

    def fill(self) -> None:
        with open(self.ballast, "ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    def drain(self) -> None:
        self.ballast.unlink()


def test_an_emitter_says_what_it_dropped_and_goes_on_when_there_is_room(disk, capsys):
    emitter = Emitter(disk.path / "spool", "driver")
    for step in range(10):
        emitter.emit_points(step, {"loss": float(step)})
    disk.fill()
    for step in range(10, 4000):
        emitter.emit_points(step, {"loss": float(step)})
    assert emitter.dropped and "Errno 28" in capsys.readouterr().err
    disk.drain()
    emitter.emit_points(5000, {"loss": 1.0})
    emitter.close()
    told = [int(step) for batch in read_batches(disk.path / "spool") for step in batch.points.step]
    assert told[:10] == list(range(10)) and told[-1] == 5000
    assert len(told) == len(set(told)) == 4001 - emitter.dropped, "what was not dropped is whole, once and in order"


def test_a_checkpoint_that_finds_no_room_leaves_the_one_before(disk):
    good, _ = write(disk.path, 1)
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        write(disk.path, 2)
    assert checkpoints.list_complete(disk.path) == [good] and checkpoints.verify(good)
    assert [path.name for path in disk.path.glob("step_2*")] == []


def test_an_exit_record_is_whole_or_absent(disk):
    disk.fill()
    with pytest.raises(OSError, match="No space left"):
        write_exit_record(disk.path / "attempt", exit_record("failed", 3, "x" * 100_000))
    assert not (disk.path / "attempt" / "exit.json").exists()


@pytest.mark.django_db
def test_ingest_asks_to_come_again_and_says_why(disk, settings, client, open_attempt):
    settings.ASSAY_STORAGE = disk.path
    storage.put(b"before")
    disk.fill()
    body = encode_batch(make_batch(blobs={digest(blob): blob for blob in [os.urandom(100_000)]}))
    headers = {"Authorization": f"Bearer {open_attempt.token}"}

    def deliver():
        return client.post(f"/api/ingest/{open_attempt.pk}/batches", body, content_type=CONTENT_TYPE, headers=headers)

    refused = deliver()
    assert refused.status_code == 503 and refused["Retry-After"] and "No space left" in refused.json()["detail"]
    disk.drain()
    assert deliver().status_code == 200


def test_a_driver_without_room_for_its_records_says_so_over_the_network(disk):
    plane = ControlPlane()
    config, config_hash = minimal_config()
    plane.answers["claim"] = (
        200,
        {
            "token": "assay_t",
            "run": "r",
            "attempt": 1,
            "number": 1,
            "config": config,
            "config_hash": config_hash,
            "storage": str(disk.path / "runs" / "r"),
            "bank": {"digest": "0" * 64, "url": ""},
            "grant": [],
            "resume": None,
        },
    )
    disk.fill()
    environment = {**os.environ, "ASSAY_URL": plane.url, "ASSAY_ATTEMPT": "1", "ASSAY_CLAIM_CODE": "code"}
    try:
        driver = [sys.executable, "-m", "runner.main"]
        done = subprocess.run(driver, check=False, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=120)
        (record,) = plane.bodies("exit")
    finally:
        plane.close()
    assert done.returncode == 1 and record["outcome"] == "failed"
    assert "No space left" in record["reason"] and "free space" in record["reason"]


def minimal_config() -> tuple[dict, str]:
    config = parse({"name": "full", "stages": [{"type": "sft", "steps": 1}]})
    return json.loads(canonical_bytes(config)), digest(canonical_bytes(config))


def test_time_is_not_spent_on_a_full_disk(disk):
    """A refused record costs training no more than a written one."""
    emitter = Emitter(disk.path / "spool", "driver")
    disk.fill()
    began = time.perf_counter()
    for step in range(1000):
        emitter.emit_points(step, {"loss": 1.0})
    assert (time.perf_counter() - began) / 1000 < 0.001
    emitter.close()
