"""Grading by the task's own scripts, without containers: the anchors, the floor, and what careless or hostile deliveries earn."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from runner.environments.repair_bank import BANK
from tests.repair_bank.by_hand import Desk

TASKS = sorted(path.parent.name for path in BANK.glob("envs/*/tasks/*/*/*/task.toml"))
QUICK = "nbody-repair-sign-symplectic-reaction-sign-l48"
FAST = {QUICK, "nbody-restore-excise-hermite-jerk-routine-l60"}
each_task = pytest.mark.parametrize("name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TASKS])


def folder_of(dense: Path, name: str) -> Path:
    return next(dense.glob(f"*/*/*/{name}"))


@pytest.fixture(scope="module")
def prepared(dense, compilers, tmp_path_factory):
    return Desk(folder_of(dense, QUICK), tmp_path_factory.mktemp("desk"))


@pytest.fixture
def desk(prepared):
    """A desk on which nothing is delivered yet and the tree is broken as the task has it."""
    kept = prepared.folder / "kept"
    if not kept.exists():
        shutil.copytree(prepared.tree, kept, dirs_exist_ok=True)
    shutil.rmtree(prepared.tree)
    shutil.copytree(kept, prepared.tree)
    shutil.rmtree(prepared.logs, ignore_errors=True)
    return prepared


@each_task
def test_nop_earns_nothing_the_straw_its_floor_and_the_oracle_everything(dense, compilers, tmp_path, name):
    desk = Desk(folder_of(dense, name), tmp_path)
    floor = json.loads((folder_of(dense, name) / "authoring" / "provenance.json").read_text())["funnel"]["floor"]
    nothing, _ = desk.grade()
    assert (nothing["reward"], nothing["reward_repair"], nothing["equivalence_pass"]) == (0.0, 0.0, 0)
    desk.run("app/tools/deliver")
    straw, report = desk.grade()
    assert (straw["reward"], straw["floor"], straw["reward_repair"]) == (floor, floor, 0.0), report
    desk.run("solution/solve.sh")
    oracle, report = desk.grade()
    assert (oracle["reward"], oracle["reward_repair"], oracle["equivalence_pass"]) == (1.0, 1.0, 1), report
    assert all(oracle[key] == 1.0 for key in oracle if key.startswith("check_"))


def test_a_source_that_does_not_compile_earns_nothing_and_says_why(desk):
    (desk.tree / "src" / "gravity.c").write_text("this is no C\n")
    desk.run("app/tools/deliver")
    rewards, report = desk.grade()
    assert rewards["reward"] == 0.0 and {check["outcome"] for check in report["checks"].values()} == {"build_failed"}
    assert "gravity.c" in report["build_output"]


def test_a_program_that_crashes_and_one_that_hangs_have_names(desk):
    main = desk.tree / "src" / "symplectic_main.c"
    for path in desk.tests.glob("cases/*/row.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"timeout_sec": 1}))
    for body, outcome in (("__builtin_trap();", "crash"), ("for (;;) {}", "timeout")):
        main.write_text(f"int main(void) {{ {body} }}\n")
        desk.run("app/tools/deliver")
        rewards, report = desk.grade()
        assert rewards["reward"] == 0.0 and {check["outcome"] for check in report["checks"].values()} == {outcome}


def test_made_up_frames_earn_a_tenth(desk):
    (desk.tree / "src" / "symplectic_main.c").write_text(
        '#include <stdio.h>\nint main(int n, char **a) { char p[500]; snprintf(p, 500, "%s/frame000.txt", a[n - 1]);'
        ' FILE *f = fopen(p, "w"); fputs("all good\\n", f); return fclose(f); }\n'
    )
    desk.run("app/tools/deliver")
    rewards, report = desk.grade()
    assert rewards["reward"] == 0.1 and {check["outcome"] for check in report["checks"].values()} == {"nonconforming"}


def test_links_build_files_and_large_files_are_left_aside(desk):
    desk.run("app/tools/deliver")
    gravity = desk.delivered / "src" / "gravity.c"
    gravity.unlink()
    gravity.symlink_to(desk.tests / "reference" / "walltimes.json")
    (desk.delivered / "Makefile").write_text("symplectic:\n\ttouch build/symplectic\n")
    (desk.delivered / "src" / "padding.h").write_bytes(b" " * (1 << 21))
    rewards, report = desk.grade()
    assert report["ignored"] == ["Makefile", "src/gravity.c", "src/padding.h"]
    assert rewards["reward"] == rewards["floor"]


def test_one_mended_file_is_enough(desk):
    desk.run("solution/solve.sh")
    for path in desk.delivered.rglob("*"):
        if path.is_file() and path.name != "gravity.c":
            path.unlink()
    assert desk.grade()[0]["reward"] == 1.0


def test_a_grader_that_dies_or_fails_on_a_check_says_grader_error(desk):
    desk.run("app/tools/deliver")
    rubric = desk.tests / "checks" / "kepler-order" / "rubric.json"
    text = rubric.read_text()
    rubric.write_text("{}")
    assert desk.grade()[0]["grader_error"] == 1
    rubric.write_text(text)
    floor = (desk.tests / "floor.json").read_text()
    (desk.tests / "floor.json").write_text("")
    try:
        assert desk.grade()[0] == {"reward": 0, "equivalence_pass": 0, "speedup": 0, "grader_error": 1}
    finally:
        (desk.tests / "floor.json").write_text(floor)


def test_check_tool_reads_the_same_twice_and_tells_broken_from_mended(desk):
    broken = [desk.run("app/tools/check", check=False) for _ in range(2)]
    assert broken[0].stdout == broken[1].stdout and broken[0].returncode == 1
    lines = broken[0].stdout.splitlines()
    assert 4 <= len(lines) <= 20 and any(line.endswith("WRONG") for line in lines) and str(desk.folder) not in broken[0].stdout
    desk.run("solution/solve.sh")
    mended = desk.run("app/tools/check")
    assert all(line.endswith(": ok") for line in mended.stdout.splitlines())


@pytest.fixture
def grade(desk, monkeypatch):
    monkeypatch.syspath_prepend(str(desk.tests))
    for name in ("grade", "rows"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    module = importlib.import_module("grade")
    yield module
    for name in ("grade", "rows"):
        sys.modules.pop(name, None)


def verdicts(*scores):
    return {f"c-{n}": {"score": score, "passed": score == 1.0, "outcome": "passed"} for n, score in enumerate(scores)}


@pytest.mark.parametrize(
    "floor, scores, reward, repair",
    [(0.35, (1.0, 0.5), 0.75, 0.615385), (0.5, (0.5,), 0.5, 0.0), (0.0, (0.5,), 0.5, 0.5), (0.65, (1.0,), 1.0, 1.0)],
)
def test_reward_arithmetic(grade, floor, scores, reward, repair):
    got = grade.rewards(verdicts(*scores), 0.0, floor)
    assert (got["reward"], got["reward_repair"], got["floor"]) == (reward, repair, floor)
    assert got["equivalence_pass"] == int(all(score == 1.0 for score in scores)) and got["check_c_0"] == scores[0]


@pytest.mark.parametrize("speedup, reward", [(0.5, 0.0), (1.49, 0.0), (1.5, 0.25), (2.9, 0.5), (3.0, 0.75), (4.0, 1.0), (99.0, 1.0)])
def test_acceleration_climbs_a_ladder_and_only_when_all_checks_pass(grade, monkeypatch, speedup, reward):
    monkeypatch.setattr(grade, "CATEGORY", "acceleration")
    assert grade.rewards(verdicts(1.0, 1.0), speedup, 0.0)["reward"] == reward
    failed = grade.rewards(verdicts(1.0, 0.5), speedup, 0.0)
    assert (failed["reward"], failed["speedup"], failed["equivalence_pass"]) == (0.0, 0.0, 0)


@pytest.mark.parametrize(
    "outcome, ok, scored, time_base, score",
    [
        ("passed", 4, 4, True, 1.0),
        ("diverged", 2, 4, True, 0.75),
        ("diverged", 0, 4, False, 0.2),
        ("time_base", 4, 4, False, 0.7),
        ("nonconforming", 0, 0, False, 0.1),
        ("no_output", 0, 0, False, 0.0),
    ],
)
def test_ladder_of_a_check(grade, outcome, ok, scored, time_base, score):
    verdict = {"passed": outcome == "passed", "outcome": outcome, "frames_ok": ok, "frames_scored": scored, "time_base_ok": time_base}
    assert grade.ladder(verdict) == score
