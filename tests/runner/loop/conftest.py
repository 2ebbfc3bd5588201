"""One local Ray a test session, and runs of the real driver on it without a control plane."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from controlplane.services.ports import free_ports
from controlplane.services.ray_head import SETTINGS
from runner.assignment import Assignment, local_grant
from runner.contract.bank import Demonstration, Task, write_bank
from runner.contract.parse import parse
from runner.reporting.batches import read_batches

ROOT = Path(__file__).parents[3]
# A token that some other Ray of this user left in the home folder is none of this one's.
OPEN = {**SETTINGS, "RAY_AUTH_MODE": "disabled"}


@pytest.fixture(scope="session")
def ray_address():
    """The address of a Ray of this test session's own; it ends with the session."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={port}"]
    argv += ["--include-dashboard=false", "--num-cpus=2", f"--temp-dir={folder}", "--object-store-memory=100000000", "--disable-usage-stats"]
    argv += ["--min-worker-port=0", "--max-worker-port=0"]
    log = open(folder / "head.log", "w")
    head = subprocess.Popen(argv, env={**os.environ, **OPEN}, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
    try:
        _wait_for(folder / "head.log", "Ray runtime started")
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        head.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(log: Path, text: str, seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while text not in log.read_text():
        assert time.monotonic() < end, log.read_text()[-2000:]
        time.sleep(0.1)


SUBJECTS = ["iron", "gold", "tin", "neon", "lead", "zinc", "argon", "boron", "carbon", "silver"]


def choice_task(number: int, split: str) -> Task:
    options = [SUBJECTS[(number + shift) % 10] for shift in range(4)]
    choices = [{"label": label, "text": text} for label, text in zip("ABCD", options, strict=True)]
    payload = {"instruction": "Answer with a letter.", "question": f"Which is number {number}?", "choices": choices, "answer_key": "ABCD"[number % 4]}
    return Task(key=f"{split}-{number:02}", split=split, domain=["physics", "biology"][number % 2], level="L1", payload=payload)


@pytest.fixture(scope="session")
def bank_file(tmp_path_factory):
    """Thirty questions, ten of them held out, with statements and answered questions for a warm start."""
    tasks = [choice_task(number, "train" if number < 20 else "eval") for number in range(30)]
    facts = [Demonstration(key=f"fact-{number}", kind="statement", completion=f"{SUBJECTS[number % 10]} is number {number}.") for number in range(20)]
    forms = [Demonstration(key=f"form-{number}", kind="format", prompt=f"Which is number {number}?", completion="ABCD"[number % 4]) for number in range(20)]
    data, _ = write_bank([*tasks, *facts, *forms])
    path = tmp_path_factory.mktemp("bank") / "bank.zst"
    path.write_bytes(data)
    return path


@pytest.fixture(scope="session")
def document(tiny_qwen3):
    """A warm start of three steps and five GRPO steps of a random two-layer model."""
    return {
        "name": "test",
        "seed": 3,
        "model": {"source": {"type": "path", "path": str(tiny_qwen3)}, "max_length": 256},
        "environment": {"type": "quiz"},
        "sampling": {"max_new_tokens": 2},
        "stages": [
            # Enough for a random model to answer with letters now and then, so that rewards differ and GRPO has something to learn.
            {"type": "sft", "steps": 3, "batch_size": 16, "kinds": ["format"], "optimizer": {"learning_rate": 5e-2}},
            {"type": "grpo", "steps": 5, "batch_size": 16, "group_size": 4, "optimizer": {"learning_rate": 1e-3}, "filters": {"zero_advantage": "monitor"}},
        ],
        "evaluation": {"type": "held_out", "every_steps": 6, "without_question": True},
        "checkpoints": {"every_steps": 2},
        "resources": {"rollout_workers": 2, "worker_cpus": 0.5, "learner_cpus": 0.8, "learner_threads": 1},
    }


@pytest.fixture
def config(document):
    return parse(document)


@pytest.fixture
def assignment(config, tmp_path):
    return Assignment("r", "7", 2, config, tmp_path / "runs" / "r", local_grant(config), tmp_path / "cache")


@dataclass
class Finished:
    """A run that is over: its folder, and everything its emitter left in the spool."""

    out: Path
    status: int
    output: str
    number: int = 1

    @property
    def record(self) -> dict:
        return json.loads((self.out / "attempts" / str(self.number) / "exit.json").read_text())

    @property
    def batches(self) -> list:
        return read_batches(self.out / "attempts" / str(self.number) / "spool")

    def points(self) -> dict[tuple[str, int], float]:
        return {
            (batch.points.names[series], int(step)): float(value)
            for batch in self.batches
            for series, step, value in zip(batch.points.series, batch.points.step, batch.points.value, strict=True)
        }

    def events(self, kind: str) -> list[dict]:
        return [event for batch in self.batches for event in batch.events if event["kind"] == kind]

    def episodes(self) -> dict[str, dict[str, list]]:
        found: dict[str, dict[str, list]] = {}
        for batch in self.batches:
            for event in batch.episodes:
                found.setdefault(event["episode"], {}).setdefault(event["kind"], []).append(event["data"])
        return found


def start(out: Path, document: dict, bank: Path, ray_address: str, *options: str) -> subprocess.Popen:
    """The driver as a process of its own."""
    out.mkdir(parents=True, exist_ok=True)
    config = out / "config.json"
    config.write_text(json.dumps(document))
    argv = [sys.executable, "-m", "runner.main", "--local", str(config), "--bank", str(bank), "--out", str(out), *options]
    environment = {**os.environ, **OPEN, "RAY_ADDRESS": ray_address, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen, out: Path, number: int = 1, seconds: float = 600.0) -> Finished:
    output, _ = process.communicate(timeout=seconds)
    return Finished(out, process.returncode, output, number)


@pytest.fixture(scope="session")
def unbroken(tmp_path_factory, document, bank_file, ray_address):
    """The reference run, from beginning to end."""
    out = tmp_path_factory.mktemp("unbroken")
    return finish(start(out, document, bank_file, ray_address), out)
