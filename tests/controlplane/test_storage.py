"""Blobs are content-addressed, whole, read by range, and swept only when nothing names them."""

import os
import threading
import time

import pytest

from controlplane import storage
from runner.contract.canonical import digest

DAY = 86_400


@pytest.fixture(autouse=True)
def store(settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    return tmp_path / "blobs"


def age(name, seconds):
    past = time.time() - seconds
    os.utime(storage.blob_path(name), (past, past))


def test_it_stores_and_reads_back(store):
    name = storage.put(b"content")
    assert name == digest(b"content")
    assert storage.read(name) == b"content"
    assert (store / name[:2] / name[2:]).is_file()


def test_storing_again_keeps_one_file_and_renews_its_age(store):
    name = storage.put(b"content")
    age(name, 2 * DAY)
    storage.put(b"content")
    assert [path.name for path in store.rglob("*") if path.is_file()] == [name[2:]]
    assert time.time() - storage.blob_path(name).stat().st_mtime < 60


def test_an_empty_blob_opens():
    assert bytes(storage.open_blob(storage.put(b""))) == b""


def test_a_range_is_read_from_a_memory_map():
    view = storage.open_blob(storage.put(bytes(range(256)) * 1000))
    assert bytes(view[1000:1004]) == bytes([232, 233, 234, 235])


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "ab" * 31, "AB" * 32, "ab" * 32 + "/x"])
def test_a_name_that_is_no_digest_is_refused(name):
    with pytest.raises(ValueError, match="SHA-256"):
        storage.read(name)


def test_a_missing_blob_says_so():
    with pytest.raises(storage.BlobMissing, match="not in the store"):
        storage.open_blob("ab" * 32)


def test_a_failed_write_leaves_nothing_behind(store, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        storage.put(b"content")
    assert not [path for path in store.rglob("*") if path.is_file()]


def test_the_sweeper_removes_what_is_old_and_unnamed():
    names = [storage.put(bytes([index])) for index in range(200)]
    by_prefix = [name for name in names if name[:2] == names[0][:2]]
    kept, fresh = names[1], names[2]
    for name in set(names) - {fresh}:
        age(name, 2 * DAY)
    removed = sum(storage.sweep(prefix, lambda digests: {kept} & set(digests)) for prefix in storage.PREFIXES)
    assert removed == len(set(names)) - 2 and by_prefix
    assert storage.exists(kept) and storage.exists(fresh) and not storage.exists(names[0])


def test_the_sweeper_removes_partial_files_of_dead_writers(store):
    name = storage.put(b"content")
    partial = store / name[:2] / ".dead.partial"
    partial.write_bytes(b"half")
    os.utime(partial, (0, 0))
    assert storage.sweep(name[:2], lambda digests: digests) == 1
    assert storage.exists(name)


def test_a_blob_stored_while_the_sweeper_runs_survives():
    """The writer waits for the sweeper's lock, and then writes what the sweeper took away."""
    name = storage.put(b"content")
    age(name, 2 * DAY)
    writer = threading.Thread(target=storage.put, args=(b"content",))

    def named(digests):
        writer.start()
        time.sleep(0.1)
        return []

    assert storage.sweep(name[:2], named) == 1
    writer.join()
    assert storage.read(name) == b"content"
