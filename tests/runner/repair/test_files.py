"""The files of a task, their digest, layouts, and the cache on a node."""

import multiprocessing
import os
import shutil
import tarfile

import pytest

from runner.repair.apply_defect import Refused, changed_files
from runner.repair.cache import TaskCache, TaskUnavailable
from runner.repair.files import BadTaskFiles, read_files
from runner.repair.layouts import NoTasks, discover
from runner.repair.sources import archive_source, directory_source
from tests.runner.repair import toy


# ---------------------------------------------------------------- files
def test_the_digest_of_a_folder_is_that_of_its_content(dense, tmp_path):
    before = read_files(dense).digest
    copy = shutil.copytree(dense, tmp_path / "copy")
    toy.write(copy / "eval" / "evals.jsonl", "{}")
    toy.write(copy / "tests" / "__pycache__" / "x.pyc", "")
    (copy / "empty").mkdir()
    assert read_files(copy).digest == before
    (copy / "tests" / "test.sh").chmod(0o644)
    assert read_files(copy).digest != before


def test_a_link_inside_counts_as_its_file_and_one_that_leaves_is_refused(tmp_path):
    task = toy.write(tmp_path / "task" / "a.txt", "hello").parent
    toy.write(tmp_path / "task" / "b.txt", "hello")
    plain = read_files(task).digest
    (task / "b.txt").unlink()
    (task / "b.txt").symlink_to("a.txt")
    assert read_files(task).digest == plain
    secret = toy.write(tmp_path / "secret", "x")
    (task / "c.txt").symlink_to(secret)
    with pytest.raises(BadTaskFiles, match="c.txt: a link that leaves"):
        read_files(task)
    (task / "c.txt").unlink()
    (task / "c").symlink_to(tmp_path)
    with pytest.raises(BadTaskFiles, match="a linked folder"):
        read_files(task)


@pytest.mark.parametrize(
    "spoil, words", [(lambda path: os.mkfifo(path), "neither a file"), (lambda path: path.symlink_to("gone"), "neither a file")]
)
def test_what_is_no_file(tmp_path, spoil, words):
    spoil(tmp_path / "odd")
    with pytest.raises(BadTaskFiles, match=words):
        read_files(tmp_path)


def test_a_name_that_is_no_text(tmp_path):
    toy.write(tmp_path / "a\nb", "x")
    with pytest.raises(BadTaskFiles, match="rename it"):
        read_files(tmp_path)


# ---------------------------------------------------------------- layouts
def test_the_three_layouts(authored, compiled, tmp_path):
    plain = toy.as_plain(compiled, tmp_path / "plain")
    places = {root.name: discover(root, "named") for root in (authored, compiled, plain)}
    assert {name: (bank.layout, len(bank.tasks)) for name, bank in places.items()} == {
        "bank": ("authored", 4),
        "build": ("compiled", 4),
        "plain": ("harbor", 4),
    }
    first = [(bank.tasks[0].env, bank.tasks[0].category, bank.tasks[0].tier) for bank in places.values()]
    assert first == [("toy", "repair", "easy"), ("toy", "repair", "easy"), ("named", None, None)]


def test_a_compiled_bank_wins_over_the_authored_one_beside_it(authored, compiled):
    shutil.move(compiled, authored / "build")
    bank = discover(authored)
    assert bank.layout == "compiled" and len(bank.tasks) == 4


def test_a_subset_is_compiled_without_an_index_and_known_all_the_same(compiled):
    (compiled / "toy" / "index.jsonl").unlink()
    bank = discover(compiled)
    assert (bank.layout, bank.tasks[0].env, bank.tasks[0].category, bank.tasks[0].tier) == ("compiled", "toy", "repair", "easy")


def test_the_flattened_layout_keeps_its_environment(authored, tmp_path):
    env = authored / "envs" / "toy"
    shutil.copytree(env / "env", tmp_path / "flat" / "environments" / "toy")
    shutil.copytree(env / "tasks" / "repair" / "easy", tmp_path / "flat" / "hard85" / "toy")
    bank = discover(tmp_path / "flat")
    assert (bank.layout, bank.tasks[0].env, bank.tasks[0].env_folder.name) == ("authored", "toy", "toy")


def test_an_unknown_tier_is_told(authored):
    easy = authored / "envs" / "toy" / "tasks" / "repair" / "easy"
    shutil.move(easy / "toy-repair-sign-a", easy.parent / "blocked-gpu" / "toy-repair-sign-a")
    bank = discover(authored)
    assert len(bank.tasks) == 3
    assert "blocked-gpu" in bank.notes[0] and "easy, medium, hard, unrated" in bank.notes[0]


