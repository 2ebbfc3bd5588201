"""Sparse to dense: every file in its place, the same bytes each time, and nothing compiled that is wrong."""

import json
import os
import shutil
import subprocess
import sys
import tarfile

import pytest

from runner.repair.__main__ import main
from runner.repair.compile import CompileError, canary_of, compile_bank
from runner.repair.files import read_files
from tests.runner.repair import toy
from tests.runner.repair.test_validate import edit, edit_json

TASK = "toy/repair/easy/toy-repair-sign-a"


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o777)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_files_of_a_dense_task(compiled, authored):
    found = tree(compiled / TASK)
    assert sorted(found) == [
        "authoring/provenance.json",
        "environment/Dockerfile",
        "environment/cases/sum-16/row.json",
        "environment/cases/sum-8/row.json",
        "environment/defect/apply_defect.py",
        "environment/defect/defect.json",
        "environment/source/source.tar",
        "instruction.md",
        "solution/apply_defect.py",
        "solution/defect_fix.json",
        "solution/solve.sh",
        "task.toml",
        "tests/Dockerfile",
        "tests/cases/sum-16/row.json",
        "tests/cases/sum-8/row.json",
        "tests/defect/apply_defect.py",
        "tests/defect/defect.json",
        "tests/grade.py",
        "tests/source/source.tar",
        "tests/test.sh",
    ]
    sparse = authored / "envs" / "toy" / "tasks" / "repair" / "easy" / "toy-repair-sign-a"
    for name, dense in (("task.toml", "task.toml"), ("instruction.md", "instruction.md"), ("fix.json", "solution/defect_fix.json")):
        assert found[dense][0] == (sparse / name).read_bytes()
    assert {name for name, (_, mode) in found.items() if mode == 0o755} == {
        *("environment/defect/apply_defect.py", "tests/defect/apply_defect.py", "solution/apply_defect.py"),
        *("solution/solve.sh", "tests/test.sh"),
    }


def test_tokens_are_filled(compiled):
    grade = (compiled / TASK / "tests" / "grade.py").read_text()
    assert grade.startswith(f"# {canary_of('demo/toy-repair-sign-a')}\n")
    assert 'CHECKS = ["sum-8", "sum-16"]\nFLOOR = 0.2\n' in grade and "timeout=20)" in grade
    agent = (compiled / TASK / "environment" / "Dockerfile").read_text()
    assert "FROM assay-sandbox-base:test AS prep\nCOPY source/source.tar /source.tar" in agent and "rm -rf docs" in agent


def test_the_same_input_gives_the_same_bytes(authored, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    compile_bank(authored, first)
    for path in sorted(authored.rglob("*")):
        os.utime(path, (1, 1))
    copy = shutil.copytree(authored, tmp_path / "copy")
    compile_bank(copy, second)
    one, other = tree(first), tree(second)
    one.pop("compile.json"), other.pop("compile.json")
    assert one == other and len(one) == 81


def test_the_index_and_the_report(compiled):
    rows = [json.loads(line) for line in (compiled / "toy" / "index.jsonl").read_text().splitlines()]
    assert [row["task"] for row in rows] == ["toy-repair-bounds-a", "toy-repair-coef-a", "toy-repair-sign-a", "toy-repair-sign-b"]
    row, digest = rows[2], read_files(compiled / TASK).digest
    assert (row["path"], row["dense"], row["family"], row["floor_native_estimate"]) == ("repair/easy/toy-repair-sign-a", False, "sign", 0.2)
    report = json.loads((compiled / "compile.json").read_text())
    assert report["digests"]["demo/toy-repair-sign-a"] == row["digest"] == digest
    assert report["mirror"] is None and report["compiled_at"]


def test_the_commit_and_the_mirror_are_recorded(authored, tmp_path):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "x")):
        subprocess.run(["git", "-C", authored, *arguments], check=True)
    edit(authored / "envs" / "toy" / "env" / "harbor" / "agent.Dockerfile", ("WORKDIR", "ARG MIRROR=@APT_MIRROR@\nWORKDIR"))
    compile_bank(authored, tmp_path / "out", mirror="http://mirror.example.org")
    report = json.loads((tmp_path / "out" / "compile.json").read_text())
    assert report["mirror"] == "http://mirror.example.org" and len(report["commit"]["commit"]) == 40 and report["commit"]["dirty"]
    assert "ARG MIRROR=http://mirror.example.org\n" in (tmp_path / "out" / TASK / "environment" / "Dockerfile").read_text()


