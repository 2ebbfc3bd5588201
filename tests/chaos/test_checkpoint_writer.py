"""A checkpoint's writer is killed at twenty bytes of its work; the control plane believes none of what is left, and resumes before it."""

import os
import signal
import uuid
from dataclasses import asdict
from pathlib import Path

import pytest

from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.selectors import resume_point
from controlplane.checkpoints.services import Report, record_report
from controlplane.runs import attempts
from controlplane.runs.paths import run_folder
from runner.contract.states import AttemptState
from runner.learning import checkpoints
from runner.learning.checkpoints import Manifest

FILES = {"model/model.safetensors": os.urandom(20_000), "trainer/state.pt": os.urandom(9_000), "driver.json": b"{}" * 50}
OFFSETS = 20
CHUNK = 64


def manifest(step: int) -> Manifest:
    fields = {"step": step, "stage": 0, "stage_type": "grpo", "policy_version": step, "adapter": False, "config_hash": "c" * 64}
    return Manifest(**fields, topology={"learners": 1}, versions={}, rng={})


class Pen:
    """Writes byte by byte, as far as the kernel tells; kills its own process at byte `fatal` of everything written."""

    def __init__(self, fatal: int):
        self.left = fatal

    def write_bytes(self, path: Path, data: bytes) -> int:
        with open(path, "wb", buffering=0) as file:
            for begin in range(0, len(data), CHUNK):
                chunk = data[begin : begin + CHUNK]
                file.write(chunk[: self.left])
                self.left -= len(chunk)
                if self.left <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        return len(data)


def write(root: Path, step: int, pen: Pen | None = None) -> tuple[Path, dict]:
    def contents(folder: Path) -> None:
        for name, data in FILES.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)

    with pytest.MonkeyPatch.context() as patch:
        if pen:
            patch.setattr(Path, "write_bytes", lambda path, data: pen.write_bytes(path, data))
        path = checkpoints.write(root, manifest(step), contents)
    return path, asdict(checkpoints.read_manifest(path))


def die_writing(root: Path, step: int, offset: int) -> int:
    """How a process ended that wrote the checkpoint with a pen that is fatal at `offset`."""
    child = os.fork()
    if child == 0:
        try:
            write(root, step, Pen(offset))
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def report(attempt, state: str, step: int, path: Path, found: dict | None = None) -> Checkpoint:
    key = uuid.uuid5(uuid.NAMESPACE_URL, f"{attempt.pk}/{step}")
    return record_report(attempt, key, Report(state=state, stage=0, step=step, path=str(path), policy_version=step, manifest=found or {}))


def whole_size(folder: Path) -> int:
    path, _ = write(folder, 2)
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize("part", range(OFFSETS))
def test_a_writer_killed_at_any_byte_leaves_nothing_to_believe(open_attempt, tmp_path, part):
    root = run_folder(open_attempt.run_id) / "checkpoints" / "attempt_1"
    good, found = write(root, 1)
    assert report(open_attempt, "complete", 1, good, found).state == "complete"
    report(open_attempt, "writing", 2, root / "step_2")
    offset = 1 + part * (whole_size(tmp_path / "measured") - 1) // (OFFSETS - 1)
    assert die_writing(root, 2, offset) == -signal.SIGKILL

    assert attempts.end(open_attempt, AttemptState.LOST, "the driver was killed")
    states = dict(Checkpoint.objects.values_list("step", "state"))
    assert states == {1: "complete", 2: "broken"}
    assert "its writer ended" in Checkpoint.objects.get(step=2).reason
    run = open_attempt.run
    run.refresh_from_db()
    assert resume_point(run).step == 1 and run.state == "queued" and "from step 1" in run.reason
    assert checkpoints.list_complete(root) == [good] and checkpoints.latest(root) == good


def test_a_writer_killed_after_its_last_byte_was_whole(open_attempt):
    """Otherwise the twenty above could fail for another reason than the byte."""
    root = run_folder(open_attempt.run_id) / "checkpoints" / "attempt_1"
    report(open_attempt, "writing", 2, root / "step_2")
    assert die_writing(root, 2, 10**9) == 0
    attempts.end(open_attempt, AttemptState.LOST, "the driver was killed")
    assert dict(Checkpoint.objects.values_list("step", "state")) == {2: "complete"}
