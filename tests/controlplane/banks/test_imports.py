"""Imports run as processes: watched, ended in time, and honest about how they ended."""

import io
import time
from datetime import timedelta

import psutil
import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.utils import timezone

from controlplane.banks import imports, tasks
from controlplane.banks.imports import fail_lost_imports, perform_import, start_import
from controlplane.banks.models import Bank, BankImport, ImportState


@pytest.fixture(autouse=True)
def fake(monkeypatch):
    monkeypatch.setattr(imports, "IMPORTERS", "tests.controlplane.banks.fake_importers")
    monkeypatch.setattr(imports, "BEAT_S", 0.1)


@pytest.fixture
def sent(monkeypatch):
    """Identifiers of the imports whose message was sent."""
    found = []
    monkeypatch.setattr(tasks.run_import, "apply_async", lambda args, **_: found.extend(args))
    return found


@pytest.fixture
def upload(team, teammate, sent, django_capture_on_commit_callbacks):
    def start(content="hello", name="questions.parquet"):
        with django_capture_on_commit_callbacks(execute=True):
            return start_import(teammate, team, "sciknoweval", "upload", name, upload=io.BytesIO(content.encode()))

    return start


def test_an_upload_becomes_a_version_with_its_report(upload, sent, team):
    job = upload("hello")
    assert sent == [str(job.pk)] and job.state == ImportState.QUEUED
    tasks.run_import(str(job.pk))
    job.refresh_from_db()
    assert (job.state, job.reason) == (ImportState.SUCCEEDED, "")
    assert (job.version.bank.slug, job.version.bank.environment, job.version.number) == ("sciknoweval", "sciknoweval", 1)
    assert job.report["dropped"] == [{"reason": "ambiguous_key", "count": 9, "examples": []}]
    assert (job.report["source"], job.report["column"], job.report["secrets"]) == ("hello", "split", [])
    assert job.version.report == job.report
    assert "reading sciknoweval\nwrote 10 tasks" in job.log
    assert job.finished_at is not None
    assert not imports._folder(job).exists()


def test_a_repeated_message_does_nothing(upload):
    job = perform_import(upload())
    finished = job.finished_at
    assert perform_import(job).finished_at == finished


@pytest.mark.parametrize(
    "content, words", [("fail", "ended with code 1: column `question` is missing"), ("broken", "payload.instruction: Field required")]
)
def test_a_failure_is_told_and_nothing_is_imported(upload, content, words):
    job = perform_import(upload(content))
    assert job.state == ImportState.FAILED
    assert words in job.reason
    assert not Bank.objects.exists()


@pytest.mark.parametrize(
    ("sent_as", "named"),
    [
        ("Questions (2).parquet", "Questions _2_.parquet"),
        ("Prüfung.parquet", "Prüfung.parquet"),
        ("../../etc/x.parquet", "x.parquet"),
        ("C:\\new\\x.parquet", "x.parquet"),
        ("語" * 300 + ".parquet", "語" * 52 + ".parquet"),
    ],
)
def test_what_is_said_of_an_upload_names_the_users_file_and_not_our_folder(upload, settings, sent_as, named):
    job = perform_import(upload("name yourself", sent_as))
    assert job.reason == f"the importer sciknoweval ended with code 1: {named} is no Parquet file that can be read"
    assert f"opening {named}\n" in job.log and str(settings.ASSAY_STORAGE) not in job.log
    job = perform_import(upload("hello", sent_as))
    assert job.report["path"] == named and job.report["location"] == sent_as


def test_an_importer_that_hangs_is_ended_with_its_group(upload, monkeypatch):
    monkeypatch.setattr(imports, "TIME_LIMIT_S", 1.0)
    began = time.monotonic()
    job = perform_import(upload("hang"))
    assert job.state == ImportState.FAILED and "longest an import may take" in job.reason
    assert time.monotonic() - began < 10
    assert not [child for child in psutil.Process().children() if is_importer(child)]


def is_importer(process: psutil.Process) -> bool:
    try:
        return "fake_importers" in " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):  # another test's child, which nobody has waited for
        return False


