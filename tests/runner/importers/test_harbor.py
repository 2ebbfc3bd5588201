"""Repair banks by their importer: three kinds of source, blobs that tasks share, and what is refused whole."""

import gzip
import hashlib
import json
import shutil
import subprocess
import tarfile
import zipfile

import pytest
import zstandard

from runner.contract.bank import read_bank
from runner.contract.repair import read_listing
from runner.importers.__main__ import batches, main
from runner.importers.errors import ImportRefused
from runner.importers.harbor import opened
from runner.repair.compile import compile_bank
from tests.runner.repair import toy


@pytest.fixture
def authored(tmp_path):
    return toy.write_authored(tmp_path / "bank")


@pytest.fixture
def compiled(authored, tmp_path):
    compile_bank(authored, tmp_path / "build")
    return tmp_path / "build"


def records(*arguments, **options):
    with opened(*map(str, arguments), **options) as bank:
        return bank.tasks


def git(folder, *arguments):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def test_the_files_of_a_bank_are_blobs_and_shared_ones_are_there_once(compiled, tmp_path):
    out, report, blobs = tmp_path / "bank.zst", tmp_path / "report.json", tmp_path / "blobs"
    assert main(["harbor", "--source", str(compiled), "--out", str(out), "--report", str(report), "--blobs", str(blobs)]) == 0
    tasks, _, _ = read_bank(out.read_bytes())
    stored = {path.name: path.read_bytes() for path in blobs.iterdir()}
    assert all(hashlib.sha256(content).hexdigest() == name for name, content in stored.items())
    listings = [read_listing(stored[task.payload["task_digest"]]) for task in tasks]
    assert {file.sha256 for files in listings for file in files} | {task.payload["task_digest"] for task in tasks} == set(stored)
    assert sum(map(len, listings)) == 80 and len(stored) < 45
    found = json.loads(report.read_text())
    assert (found["read"], found["kept"], found["harbor"]["layout"]) == (4, 4, "compiled")
    assert found["harbor"]["stored_bytes"] < found["harbor"]["bytes"]


def test_a_sparse_bank_is_all_e04_until_it_is_compiled(authored, capsys):
    assert {tuple(task.flags) for task in records(authored)} == {("E04",)}
    with opened(str(authored), is_sparse=True, mirror="http://mirror.example.org") as bank:
        assert {task.split for task in bank.tasks} == {"train", "eval"}
        compile_report = bank.report.document(bank.tasks)["harbor"]["compile"]
    assert compile_report["mirror"] == "http://mirror.example.org" and len(compile_report["digests"]) == 4


def test_a_plain_dataset(compiled, tmp_path):
    plain = toy.as_plain(compiled, tmp_path / "plain")
    tasks = records(plain, "mine")
    found = {(task.domain, task.level, task.payload["category"], task.payload["reward_key"]) for task in tasks}
    assert found == {("mine", "unrated", "", "reward")}


@pytest.mark.parametrize("kind", ["tar.gz", "zip", "tar.zst"])
def test_an_archive_gives_the_same_bank_as_its_folder(kind, compiled, tmp_path):
    path = tmp_path / f"repo-main.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            for file in sorted(compiled.rglob("*")):
                archive.write(file, f"repo-main/build/{file.relative_to(compiled)}")
    else:
        with tarfile.open(tmp_path / "x.tar", "w") as tar:
            tar.add(compiled, "repo-main/build")
        pack = {"tar.gz": gzip.compress, "tar.zst": zstandard.compress}[kind]
        path.write_bytes(pack((tmp_path / "x.tar").read_bytes()))
    assert records(path) == records(compiled)


def test_a_commit_is_read_whatever_lies_in_the_checkout(compiled, tmp_path):
    before = records(compiled)
    repository = tmp_path / "repository"
    shutil.copytree(compiled, repository / "banks" / "toy")
    git(tmp_path, "init", "-q", "repository")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "one")
    commit = git(repository, "rev-parse", "HEAD")
    shutil.rmtree(repository / "banks" / "toy" / "toy" / "repair" / "easy" / "toy-repair-sign-a")
    (repository / "notes.txt").write_text("outside of the bank")
    assert len(records(repository / "banks" / "toy")) == 3
    with opened(str(repository / "banks" / "toy"), ref="HEAD") as bank:
        assert bank.tasks == before
        assert bank.report.source["checkout"] == {"commit": commit, "dirty": False}
    with opened(str(repository / "banks" / "toy")) as bank:
        assert bank.report.source["checkout"] == {"commit": commit, "dirty": True}
    assert records(repository, ref=commit[:10]) == before


@pytest.mark.parametrize("ref", ["nowhere", "--output=/tmp/x", "HEAD~9"])
def test_a_commit_that_is_none(compiled, tmp_path, ref):
    with pytest.raises(ImportRefused, match="commit"):
        records(compiled, ref=ref)


def test_what_cannot_be_read_is_refused_with_a_remedy(authored, tmp_path, capsys):
    with pytest.raises(ImportRefused, match="correct the path"):
        records(tmp_path / "nowhere")
    toy.write(tmp_path / "empty" / "README", "x")
    with pytest.raises(ImportRefused, match="no task.toml"):
        records(tmp_path / "empty")
    (authored / "envs" / "toy" / "env.toml").write_text("[")
    with pytest.raises(ImportRefused, match="not TOML"):
        records(authored, is_sparse=True)
    assert main(["harbor", "--source", str(authored), "--compile", "--out", str(tmp_path / "x.zst")]) == 1
    assert "not TOML" in capsys.readouterr().err and not (tmp_path / "x.zst").exists()


def test_a_hostile_archive_leaves_nothing_behind(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        item = tarfile.TarInfo("link")
        item.type, item.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(item)
    with pytest.raises(ImportRefused, match="a symbolic link"):
        records(tmp_path / "x.tar")
    assert not list(scratch.iterdir())


def test_a_task_whose_files_cannot_be_kept_names_itself(compiled):
    link = compiled / "toy" / "repair" / "easy" / "toy-repair-sign-a" / "tests" / "passwd"
    link.symlink_to("/etc/passwd")
    with pytest.raises(ImportRefused, match="toy/repair/easy/toy-repair-sign-a/tests/passwd: a link that leaves"):
        records(compiled)


def test_files_are_sent_in_lots(monkeypatch):
    from runner.importers import __main__ as command

    monkeypatch.setattr(command, "SEND_FILES", 3)
    monkeypatch.setattr(command, "SEND_BYTES", 10)
    blobs = {"a": b"1", "b": b"1", "c": b"1", "d": b"1" * 20, "e": b"1", "f": b"1"}
    assert list(batches(list(blobs), blobs)) == [["a", "b", "c"], ["d"], ["e", "f"]]
