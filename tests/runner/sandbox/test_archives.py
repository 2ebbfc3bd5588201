import io
import os
import tarfile
import tracemalloc

import pytest

from runner.sandbox import archives
from runner.sandbox.base import ArchiveLimits
from runner.sandbox.reasons import Reason, SandboxFailure

LIMITS = ArchiveLimits(total_bytes=1 << 20, entries=20)


def entry(name, content=b"", kind=tarfile.REGTYPE, link="", size=None, mode=0o644):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(content) if size is None else size
    return info, content


def folder(name):
    return entry(name, kind=tarfile.DIRTYPE, mode=0o755)


def tar(*entries) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for info, content in entries:
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def chunks(data: bytes, size=700):
    return (data[start : start + size] for start in range(0, len(data), size))


def refused(data, tmp_path, limits=LIMITS) -> Reason:
    with pytest.raises(SandboxFailure) as caught:
        archives.unpack(chunks(data), tmp_path / "out", limits)
    assert list(tmp_path.iterdir()) == [], "a refused archive left something behind"
    return caught.value.reason


def test_a_folder_is_written_whole_and_loses_dangerous_modes(tmp_path):
    data = tar(folder("top"), folder("top/a"), entry("top/a/run", b"#!/bin/sh\n", mode=0o6777), entry("top/b", b"xy"))
    assert archives.unpack(chunks(data), tmp_path / "out", LIMITS) == 12
    assert (tmp_path / "out" / "a" / "run").read_bytes() == b"#!/bin/sh\n"
    assert (tmp_path / "out" / "a" / "run").stat().st_mode & 0o7777 == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_single_file_becomes_the_destination_itself(tmp_path):
    archives.unpack(chunks(tar(entry("answer.txt", b"42"))), tmp_path / "kept", LIMITS)
    assert (tmp_path / "kept").read_bytes() == b"42"


@pytest.mark.parametrize(
    "entries",
    [
        [folder("top"), entry("top/../../evil", b"x")],
        [entry("/etc/cron.d/evil", b"x")],
        [folder("top"), entry("top/link", kind=tarfile.SYMTYPE, link="/etc/passwd")],
        [folder("top"), entry("top/link", kind=tarfile.SYMTYPE, link="../outside")],
        [folder("top"), folder("top/d"), entry("top/l", kind=tarfile.SYMTYPE, link="d"), entry("top/l/x", b"x")],
        [
            folder("top"),
            folder("top/a"),
            folder("top/a/b"),
            entry("top/a/b/up", kind=tarfile.SYMTYPE, link="../.."),
            entry("top/x", kind=tarfile.SYMTYPE, link="a/b/up/../y"),
        ],
        [entry("top", kind=tarfile.SYMTYPE, link="/")],
    ],
    ids=["dotdot", "absolute", "link-absolute", "link-out", "through-link", "link-through-link", "root-is-a-link"],
)
def test_a_path_out_of_the_root_is_refused(entries, tmp_path):
    assert refused(tar(*entries), tmp_path) is Reason.ARCHIVE_UNSAFE_PATH


def test_a_link_that_stays_inside_is_kept(tmp_path):
    data = tar(folder("top"), folder("top/a"), entry("top/b", b"x"), entry("top/a/l", kind=tarfile.SYMTYPE, link="../b"))
    archives.unpack(chunks(data), tmp_path / "out", LIMITS)
    assert (tmp_path / "out/a/l").read_bytes() == b"x"


def test_a_hard_link_to_outside_is_refused(tmp_path):
    data = tar(folder("top"), entry("top/l", kind=tarfile.LNKTYPE, link="top/../../etc/passwd"))
    assert refused(data, tmp_path) is Reason.ARCHIVE_UNSAFE_PATH


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_a_device_or_pipe_is_refused(kind, tmp_path):
    assert refused(tar(folder("top"), entry("top/x", kind=kind)), tmp_path) is Reason.ARCHIVE_SPECIAL_FILE