def test_progress_is_seen_while_it_works(upload, monkeypatch):
    monkeypatch.setattr(imports, "TIME_LIMIT_S", 15.0)
    seen = []
    monkeypatch.setattr(imports, "_touch", lambda job, log: seen.append(log))
    perform_import(upload("hang"))
    assert "reading sciknoweval" in seen[-2]


def test_an_import_whose_worker_died_is_told_as_lost(upload):
    running, waiting = upload(), upload()
    long_ago = timezone.now() - timedelta(minutes=10)
    BankImport.objects.filter(pk=running.pk).update(state=ImportState.RUNNING, touched_at=long_ago)
    BankImport.objects.filter(pk=waiting.pk).update(touched_at=long_ago)
    assert fail_lost_imports() == 1
    running.refresh_from_db()
    waiting.refresh_from_db()
    assert (running.state, waiting.state) == (ImportState.FAILED, ImportState.QUEUED)
    assert "start it again" in running.reason


def test_an_unreachable_broker_is_told_in_the_row(team, teammate, monkeypatch, django_capture_on_commit_callbacks):
    from kombu.exceptions import OperationalError

    def refuse(*_, **__):
        raise OperationalError("connection refused")

    monkeypatch.setattr(tasks.run_import, "apply_async", refuse)
    with django_capture_on_commit_callbacks(execute=True):
        job = start_import(teammate, team, "quiz", "bundled")
    job.refresh_from_db()
    assert job.state == ImportState.FAILED and "broker" in job.reason


@pytest.mark.parametrize(
    "environment, source, location, slug, field",
    [
        ("chess", "hub", "a/b", "", "environment"),
        ("quiz", "hub", "a/b", "", "source"),
        ("sciknoweval", "bundled", "", "", "source"),
        ("sciknoweval", "ftp", "x", "", "source"),
        ("sciknoweval", "hub", "no-slash", "", "location"),
        ("sciknoweval", "hub", "--out/x y", "", "location"),
        ("sciknoweval", "hub", "../..", "", "location"),
        ("sciknoweval", "upload", "questions.exe", "", "location"),
        ("sciknoweval", "upload", "questions.parquet", "", "location"),
        ("sciknoweval", "hub", "a/b", "Bad Name", "bank"),
        ("sciknoweval", "hub", "a/b", "../x", "bank"),
    ],
)
def test_a_wrong_request_is_named_by_field(team, teammate, sent, environment, source, location, slug, field):
    with pytest.raises(ValidationError) as caught:
        start_import(teammate, team, environment, source, location, slug)
    assert list(caught.value.message_dict) == [field]
    assert not BankImport.objects.exists()


def test_only_an_admin_names_files_of_the_server(team, owner, teammate, sent, tmp_path):
    file = tmp_path / "questions.parquet"
    file.write_text("from the server")
    with pytest.raises(PermissionDenied):
        start_import(teammate, team, "sciknoweval", "path", str(file))
    job = perform_import(start_import(owner, team, "sciknoweval", "path", str(file)))
    assert job.report["source"] == "from the server"
    assert file.exists()


@pytest.mark.parametrize("location", ["/nowhere/questions.parquet", "questions.parquet", "/etc/passwd"])
def test_a_path_must_be_a_question_file_that_exists(team, owner, sent, location):
    with pytest.raises(ValidationError) as caught:
        start_import(owner, team, "sciknoweval", "path", location)
    assert list(caught.value.message_dict) == ["location"]


def test_too_large_an_upload_is_refused_and_removed(team, teammate, sent, monkeypatch, settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    monkeypatch.setattr(imports, "MAX_UPLOAD", 10)
    with pytest.raises(ValidationError, match="larger than"):
        start_import(teammate, team, "sciknoweval", "upload", "q.parquet", upload=io.BytesIO(b"x" * 11))
    assert not BankImport.objects.exists() and not list((tmp_path / "imports").iterdir())


def test_a_viewer_cannot_import(team, viewer, sent):
    with pytest.raises(PermissionDenied):
        start_import(viewer, team, "quiz", "bundled")


def test_the_quiz_bank_is_made_once(db):
    first = imports.ensure_quiz_bank()
    assert (first.bank.team.slug, first.bank.slug, first.number, first.created_by) == ("default", "quiz", 1, None)
    assert imports.ensure_quiz_bank() == first
