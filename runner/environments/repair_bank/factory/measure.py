"""Floors, measured: compile the task, build reference and straw as its verifier does, grade the straw."""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from runner.environments.repair_bank import BANK
from runner.repair.compile import compile_bank

TIMEOUT_S = 600


class Unfit(ValueError):
    """A defect makes no task: its floor is too high or nothing changes; the message says which and by how much."""


class Measurer:
    """Grades straws. The reference of a source tree is built once and copied for its other tasks."""

    def __init__(self, scratch: Path):
        self.scratch = scratch
        self.references: dict[tuple[str, str], Path] = {}

    def straw(self, env: str, tree: str, name: str) -> dict[str, Any]:
        """{floor, floor_per_check, crashed, runs, verdicts} of the task as it lies in the bank. Its floor in there plays no part."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as out:
            (task,) = compile_bank(BANK, Path(out) / "dense", only=name)
            tests = Path(out) / "dense" / task.path / "tests"
            self._reference(env, tree, tests)
            _run(["python3", tests / "grade_floor.py"])
            floor, verdicts = (json.loads((tests / file).read_text()) for file in ("floor.json", "straw_verdicts.json"))
        return {
            "floor": floor["floor"],
            "floor_per_check": {check: verdict["score"] for check, verdict in verdicts.items()},
            "crashed": floor["straw_status"] != "ok",
            "runs": {check: {"outcome": verdict["outcome"], "wall": verdict.pop("wall")} for check, verdict in verdicts.items()},
            "verdicts": verdicts,
        }

    def _reference(self, env: str, tree: str, tests: Path) -> None:
        kept = self.references.get((env, tree))
        if kept is None:
            _run(["python3", tests / "reference.py"])
            kept = self.references[env, tree] = self.scratch / f"{env}-{tree}"
            shutil.copytree(tests / "reference", kept)
        else:
            shutil.copytree(kept, tests / "reference")


def _run(argv: list[Any]) -> None:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode != 0:
        raise RuntimeError(f"{argv[1]}: {(done.stdout + done.stderr)[-2000:]}")


def require_fit(name: str, straw: dict[str, Any], floor_max: float, margin_min: float) -> None:
    """Raises Unfit unless the straw fails clearly and earns little."""
    if straw["floor"] > floor_max:
        raise Unfit(f"{name}: floor {straw['floor']} exceeds {floor_max}; let the defect touch more of the tree's checks")
    margins = [verdict["value"] for verdict in straw["verdicts"].values() if not verdict["passed"] and verdict["value"] is not None]
    if margins and max(margins) < margin_min:
        raise Unfit(f"{name}: no value leaves its tolerance by {margin_min}; take a stronger defect")
