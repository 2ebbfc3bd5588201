"""A stranger's archive: nothing leaves its folder, nothing but plain files comes out, and the disk is safe."""

import io
import stat
import tarfile
import zipfile

import pytest
import zstandard

from runner.repair import archives
from runner.repair.archives import UnsafeArchive, unpack


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def tar(path, *members, mode="w"):
    """`members` are (name, content or None, changes of the TarInfo)."""
    with tarfile.open(path, mode) as archive:
        for name, content, changes in members:
            item = tarfile.TarInfo(name)
            item.size = len(content or b"")
            for key, value in changes.items():
                setattr(item, key, value)
            archive.addfile(item, io.BytesIO(content or b""))
    return path


GOOD = (("a/run.sh", b"#!/bin/sh\n", {"mode": 0o755}), ("a/b/text", b"hello", {}))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_tars_come_out_whole(tmp_path, out, mode):
    unpack(tar(tmp_path / "x.tar", *GOOD, mode=mode), out)
    assert (out / "a" / "b" / "text").read_bytes() == b"hello"
    assert stat.S_IMODE((out / "a" / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((out / "a" / "b" / "text").stat().st_mode) == 0o644


def test_zstd_and_zip(tmp_path, out):
    packed = tmp_path / "x.tar.zst"
    packed.write_bytes(zstandard.compress(tar(tmp_path / "x.tar", *GOOD).read_bytes()))
    unpack(packed, out)
    assert (out / "a" / "run.sh").exists()
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("c/text", "zip")
    unpack(tmp_path / "x.zip", out)
    assert (out / "c" / "text").read_text() == "zip"


def test_a_tar_that_ends_in_a_zip_is_a_tar(tmp_path, out):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("inner", "x")
    unpack(tar(tmp_path / "x.tar", ("a/text", b"hello", {}), ("last.zip", packed.getvalue(), {})), out)
    assert sorted(path.name for path in out.iterdir()) == ["a", "last.zip"]


HOSTILE = {
    "slip": ("../evil", b"x", {}, "leads out"),
    "absolute": ("/etc/evil", b"x", {}, "leads out"),
    "deep slip": ("a/../../evil", b"x", {}, "leads out"),
    "backslash": ("..\\evil", b"x", {}, "leads out"),
    "symlink": ("link", None, {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "a symbolic link"),
    "inner symlink": ("link", None, {"type": tarfile.SYMTYPE, "linkname": "good"}, "tar --dereference"),
    "hard link": ("link", None, {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}, "a hard link"),
    "device": ("null", None, {"type": tarfile.CHRTYPE}, "a device"),
    "pipe": ("pipe", None, {"type": tarfile.FIFOTYPE}, "a special file"),
    "long name": ("a/" * 600 + "b", b"x", {}, "longer than 1000"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_member_is_refused_and_nothing_stays(name, tmp_path, out):
    path, content, changes, words = HOSTILE[name]
    with pytest.raises(UnsafeArchive, match=words):
        unpack(tar(tmp_path / "x.tar", ("good", b"x", {}), (path, content, changes)), out)
    assert not list(out.iterdir())
    assert not (tmp_path / "evil").exists()


def test_a_second_member_of_a_name_replaces_nothing(tmp_path, out):
    with pytest.raises(UnsafeArchive, match="stands twice"):
        unpack(tar(tmp_path / "x.tar", ("good", b"x", {}), ("good", b"y", {})), out)


def test_a_bomb_is_stopped_by_what_it_unpacks_to(tmp_path, out, monkeypatch):
    monkeypatch.setattr(archives, "RATIO_FREE", 1 << 20)
    bomb = tar(tmp_path / "x.tar.gz", ("zeros", bytes(30 << 20), {}), mode="w:gz")
    assert bomb.stat().st_size < 100_000
    with pytest.raises(UnsafeArchive, match="200 times its size"):
        unpack(bomb, out)
    assert not list(out.iterdir())


def test_a_zip_that_lies_about_its_size(tmp_path, out, monkeypatch):
    monkeypatch.setattr(archives, "RATIO_FREE", 1 << 20)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(30 << 20))
    with pytest.raises(UnsafeArchive):
        unpack(tmp_path / "x.zip", out)


def test_a_zip_with_a_link(tmp_path, out):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        item = zipfile.ZipInfo("link")
        item.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(item, "/etc/passwd")
    with pytest.raises(UnsafeArchive, match="a symbolic link"):
        unpack(tmp_path / "x.zip", out)


def test_too_many_members(tmp_path, out, monkeypatch):
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    with pytest.raises(UnsafeArchive, match="more than 3 members"):
        unpack(tar(tmp_path / "x.tar", *((f"f{number}", b"", {}) for number in range(4))), out)


def test_a_header_of_gigabytes_is_not_read_into_memory(tmp_path, out):
    item = tarfile.TarInfo("././@PaxHeader")
    item.type, item.size = tarfile.XHDTYPE, 4 << 30
    (tmp_path / "x.tar").write_bytes(item.tobuf() + bytes(10240))
    with pytest.raises(UnsafeArchive, match="a header of 4,294,967,296 bytes"):
        unpack(tmp_path / "x.tar", out)


@pytest.mark.parametrize("content", [b"", b"not an archive" * 100, b"PK\x03\x04broken"])
def test_what_is_no_archive(tmp_path, out, content):
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(UnsafeArchive, match="cannot be unpacked"):
        unpack(tmp_path / "x.tar", out)


def test_a_cut_archive_leaves_nothing(tmp_path, out):
    whole = tar(tmp_path / "x.tar.gz", *GOOD, ("big", bytes(range(256)) * 4000, {}), mode="w:gz").read_bytes()
    (tmp_path / "y.tar.gz").write_bytes(whole[:-200])
    with pytest.raises(UnsafeArchive):
        unpack(tmp_path / "y.tar.gz", out)
    assert not list(out.iterdir())
