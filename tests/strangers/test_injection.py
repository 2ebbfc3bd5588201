"""A canary through every field that reaches a runner's command line or an importer's: it arrives as data or not at all."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.api import rate_limit
from controlplane.banks import imports
from controlplane.env import CHECKOUT
from controlplane.runs import reconcile, scheduling
from controlplane.runs.forms import build_form
from controlplane.runs.models import Attempt, Run
from controlplane.runs.services import do_launch
from runner.contract.parse import InvalidDocument
from tests.controlplane.runs.conftest import make_bank
from tests.controlplane.runs.forms.browser import post
from tests.strangers.test_pages import signed_in

pytestmark = pytest.mark.django_db
DOCUMENT = {
    "name": "first",
    "model": {"max_length": 128},
    "sampling": {"max_new_tokens": 4},
    "stages": [{"type": "grpo", "steps": 10, "batch_size": 16, "group_size": 4}],
}
A_FEW = 3
# Stands in for runner.main and writes down what reached it.
ECHO = "import json, os, sys; json.dump({'argv': sys.argv, 'environ': dict(os.environ)}, open('heard.json', 'w'))"


def canaries(mark: Path) -> list[str]:
    touch = f"touch {mark}"
    return [
        f"$({touch})",
        f"`{touch}`",
        f"; {touch} #",
        f"' ; {touch} ; '",
        f'" && {touch} "',
        f"x | {touch}",
        f"--eval={touch}",
        f"${{IFS}};{touch}",
        f"%0a{touch}",
    ]


@pytest.fixture
def node(team, settings, tmp_path):
    from django.utils import timezone

    from controlplane.cluster.models import Node

    settings.ASSAY_STORAGE = tmp_path / "storage"
    make_bank(team)
    return Node.objects.create(
        name="n", address="127.0.0.1", cpus=4, memory=16 << 30, disk_total=1 << 40, disk_free=1 << 39, last_seen_at=timezone.now()
    )


def text_fields() -> list[str]:
    """Every input of the launch form that takes free text or a list of it."""
    form = build_form({**DOCUMENT, "model": {"source": {"type": "path", "path": "/x"}}})
    return sorted({field.pointer for field in form.walk() if field.kind in ("text", "list")})


def execute(attempt: Attempt, folder: Path) -> dict:
    """The job as Ray runs it: its entrypoint through a shell, its variables in the environment."""
    request = reconcile.job_request(attempt)
    (folder / "runner").mkdir(exist_ok=True)
    (folder / "runner" / "__init__.py").write_text("")
    (folder / "runner" / "main.py").write_text(ECHO)
    environment = {"PATH": os.environ["PATH"], **request["env"]}
    subprocess.run(request["entrypoint"], shell=True, cwd=folder, env=environment, check=True, timeout=120)
    return json.loads((folder / "heard.json").read_text())


def test_no_field_of_the_launch_form_reaches_a_command(owner, team, node, tmp_path, monkeypatch):
    """Posted as a browser posts it, each field with each canary; what is accepted is granted and its job run."""
    mark, browser = tmp_path / "owned", signed_in(owner)
    monkeypatch.setattr(rate_limit, "seconds_to_wait", lambda *_: 0.0)
    fields = text_fields()
    assert {"/name", "/experiment", "/model/source/path"} <= set(fields), fields
    for number, field in enumerate(fields):
        for at, canary in enumerate(canaries(mark)[: None if field == "/name" else A_FEW]):
            values = post(build_form(DOCUMENT)) | {field: [canary], "token": [f"{number:016x}{at:016x}"]}
            if field.startswith("/model/source"):
                values["/model/source/type"] = ["path"]
            assert browser.post("/launch", values).status_code in (302, 422), field
    taken = Run.objects.count()
    assert taken >= len(canaries(mark)), "names at least are taken as they are"
    run = Run.objects.exclude(name="first").first()
    granted = grant_one(run)
    heard = execute(granted, tmp_path)
    assert heard["argv"][1:] == []
    assert not [name for name, value in heard["environ"].items() if "touch" in value]
    assert set(heard["environ"]) <= {"PATH", "PWD", "SHLVL", "_", "LC_CTYPE", "ASSAY_URL", "ASSAY_ATTEMPT", "ASSAY_CLAIM_CODE"}
    assert not mark.exists()


def grant_one(run: Run) -> Attempt:
    Run.objects.exclude(pk=run.pk).update(state="stopped")
    (attempt,) = scheduling.place_waiting()
    assert attempt.run_id == run.pk
    return attempt


def test_the_entrypoint_is_the_same_whatever_the_document_says(owner, team, node, tmp_path):
    mark, seen = tmp_path / "owned", set()
    for canary in canaries(mark):
        try:
            run = do_launch(owner, team, {**DOCUMENT, "name": canary, "experiment": canary, "tags": [canary[:40]]})
        except InvalidDocument:
            continue
        request = reconcile.job_request(grant_one(run))
        seen.add((request["entrypoint"], *(name for name in request["env"])))
        assert "touch" not in json.dumps([request["entrypoint"], request["env"], request["submission_id"], request["resources"]])
        Run.objects.filter(pk=run.pk).update(state="stopped")
        Attempt.objects.filter(run=run).update(state="stopped")
        run.attempts.get().grant.delete()
    assert len(seen) == 1


def test_an_import_is_an_argv_list_and_refuses_what_looks_like_a_command(owner, team, node, tmp_path, monkeypatch):
    mark, started = tmp_path / "owned", []

    def popen(command, **options):
        started.append((command, options))
        raise OSError("not started in this test")

    monkeypatch.setattr(imports, "_send", lambda job: None)
    monkeypatch.setattr(subprocess, "Popen", popen)
    for canary in canaries(mark):
        for source, fields in (("hub", {"location": canary}), ("path", {"location": f"/{canary}.parquet"}), ("bundled", {"slug": canary})):
            with pytest.raises(imports.ValidationError):
                imports.start_import(owner, team, "quiz" if source == "bundled" else "sciknoweval", source, **fields)
        upload = (tmp_path / "u.parquet").open("w+b")
        job = imports.start_import(owner, team, "sciknoweval", "upload", f"{canary}.parquet", upload=upload)
        with pytest.raises(OSError, match="not started"):
            imports.perform_import(job)
        command, options = started.pop()
        assert isinstance(command, list) and command[:3] == [sys.executable, "-m", imports.IMPORTERS] and not options.get("shell")
        assert not [word for word in command if "touch" in word], "the name that somebody gave a file is no part of a command"
    assert not mark.exists()


# ---------------------------------------------------------------- the code itself
SHELLS = {
    ("os", "system"),
    ("os", "popen"),
    ("subprocess", "getoutput"),
    ("subprocess", "getstatusoutput"),
    ("asyncio", "create_subprocess_shell"),
}
EVALUATES = {"eval", "exec"}


def sources():
    for folder in ("controlplane", "runner"):
        yield from (CHECKOUT / folder).rglob("*.py")


def offences(tree: ast.AST):
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if any(word.arg == "shell" and not (isinstance(word.value, ast.Constant) and word.value.value is False) for word in node.keywords):
            yield node.lineno, "shell="
        if (
            isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and (node.func.value.id, node.func.attr) in SHELLS
        ):
            yield node.lineno, node.func.attr
        if isinstance(node.func, ast.Name) and node.func.id in EVALUATES:
            yield node.lineno, node.func.id


def test_no_line_of_ours_starts_a_shell_or_evaluates_text():
    found = [f"{path.relative_to(CHECKOUT)}:{line} {what}" for path in sources() for line, what in offences(ast.parse(path.read_text()))]
    assert found == []


def test_the_finder_finds():
    code = "import os, subprocess\nos.system('x')\nsubprocess.run('x', shell=True)\neval('x')\nsubprocess.run(['x'])"
    assert [what for _, what in offences(ast.parse(code))] == ["system", "shell=", "eval"]
