"""Commands against the real API."""

import subprocess
import sys

import pytest

from controlplane.accounts.models import ApiToken
from controlplane.accounts.services import authenticate_token
from controlplane.banks import imports, tasks
from controlplane.banks.models import BankImport, BankVersion


@pytest.fixture
def importer(monkeypatch, django_capture_on_commit_callbacks):
    """The worker does its work at once."""
    monkeypatch.setattr(imports, "IMPORTERS", "tests.controlplane.banks.fake_importers")
    monkeypatch.setattr(imports, "BEAT_S", 0.05)
    monkeypatch.setattr(imports.transaction, "on_commit", lambda act: act())
    monkeypatch.setattr(tasks.run_import, "apply_async", lambda args, **_: tasks.run_import(*args))


# ---------------------------------------------------------------- tokens
def test_a_token_is_printed_alone(assay):
    code, out, err = assay("token", "create", "robot", "--scope", "submit", "--days", "3")
    row = ApiToken.objects.get(name="robot")
    assert code == 0
    assert authenticate_token(out.strip()) is not None
    assert row.scopes == ["submit"] and (row.expires_at - row.created_at).days in (2, 3)
    assert "once" in err


# ---------------------------------------------------------------- imports
def test_the_quiz_is_imported(assay, importer):
    code, out, _ = assay("import", "quiz")
    assert (code, BankVersion.objects.get().bank.slug) == (0, "quiz")
    assert "wrote 10 tasks" in out and out.endswith("dropped 9: ambiguous_key\nquiz@1\n")


def test_a_file_is_uploaded_and_imported(assay, importer, tmp_path):
    file = tmp_path / "questions.parquet"
    file.write_text("from a file")
    code, out, _ = assay("import", "sciknoweval", str(file), "--bank", "ske", "--split-column", "split_naive")
    job = BankImport.objects.get()
    assert (code, job.source, job.report["source"], job.report["column"]) == (0, "upload", "from a file", "split_naive")
    assert out.endswith("ske@1\n")


def test_a_hub_id_is_imported(assay, importer):
    assert assay("import", "sciknoweval", "hicai-zju/SciKnowEval")[0] == 0
    assert BankImport.objects.get().report["source"] == "hicai-zju/SciKnowEval"


def test_a_failed_import_is_exit_code_1_with_the_reason(assay, importer, tmp_path):
    file = tmp_path / "questions.parquet"
    file.write_text("fail")
    code, _, err = assay("import", "sciknoweval", str(file))
    assert code == 1
    assert "column `question` is missing" in err
    assert not BankVersion.objects.exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["sciknoweval"], "name a file"),
        (["sciknoweval", "nonsense"], "location: 'nonsense' is no hub id"),
        (["quiz", "--bank", "Bad Name"], "bank:"),
    ],
)
def test_a_wrong_import_is_a_line_a_field(assay, importer, arguments, words):
    code, _, err = assay("import", *arguments)
    assert code == 1
    assert words in err and len(err.splitlines()) == 1


# ---------------------------------------------------------------- benchmarks
def test_an_unknown_benchmark_names_the_known_ones(assay):
    code, _, err = assay("bench", "nothing")
    assert code == 1 and "ingest" in err
    assert assay("bench", "os.system")[0] == 1


def test_it_starts_as_a_module_and_explains_itself():
    done = subprocess.run([sys.executable, "-m", "controlplane.cli", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "exit codes" in done.stdout and "Traceback" not in done.stderr
