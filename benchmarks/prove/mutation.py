"""Tests that would notice: of the changes cosmic-ray makes to transitions, allocator and statistics, at least 85 % make a test fail.

    ./assay prove mutation [NAME …] [--sample N]

A sample of N changes a target is drawn with a fixed seed (all of them with --sample 0). Each runs in a copy of the checkout.
"""

import argparse
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import peers
from benchmarks.record import publish, record
from controlplane.env import CHECKOUT
from controlplane.evals.statistics import wilson

SAMPLE, SEED, LONGEST_S, TARGET = 80, 7, 240, 0.85
TARGETS = {
    "statistics": (["controlplane/evals/statistics.py"], ["tests/controlplane/evals/test_statistics.py"]),
    "allocator": (["controlplane/cluster/allocator.py"], ["tests/controlplane/cluster/test_allocator.py"]),
    "transitions": (
        ["controlplane/transitions.py", "controlplane/runs/changes.py", "runner/contract/states.py"],
        [
            "tests/controlplane/test_platform.py",
            "tests/controlplane/runs/test_control.py",
            "tests/controlplane/runs/test_tick.py",
            "tests/controlplane/runs/test_state_machine.py",
        ],
    ),
}
LEFT_BEHIND = (".git", ".venv", ".assay", "__pycache__", ".pytest_cache", ".hypothesis")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="assay prove mutation")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TARGETS)}; all by default")
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"changes a target, 0 for all (default {SAMPLE})")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - TARGETS.keys():
        parser.error(f"no target {', '.join(sorted(unknown))}; choose from {', '.join(TARGETS)}")
    found = publish(measure(options.names or list(TARGETS), options.sample))
    if weak := [name for name, one in found["also"].items() if one["killed"] < TARGET]:
        raise SystemExit(f"assay: fewer than {TARGET:.0%} of the changes were noticed in: {', '.join(weak)}")


def measure(names: list[str], sample: int = SAMPLE) -> dict:
    """The record; `ours` is the share noticed over all targets, `also` has each with its interval and the changes that nobody noticed."""
    with tempfile.TemporaryDirectory(prefix="assay-mutation-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
        (copy / ".venv").symlink_to(CHECKOUT / ".venv")
        also = {name: noticed(copy, name, sample) for name in names}
    killed, tried = (sum(one[key] for one in also.values()) for key in ("noticed", "tried"))
    settings = {
        "sample_a_target": sample or "all",
        "seed": SEED,
        "tool": peers.version("cosmic-ray"),
        "target": f"at least {TARGET:.0%} each",
    }
    return record("mutation", round(killed / tried, 3), None, "share of changes noticed", settings, also)


def noticed(copy: Path, name: str, sample: int) -> dict:
    modules, tests = TARGETS[name]
    session, config = copy / f"{name}.sqlite", copy / f"{name}.toml"
    command = f"{sys.executable} -m pytest -q -x -p no:cacheprovider {' '.join(tests)}"
    section = {"module-path": modules, "timeout": LONGEST_S, "excluded-modules": [], "test-command": command}
    lines = [f"{key} = {json.dumps(value)}" for key, value in section.items()]
    config.write_text("\n".join(["[cosmic-ray]", *lines, "[cosmic-ray.distributor]", 'name = "local"', ""]))
    run(copy, "init", config, session)
    run(copy, "baseline", config)  # a test that fails without a change would count every change as noticed
    total = thin_out(session, sample)
    run(copy, "exec", config, session)
    return {**outcome(session), "possible": total}


def run(copy: Path, *arguments: object) -> None:
    tool = peers.install("cosmic-ray").with_name("cosmic-ray")
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([str(tool), *map(str, arguments)], cwd=copy, env=environment, check=True, stdout=sys.stderr)


def thin_out(session: Path, sample: int) -> int:
    """Leave `sample` of the session's changes; returns how many there were."""
    with sqlite3.connect(session) as database:
        jobs = sorted(job for (job,) in database.execute("SELECT job_id FROM mutation_specs"))
        order = [jobs[place] for place in random.Random(SEED).sample(range(len(jobs)), len(jobs))]
        for job in order[sample:] if sample else []:
            database.execute("DELETE FROM mutation_specs WHERE job_id = ?", [job])
            database.execute("DELETE FROM work_items WHERE job_id = ?", [job])
    return len(jobs)


def outcome(session: Path) -> dict:
    query = """SELECT module_path, operator_name, start_pos_row, test_outcome FROM mutation_specs JOIN work_results USING (job_id)
               WHERE worker_outcome = 'NORMAL' ORDER BY module_path, start_pos_row"""
    with sqlite3.connect(session) as database:
        rows = database.execute(query).fetchall()
    survived = [f"{module}:{line} {operator.removeprefix('core/')}" for module, operator, line, ending in rows if ending == "SURVIVED"]
    share = wilson(len(rows) - len(survived), len(rows))
    interval = [round(share.low, 3), round(share.high, 3)]
    return {
        "killed": round(share.estimate, 3),
        "interval": interval,
        "noticed": len(rows) - len(survived),
        "tried": len(rows),
        "unnoticed": survived,
    }