def test_a_subset_leaves_the_rest_and_the_index(authored, compiled):
    index = (compiled / "toy" / "index.jsonl").read_bytes()
    toy.write_task(authored, "toy-repair-coef-z", "coef")
    (compiled / TASK / "instruction.md").write_text("changed by hand")
    assert [task.name for task in compile_bank(authored, compiled, "*-coef-*")] == ["demo/toy-repair-coef-a", "demo/toy-repair-coef-z"]
    assert (compiled / "toy" / "index.jsonl").read_bytes() == index
    assert (compiled / TASK / "instruction.md").read_text() == "changed by hand"
    assert len(json.loads((compiled / "compile.json").read_text())["digests"]) == 5


def test_a_full_compile_replaces_what_a_compiler_wrote_and_nothing_else(authored, compiled, tmp_path):
    (compiled / "toy" / "repair" / "easy" / "gone").mkdir()
    compile_bank(authored, compiled)
    assert not (compiled / "toy" / "repair" / "easy" / "gone").exists()
    precious = toy.write(tmp_path / "home" / "thesis.tex", "years")
    with pytest.raises(CompileError, match="not empty"):
        compile_bank(authored, precious.parent)
    assert precious.read_text() == "years"


def test_a_dense_source_task_is_copied_without_measurements(authored, compiled, tmp_path):
    target = authored / "envs" / "toy" / "tasks" / "repair" / "easy" / "toy-repair-coef-a"
    shutil.rmtree(target)
    shutil.copytree(compiled / "toy" / "repair" / "easy" / "toy-repair-coef-a", target)
    toy.write(target / "eval" / "evals.jsonl", "{}")
    toy.write(target / "tests" / "__pycache__" / "x.pyc", "")
    compile_bank(authored, tmp_path / "out")
    out = tmp_path / "out" / "toy" / "repair" / "easy" / "toy-repair-coef-a"
    assert tree(out) == tree(compiled / "toy" / "repair" / "easy" / "toy-repair-coef-a")
    rows = (tmp_path / "out" / "toy" / "index.jsonl").read_text().splitlines()
    assert [json.loads(row)["dense"] for row in rows] == [False, True, False, False]