def test_five_gigabytes_are_refused_at_their_header_and_never_held_in_memory(tmp_path):
    info, _ = entry("top/huge", size=5 << 30)
    read = 0

    def endless():
        nonlocal read
        yield info.tobuf()
        while True:
            read += 1 << 20
            yield bytes(1 << 20)

    tracemalloc.start()
    with pytest.raises(SandboxFailure) as caught:
        archives.unpack(endless(), tmp_path / "out", ArchiveLimits(total_bytes=1 << 30))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.reason is Reason.ARCHIVE_TOO_LARGE
    assert "5368709120" in str(caught.value)
    assert read <= 4 << 20 and peak < 16 << 20
    assert list(tmp_path.iterdir()) == []


def test_many_small_files_count_together(tmp_path):
    data = tar(folder("top"), *(entry(f"top/{index}", b"x" * 100_000) for index in range(12)))
    assert refused(data, tmp_path) is Reason.ARCHIVE_TOO_LARGE


def test_too_many_entries_are_refused(tmp_path):
    data = tar(folder("top"), *(entry(f"top/{index}") for index in range(30)))
    assert refused(data, tmp_path) is Reason.ARCHIVE_TOO_MANY_FILES


def test_a_truncated_archive_leaves_nothing(tmp_path):
    data = tar(folder("top"), entry("top/a", b"x" * 5000))
    assert refused(data[:2500], tmp_path) is Reason.ARCHIVE_DAMAGED


def test_an_entry_twice_is_refused(tmp_path):
    assert refused(tar(folder("top"), entry("top/a", b"1"), entry("top/a", b"2")), tmp_path) is Reason.ARCHIVE_DAMAGED


def test_a_small_file_is_read_within_its_limit(tmp_path):
    assert archives.only_file(chunks(tar(entry("r.json", b"{}"))), 10) == b"{}"
    with pytest.raises(SandboxFailure) as caught:
        archives.only_file(chunks(tar(entry("r.json", b"x" * 11))), 10)
    assert caught.value.reason is Reason.ARCHIVE_TOO_LARGE
    with pytest.raises(SandboxFailure) as caught:
        archives.only_file(chunks(tar(entry("r.json", kind=tarfile.SYMTYPE, link="/etc/shadow"))), 10)
    assert caught.value.reason is Reason.ARCHIVE_SPECIAL_FILE


def context(tmp_path):
    root = tmp_path / "environment"
    (root / "src").mkdir(parents=True)
    (root / "Dockerfile").write_text("FROM scratch\n")
    (root / "src" / "a.c").write_text("int a;\n")
    return root


def test_a_context_is_a_function_of_its_content(tmp_path):
    root = context(tmp_path)
    with archives.pack_context(root) as first:
        before = first.read()
    os.utime(root / "src" / "a.c", (1, 1))
    with archives.pack_context(root) as second:
        assert second.read() == before
    with archives.pack_context(root) as third, tarfile.open(fileobj=third) as packed:
        assert sorted(packed.getnames()) == ["Dockerfile", "src", "src/a.c"]


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret"])
def test_a_context_with_a_link_out_of_its_root_is_refused(target, tmp_path):
    root = context(tmp_path)
    (tmp_path / "secret").write_text("key")
    (root / "src" / "link").symlink_to(target)
    with pytest.raises(SandboxFailure) as caught:
        archives.pack_context(root)
    assert caught.value.reason is Reason.CONTEXT_UNSAFE
    assert str(root / "src" / "link") in str(caught.value)


def test_a_context_over_its_limit_is_refused(tmp_path):
    root = context(tmp_path)
    with open(root / "big", "wb") as big:
        big.truncate(2 << 20)
    with pytest.raises(SandboxFailure) as caught:
        archives.pack_context(root, LIMITS)
    assert caught.value.reason is Reason.CONTEXT_TOO_LARGE


def test_an_uncompiled_task_has_no_context(tmp_path):
    with pytest.raises(SandboxFailure) as caught:
        archives.pack_context(tmp_path)
    assert caught.value.reason is Reason.CONTEXT_MISSING


def test_an_upload_cannot_climb():
    with pytest.raises(SandboxFailure) as caught:
        archives.pack_upload({"../etc/passwd": b"x"}, "/tests")
    assert caught.value.reason is Reason.ARCHIVE_UNSAFE_PATH