def test_one_task_is_a_bank(dense):
    assert [item.env for item in discover(dense, "mine").tasks] == ["mine"]


def test_no_tasks(tmp_path):
    with pytest.raises(NoTasks, match="no task.toml"):
        discover(tmp_path)


# ---------------------------------------------------------------- sources and edits
def test_an_archive_with_one_folder_reads_like_the_folder(tmp_path):
    source = toy.write(tmp_path / "src" / "a" / "x.f90", "program\n").parent.parent
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as tar:
        tar.add(source, "code-1.2")
    packed, folder = archive_source(tmp_path / "x.tar.gz"), directory_source(source)
    assert packed.read("a/x.f90") == folder.read("a/x.f90") == "program\n"
    assert packed.read("a/y.f90") is folder.read("../src/a/x.f90") is None


DIFF = "--- a/x.c\n+++ b/x.c\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n@@ -5 +5,2 @@\n-five\n+5\n+6\n"


def test_a_diff_is_applied_where_it_says():
    text = "one\ntwo\nthree\nfour\nfive\n"
    assert changed_files({"diff": DIFF}, {"x.c": text}.get) == {"x.c": "one\n2\nthree\nfour\n5\n6\n"}
    with pytest.raises(Refused, match="line 1 and the lines after it"):
        changed_files({"diff": DIFF}, {"x.c": "zero\n" + text}.get)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"edits": [{"file": "x", "old": "a", "new": "b"}]}, "stands 2 times in x"),
        ({"edits": [{"file": "x", "old": "z", "new": "b"}]}, "stands 0 times in x"),
        ({"edits": [{"file": "x", "old": "", "new": "b"}]}, "stands 0 times in x"),
        ({"edits": [{"file": "y", "old": "a", "new": "b"}]}, "y: no such file"),
        ({"edits": [{"file": "../x", "old": "a", "new": "b"}]}, "stay inside"),
        ({"edits": [{"file": "x"}]}, "needs the texts"),
        ({"diff": "nothing"}, "names no file"),
        ({}, "neither"),
    ],
)
def test_an_edit_that_does_not_fit(change, words):
    with pytest.raises(Refused, match=words):
        changed_files(change, {"x": "a a"}.get)


def test_later_edits_see_earlier_ones():
    edits = [{"file": "x", "old": "a", "new": "b"}, {"file": "x", "old": "b", "new": "c"}]
    assert changed_files({"edits": edits}, {"x": "a"}.get) == {"x": "c"}


# ---------------------------------------------------------------- the cache
def packer(folder, calls):
    def fetch(digest, file):
        calls.append(digest)
        with tarfile.open(file, "w") as tar:
            for entry in read_files(folder).entries:
                tar.add(folder / entry.path, entry.path)

    return fetch


def test_a_task_is_fetched_once_and_verified(dense, tmp_path):
    digest, calls = read_files(dense).digest, []
    cache = TaskCache(tmp_path / "cache", packer(dense, calls))
    folder = cache.folder(digest)
    assert cache.folder(digest) == folder and calls == [digest]
    assert read_files(folder).digest == digest
    assert os.access(folder / "tests" / "test.sh", os.X_OK)


def test_what_is_not_its_digests_is_refused(dense, tmp_path):
    digest = read_files(dense).digest
    (dense / "instruction.md").write_text("another")
    cache = TaskCache(tmp_path / "cache", packer(dense, []))
    with pytest.raises(TaskUnavailable, match="E13"):
        cache.folder(digest)
    assert not [path for path in cache.root.iterdir() if path.suffix != ".lock"]


def test_without_a_control_plane_the_cache_must_be_filled(dense, tmp_path):
    cache = TaskCache(tmp_path / "cache")
    with pytest.raises(TaskUnavailable, match="E13.*no control plane"):
        cache.folder("0" * 64)
    digest = cache.adopt(dense)
    assert cache.adopt(dense) == digest == read_files(cache.folder(digest)).digest


def _open(root, source, digest, calls):
    def fetch(name, file):
        with open(calls, "a") as log:
            log.write("x")
        packer(source, [])(name, file)

    TaskCache(root, fetch).folder(digest)


def test_processes_of_a_node_fetch_once(dense, tmp_path):
    digest, calls = read_files(dense).digest, tmp_path / "calls"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_open, args=(tmp_path / "cache", dense, digest, calls)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert calls.read_text() == "x"