def test_an_acceleration_task_needs_no_defect(authored, tmp_path):
    folder = toy.write_task(authored, "toy-accel", category="acceleration", tier="unrated")
    for name in ("defect.json", "fix.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "authoring")
    compile_bank(authored, tmp_path / "out", "toy-accel")
    assert not (tmp_path / "out" / "toy" / "acceleration" / "unrated" / "toy-accel" / "environment" / "defect").exists()


def wrong_task(change):
    return lambda bank: change(bank / "envs" / "toy" / "tasks" / "repair" / "easy" / "toy-repair-sign-a")


def env_toml(*pairs):
    return lambda bank: edit(bank / "envs" / "toy" / "env.toml", *pairs)


def into_category(task):
    shutil.move(task, task.parent.parent / task.name)


def into_hard(task):
    shutil.move(task, task.parent.parent / "hard" / task.name)


WRONG = {
    "another name": (wrong_task(lambda task: edit(task / "task.toml", ("toy-repair-sign-a", "other"))), "make the short name equal"),
    "another canary": (
        wrong_task(lambda task: edit(task / "task.toml", (canary_of("demo/toy-repair-sign-a"), canary_of("x")))),
        "it must contain",
    ),
    "other checks": (wrong_task(lambda task: edit(task / "task.toml", ('"sum-8", ', ""))), "affected_checks"),
    "another tree": (wrong_task(lambda task: edit(task / "task.toml", ('tree = "squares"', 'tree = "cubes"'))), "env.toml has squares"),
    "another tier": (wrong_task(into_hard), "its tier folder 'hard'"),
    "no tier": (wrong_task(into_category), "move it into a tier folder"),
    "another category": (wrong_task(lambda task: edit(task / "task.toml", ('"repair"', '"acceleration"'))), "taxonomy.category"),
    "no fix": (wrong_task(lambda task: (task / "fix.json").unlink()), "fix.json is missing"),
    "no manifest": (wrong_task(lambda task: (task / "task.toml").write_text("[")), "not TOML"),
    "unknown key": (env_toml(("fill = true", "fil = true")), "files.0.fil"),
    "unfilled token": (lambda bank: edit(bank / "shared" / "grade.py", ("@FLOOR@", "@FLUR@")), "grade.py has the token @FLUR@"),
    "missing file": (env_toml(("env/harbor/solve.sh", "env/harbor/solved.sh")), "solved.sh is not there"),
    "path out of the bank": (env_toml(("bank:shared/grade.py", "bank:../grade.py")), "without '..'"),
    "check that is a path": (env_toml(('"sum-8"', '"../../../../etc"')), "is no name of a check"),
    "twice": (env_toml(('to = ["tests/test.sh"]', 'to = ["tests/grade.py"]')), "two sources for tests/grade.py"),
    "both sources": (env_toml(('directory = "env/source"', 'directory = "env/source"\narchive = "a.tar"')), "exactly one"),
    "no source": (env_toml(('directory = "env/source"', 'directory = "env/sauce"')), "not there"),
    "no env file": (lambda bank: (bank / "envs" / "toy" / "env.toml").unlink(), "every environment of an authored bank needs one"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name, authored, tmp_path):
    spoil, words = WRONG[name]
    spoil(authored)
    with pytest.raises(CompileError, match=words):
        compile_bank(authored, tmp_path / "out")


def test_an_archive_is_pinned_by_its_hash(authored, tmp_path):
    archive = authored / "envs" / "toy" / "env" / "toy.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(authored / "envs" / "toy" / "env" / "source", "toy-1.0")
    env_toml(('directory = "env/source"', f'archive = "env/toy.tar.gz"\nsha256 = "{"0" * 64}"'))(authored)
    with pytest.raises(CompileError, match="restore the pinned archive"):
        compile_bank(authored, tmp_path / "out")


def test_the_toy_is_true(compiled, tmp_path):
    """Prepared as its Dockerfiles say, in plain folders: oracle 1, nop 0, the defective tree is worth its floor."""
    task, app = compiled / TASK, tmp_path / "app" / "toy"
    app.mkdir(parents=True)
    with tarfile.open(task / "environment" / "source" / "source.tar") as tar:
        tar.extractall(app, filter="data")
    apply = [sys.executable, task / "environment" / "defect" / "apply_defect.py"]
    subprocess.run([*apply, task / "environment" / "defect" / "defect.json", app], check=True)

    def grade(logs):
        environment = {**os.environ, "ASSAY_TESTS": str(task / "tests"), "ASSAY_LOGS": str(logs)}
        subprocess.run(["sh", task / "tests" / "test.sh"], check=True, env=environment)
        return json.loads((logs / "verifier" / "reward.json").read_text())

    nop = grade(tmp_path / "nop")
    straw = tmp_path / "straw"
    toy.write(straw / "artifacts" / "sim.py", (app / "sim.py").read_text())
    found = grade(straw)
    environment = {
        **os.environ,
        "ASSAY_SOLUTION": str(task / "solution"),
        "ASSAY_APP": str(tmp_path / "app"),
        "ASSAY_LOGS": str(tmp_path / "oracle"),
    }
    subprocess.run(["sh", task / "solution" / "solve.sh"], check=True, env=environment)
    oracle = grade(tmp_path / "oracle")
    assert (nop["reward"], nop["reward_repair"]) == (0.0, 0.0)
    assert (found["reward"], found["floor"], found["reward_repair"]) == (0.2, 0.2, 0.0)
    assert (oracle["reward"], oracle["reward_repair"], oracle["equivalence_pass"]) == (1.0, 1.0, 1)


def test_the_command_line(authored, tmp_path, capsys):
    assert main(["compile", str(authored), str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "compiled 4 tasks"
    assert main(["digest", str(tmp_path / "out" / TASK)]) == 0
    assert capsys.readouterr().out.strip() == read_files(tmp_path / "out" / TASK).digest
    assert main(["compile", str(authored), str(tmp_path / "out"), "--only", "nothing"]) == 1
    assert "matches no task" in capsys.readouterr().err
    assert main(["source", str(authored / "envs" / "toy")]) == 0
    assert capsys.readouterr().out.endswith("source.tar\n")


def test_lines_are_found_and_recorded_ones_are_checked(authored, capsys):
    edit_json(
        authored / "envs/toy/tasks/repair/easy/toy-repair-coef-a/authoring/provenance.json",
        lambda it: it["candidate"]["meta"].update(line=8),
    )
    edit_json(
        authored / "envs/toy/tasks/repair/easy/toy-repair-bounds-a/authoring/provenance.json",
        lambda it: it["candidate"]["meta"].update(line=9),
    )
    assert main(["lines", str(authored)]) == 0
    document = json.loads((authored / "envs" / "toy" / "factory" / "DEFECT_LINES.json").read_text())
    assert document["resolved"] == {"toy-repair-sign-b": 7}
    assert document["cross_check"] == {"agree": 2, "offset": 1}, "8 is 7 and the newline that the old text ends with"
    assert set(document["statuses"].values()) == {"ok"}
