"""Unpack a stranger's archive without letting it out of its folder, onto a device, or over the disk."""

import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import zstandard

from runner.contract.repair import ARCHIVE_SUFFIXES

MAX_MEMBERS = 100_000
MAX_UNPACKED = 8 << 30
# A member that grows more than this is made to fill a disk, not to be read.
MAX_RATIO = 200
RATIO_FREE = 16 << 20
MAX_PATH = 1_000
MAX_HEADER = 1 << 20
CHUNK = 1 << 20


class UnsafeArchive(ValueError):
    """The archive was refused; the message names the member, what is wrong with it and the limit."""


@dataclass(frozen=True)
class Member:
    """One entry of an archive. `kind` is file, folder, or the name of what it may not be; `packed` is None where it is not known."""

    name: str
    kind: str
    size: int
    packed: int | None
    executable: bool
    open: Callable[[], BinaryIO]


def unpack(archive: Path, folder: Path) -> None:
    """Unpack into the empty folder `folder`. What was written is removed again when anything is refused. Raises UnsafeArchive."""
    try:
        with archive.open("rb") as file:
            _write(_members(archive, file), folder, archive.stat().st_size)
    except UnsafeArchive:
        _clear(folder)
        raise
    except (tarfile.TarError, zipfile.BadZipFile, zstandard.ZstdError, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        _clear(folder)
        raise UnsafeArchive(f"{archive.name} cannot be unpacked: {error}; it must be one of {', '.join(ARCHIVE_SUFFIXES)}") from None


class CarefulTarInfo(tarfile.TarInfo):
    """Long names and extended headers are read into memory at their claimed size: a claim of gigabytes is refused before that."""

    def _proc_member(self, tar: tarfile.TarFile):
        if not self.isreg() and self.size > MAX_HEADER:
            raise UnsafeArchive(f"{self.name!r:.200}: a header of {self.size:,} bytes; at most {MAX_HEADER:,} are read")
        return super()._proc_member(tar)


def _members(archive: Path, file: BinaryIO) -> Iterator[Member]:
    # By its first bytes: a tar that ends in a zip would pass for one.
    is_zip = file.read(4) in (b"PK\x03\x04", b"PK\x05\x06")
    file.seek(0)
    if is_zip:
        return _zip_members(zipfile.ZipFile(file))
    if archive.name.endswith(".zst"):
        stream = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(file)
        return _tar_members(tarfile.open(fileobj=stream, mode="r|", tarinfo=CarefulTarInfo))
    return _tar_members(tarfile.open(fileobj=file, mode="r|*", tarinfo=CarefulTarInfo))


def _tar_members(tar: tarfile.TarFile) -> Iterator[Member]:
    kinds = {tarfile.SYMTYPE: "a symbolic link", tarfile.LNKTYPE: "a hard link", tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device"}
    for item in tar:
        kind = "file" if item.isreg() else "folder" if item.isdir() else kinds.get(item.type, "a special file")
        if item.sparse is not None:
            kind = "a sparse file"
        yield Member(item.name, kind, item.size, None, bool(item.mode & stat.S_IXUSR), lambda item=item: tar.extractfile(item))


def _zip_members(archive: zipfile.ZipFile) -> Iterator[Member]:
    for item in archive.infolist():
        mode = item.external_attr >> 16
        kind = "folder" if item.is_dir() else "file"
        if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
            kind = "a symbolic link" if stat.S_ISLNK(mode) else "a special file"
        if item.flag_bits & 1:
            kind = "an encrypted file"
        yield Member(
            item.filename, kind, item.file_size, item.compress_size, bool(mode & stat.S_IXUSR), lambda item=item: archive.open(item)
        )


def _write(members: Iterator[Member], folder: Path, packed_size: int) -> None:
    written = 0
    for number, member in enumerate(members, 1):
        if number > MAX_MEMBERS:
            raise UnsafeArchive(f"more than {MAX_MEMBERS:,} members; split the bank")
        target = folder / _relative(member)
        if member.kind == "folder":
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        written += _write_file(member, target, allowance(packed_size) - written)
        target.chmod(0o755 if member.executable else 0o644)


def allowance(packed_size: int) -> int:
    """Bytes that an archive of this size may unpack to: 8 GiB, and not more than 200 times its size (16 MiB are always free)."""
    return min(MAX_UNPACKED, max(RATIO_FREE, packed_size * MAX_RATIO))


def _relative(member: Member) -> PurePosixPath:
    path = PurePosixPath(member.name)
    if member.kind not in ("file", "folder"):
        raise UnsafeArchive(f"{member.name!r:.200} is {member.kind}; pack plain files (tar --dereference)")
    if path.is_absolute() or ".." in path.parts or "\\" in member.name or "\0" in member.name:
        raise UnsafeArchive(f"{member.name!r:.200} leads out of the archive's folder; pack relative paths without '..'")
    if len(member.name) > MAX_PATH:
        raise UnsafeArchive(f"{member.name!r:.200}… is longer than {MAX_PATH} characters")
    return path


def _write_file(member: Member, target: Path, room: int) -> int:
    # The size that a header claims is not believed: bytes are counted as they come.
    written = 0
    # "x": a second member of the same name could replace what was already looked at.
    try:
        with member.open() as source, target.open("xb") as file:
            while chunk := source.read(CHUNK):
                written += len(chunk)
                if written > room:
                    raise UnsafeArchive(
                        f"{member.name!r:.200} unpacks to more than the archive may hold (8 GiB, or {MAX_RATIO} times its size)"
                    )
                file.write(chunk)
    except FileExistsError:
        raise UnsafeArchive(f"{member.name!r:.200} stands twice in the archive") from None
    return written


def _clear(folder: Path) -> None:
    for entry in os.scandir(folder):
        shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
