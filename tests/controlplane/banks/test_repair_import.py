"""Repair banks through the control plane's door: the real importer process, from a folder, a commit, an archive, and the sample bank."""

import subprocess
import tarfile

import pytest
from django.core.exceptions import PermissionDenied, ValidationError

from controlplane import storage
from controlplane.banks import imports, tasks
from controlplane.banks.imports import SAMPLE_BANK, perform_import, start_import
from controlplane.banks.models import Bank, BankFile, BankImport, ImportState
from runner.contract.repair import read_listing
from tests.runner.repair import toy


@pytest.fixture(autouse=True)
def alone(settings, tmp_path, monkeypatch):
    settings.ASSAY_STORAGE = tmp_path / "storage"
    monkeypatch.setattr(imports, "BEAT_S", 0.1)
    monkeypatch.setattr(tasks.run_import, "apply_async", lambda *_, **__: None)


@pytest.fixture
def authored(tmp_path):
    return toy.write_authored(tmp_path / "bank")


def test_a_folder_is_compiled_and_its_files_are_in_the_store(team, owner, authored):
    job = perform_import(start_import(owner, team, "harbor", "path", str(authored), is_sparse=True))
    assert (job.state, job.reason) == (ImportState.SUCCEEDED, "")
    version = job.version
    assert (version.bank.slug, version.bank.environment, version.counts["repair"]["runnable"]) == ("repair", "harbor", 4)
    assert len(job.report["harbor"]["compile"]["digests"]) == 4 and "compiled" in job.report["harbor"]["layout"]
    task = version.tasks.get(key="demo/toy-repair-sign-a")
    paths = {file.path for file in read_listing(storage.read(task.payload["task_digest"]))}
    assert "environment/Dockerfile" in paths and "tests/test.sh" in paths
    assert BankFile.objects.filter(version=version).count() == len(set(BankFile.objects.values_list("digest", flat=True)))


def test_without_compiling_every_task_is_blocked_and_says_what_to_do(team, owner, authored):
    job = perform_import(start_import(owner, team, "harbor", "path", str(authored)))
    counts = job.version.counts["repair"]
    assert (counts["runnable"], counts["blocked"]) == (0, 4)
    assert [(item["code"], item["count"]) for item in counts["findings"]] == [("E04", 4)]
    assert "E04 in 4 tasks" in job.log


def test_an_archive_of_a_member(team, teammate, authored, tmp_path):
    with tarfile.open(tmp_path / "bank.tar.gz", "w:gz") as tar:
        tar.add(authored, "bank")
    with (tmp_path / "bank.tar.gz").open("rb") as upload:
        job = perform_import(start_import(teammate, team, "harbor", "upload", "bank.tar.gz", "mine", upload=upload, is_sparse=True))
    assert (job.state, job.reason, job.version.bank.slug) == (ImportState.SUCCEEDED, "", "mine")
    assert not imports._folder(job).exists()


def test_a_commit_of_a_checkout(team, owner, authored):
    for arguments in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "x")):
        subprocess.run(["git", "-C", authored, *arguments], check=True)
    (authored / "shared" / "grade.py").unlink()
    job = perform_import(start_import(owner, team, "harbor", "git", str(authored), ref="HEAD", is_sparse=True))
    assert (job.state, job.reason) == (ImportState.SUCCEEDED, "")
    assert len(job.report["source"]["checkout"]["commit"]) == 40


def test_a_hostile_archive_fails_with_its_reason_and_imports_nothing(team, teammate, tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        item = tarfile.TarInfo("../../evil")
        tar.addfile(item)
    with (tmp_path / "x.tar").open("rb") as upload:
        job = perform_import(start_import(teammate, team, "harbor", "upload", "x.tar", upload=upload))
    assert job.state == ImportState.FAILED and "leads out of the archive's folder" in job.reason
    assert not Bank.objects.exists() and not BankFile.objects.exists()


@pytest.mark.parametrize(
    "source, location, options, field",
    [
        ("hub", "a/b", {}, "source"),
        ("upload", "x.parquet", {}, "location"),
        ("upload", "x.tar", {}, "location"),
        ("path", "/nowhere", {}, "location"),
        ("path", "relative/bank", {}, "location"),
        ("path", "/etc/passwd", {}, "location"),
        ("git", "/nowhere", {"ref": "HEAD"}, "location"),
        ("git", "/tmp", {}, "ref"),
        ("git", "/tmp", {"ref": "--output=/tmp/x"}, "ref"),
    ],
)
def test_a_wrong_request_is_named_by_field(team, owner, source, location, options, field):
    with pytest.raises(ValidationError) as caught:
        start_import(owner, team, "harbor", source, location, **options)
    assert list(caught.value.message_dict) == [field]
    assert not BankImport.objects.exists()


@pytest.mark.parametrize("source", ["path", "git"])
def test_only_an_admin_names_places_of_the_server(team, teammate, source, tmp_path):
    with pytest.raises(PermissionDenied):
        start_import(teammate, team, "harbor", source, str(tmp_path), ref="HEAD")


def test_the_sample_bank_is_every_members(team, teammate):
    job = start_import(teammate, team, "harbor", "bundled")
    assert imports._arguments(job) == ["--source", str(SAMPLE_BANK), "--compile", "--bank-slug", "repair"]
    assert SAMPLE_BANK.is_dir()
