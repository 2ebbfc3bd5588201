"""Files into and out of a container as tar streams. What comes out was written by hostile code: nothing of it is trusted, nothing is read
into memory, and a refused archive leaves no file behind."""

import errno
import os
import posixpath
import secrets
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from runner.sandbox.base import MIB, ArchiveLimits
from runner.sandbox.reasons import Reason, SandboxFailure

COPY_CHUNK = 256 << 10
SPOOL = 8 * MIB
BLOCK = 512
FIXED_TIME = 315532800  # 1980: a context packed twice is the same bytes
_HOST_ERRORS = {
    errno.ENOSPC: Reason.NODE_STORAGE_FAILED,
    errno.EDQUOT: Reason.NODE_STORAGE_FAILED,
    errno.EIO: Reason.NODE_STORAGE_FAILED,
    errno.ENAMETOOLONG: Reason.ARCHIVE_UNSAFE_PATH,
}
CONTEXT_LIMITS = ArchiveLimits(total_bytes=2 << 30, entries=100_000)


def pack_context(folder: Path, limits: ArchiveLimits = CONTEXT_LIMITS) -> BinaryIO:
    """A build context as a tar, byte for byte a function of the folder's content. Raises with a CONTEXT_… reason."""
    folder = Path(folder).resolve()
    if not (folder / "Dockerfile").is_file():
        raise SandboxFailure(Reason.CONTEXT_MISSING, f"{folder}: no Dockerfile; the task was not compiled, compile its bank again")
    out, total, count = tempfile.SpooledTemporaryFile(SPOOL), 0, 0
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _walk(folder):
            name, info = str(path.relative_to(folder)), path.lstat()
            count, total = count + 1, total + (info.st_size if stat.S_ISREG(info.st_mode) else 0)
            if count > limits.entries or total > limits.total_bytes:
                found = f"{folder}: over {limits.entries} entries or {limits.total_bytes} bytes at {name}"
                raise SandboxFailure(Reason.CONTEXT_TOO_LARGE, f"{found}; keep the build context small")
            _refuse_unsafe_source(folder, path, info.st_mode)
            _add(tar, path, name, FIXED_TIME)
    out.seek(0)
    return out


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        for name in sorted([*files, *folders]):
            yield Path(root) / name
        folders[:] = [name for name in folders if name not in links]


def _refuse_unsafe_source(folder: Path, path: Path, mode: int) -> None:
    if stat.S_ISLNK(mode):
        resolved = Path(os.path.realpath(path))
        if os.path.isabs(os.readlink(path)) or not resolved.is_relative_to(folder):
            found = f"{path}: a link to {os.readlink(path)}, outside {folder}"
            raise SandboxFailure(Reason.CONTEXT_UNSAFE, f"{found}; put the file itself into the folder")
    elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise SandboxFailure(Reason.CONTEXT_UNSAFE, f"{path}: neither file, folder nor link; remove it")


def _add(tar: tarfile.TarFile, path: Path, name: str, modified: float) -> None:
    info = tar.gettarinfo(str(path), name)
    if info.islnk():
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = modified
    info.mode = 0o755 if info.isdir() or info.mode & 0o111 else 0o644
    if info.isreg():
        with open(path, "rb") as content:
            tar.addfile(info, content)
    else:
        tar.addfile(info)


def pack_upload(source: Path | Mapping[str, bytes], folder: str) -> BinaryIO:
    """A tar to unpack at the container's root: `source` (a folder, or bytes by relative path) under the absolute path `folder`."""
    base = posixpath.normpath(folder).lstrip("/")
    out, now = tempfile.SpooledTemporaryFile(SPOOL), time.time()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        _add_folders(tar, [base], now)
        if isinstance(source, Mapping):
            _add_folders(tar, sorted({posixpath.join(base, posixpath.dirname(name)) for name in source if "/" in name}), now)
            for name, content in source.items():
                _add_bytes(tar, posixpath.join(base, _relative(name)), content, now)
        else:
            root = Path(source).resolve()
            for path in _walk(root):
                _refuse_unsafe_source(root, path, path.lstat().st_mode)
                _add(tar, path, posixpath.join(base, str(path.relative_to(root))), now)
    out.seek(0)
    return out


def pack_folders(folders: list[str]) -> BinaryIO:
    """A tar of empty folders given by absolute path."""
    out = BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        _add_folders(tar, [posixpath.normpath(folder).lstrip("/") for folder in folders], time.time())
    out.seek(0)
    return out


def _add_folders(tar: tarfile.TarFile, names: list[str], modified: float) -> None:
    made = {str(parent): None for name in names for parent in reversed([PurePosixPath(name), *PurePosixPath(name).parents])}
    for name in made:
        if name not in (".", ""):
            info = tarfile.TarInfo(name)
            info.type, info.mode, info.mtime = tarfile.DIRTYPE, 0o755, modified
            tar.addfile(info)


def _add_bytes(tar: tarfile.TarFile, name: str, content: bytes, modified: float) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(content), modified, 0o755 if content.startswith(b"#!") else 0o644
    tar.addfile(info, BytesIO(content))


def _relative(name: str) -> str:
    if posixpath.isabs(name) or ".." in PurePosixPath(name).parts:
        raise SandboxFailure(Reason.ARCHIVE_UNSAFE_PATH, f"{name!r} leads out of the folder; give a relative path without ..")
    return name


def unpack(chunks: Iterator[bytes], destination: Path, limits: ArchiveLimits) -> int:
    """Write the one file or folder in a tar stream to `destination`, which must not exist; returns the bytes of its files.

    The stream is cut at the first entry that breaks a rule; `destination` appears whole or not at all.
    """
    if destination.exists():
        raise FileExistsError(f"{destination} exists already; take it to a new place")
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.part")
    try:
        total = _Unpacker(part, limits).run(chunks)
        os.rename(part, destination)
        return total
    except (tarfile.TarError, EOFError) as error:
        raise SandboxFailure(Reason.ARCHIVE_DAMAGED, f"{destination.name}: the archive is damaged: {error}") from None
    except FileExistsError as error:
        raise SandboxFailure(Reason.ARCHIVE_DAMAGED, f"{destination.name}: an entry occurs twice: {error.filename}") from None
    except OSError as error:
        if error.errno not in _HOST_ERRORS:
            raise
        raise SandboxFailure(_HOST_ERRORS[error.errno], f"{destination}: {error.strerror}") from None
    finally:
        _remove(part)


def only_file(chunks: Iterator[bytes], limit: int) -> bytes:
    """The content of the one small file in a tar stream."""
    try:
        with tarfile.open(fileobj=_Stream(chunks, limit + MIB), mode="r|", bufsize=COPY_CHUNK) as tar:
            member = next(iter(tar), None)
            if member is None or not member.isreg():
                raise SandboxFailure(Reason.ARCHIVE_SPECIAL_FILE, f"{member.name if member else 'archive'}: not a plain file")
            if member.size > limit:
                raise SandboxFailure(Reason.ARCHIVE_TOO_LARGE, f"{member.name}: {member.size} bytes, at most {limit} are read")
            return tar.extractfile(member).read()
    except tarfile.TarError as error:
        raise SandboxFailure(Reason.ARCHIVE_DAMAGED, f"the archive is damaged: {error}") from None


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


class _Unpacker:
    """Writes entries below `root`. No parent of a written path is a link, so that nothing is written outside."""

    def __init__(self, root: Path, limits: ArchiveLimits):
        self.root, self.limits = root, limits
        self.total = self.count = 0

    def run(self, chunks: Iterator[bytes]) -> int:
        # An entry costs at most a few header blocks beyond its content; what streams more than that is lying about its sizes.
        stream = _Stream(chunks, self.limits.total_bytes + self.limits.entries * 8 * BLOCK + MIB)
        with tarfile.open(fileobj=stream, mode="r|", bufsize=COPY_CHUNK) as tar:
            for member in tar:
                self._check(member)
                self._write(tar, member)
        if not self.count:
            raise SandboxFailure(Reason.ARCHIVE_DAMAGED, f"{self.root.name}: an archive without an entry")
        return self.total

    def _check(self, member: tarfile.TarInfo) -> None:
        self.count += 1
        self.total += member.size if member.isreg() else 0
        if self.count > self.limits.entries:
            message = f"{member.name}: more than {self.limits.entries} entries; deliver fewer files"
            raise SandboxFailure(Reason.ARCHIVE_TOO_MANY_FILES, message)
        if self.total > self.limits.total_bytes:
            message = f"{member.name}: {self.total} bytes in all, at most {self.limits.total_bytes} are taken; deliver less"
            raise SandboxFailure(Reason.ARCHIVE_TOO_LARGE, message)
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise SandboxFailure(Reason.ARCHIVE_SPECIAL_FILE, f"{member.name}: a device, pipe or socket; deliver files")

    def _write(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = self._place(member.name)
        if member.isdir():
            path.mkdir(exist_ok=True)
            path.chmod(0o755)
        elif member.issym():
            self._link(member, path)
        elif member.islnk():
            os.link(self._place(member.linkname), path, follow_symlinks=False)
        else:
            mode = 0o755 if member.mode & 0o111 else 0o644
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as out:
                # The verifier reads it as another user, whatever our umask is.
                os.fchmod(out.fileno(), mode)
                shutil.copyfileobj(tar.extractfile(member), out, COPY_CHUNK)

    def _place(self, name: str) -> Path:
        """Where an entry goes. Its first component is the name of what was asked for, which becomes `root` itself."""
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise SandboxFailure(Reason.ARCHIVE_UNSAFE_PATH, f"{name!r} leads out of its folder; deliver files inside it")
        path = self.root
        for part in parts[1:]:
            if path.is_symlink():
                raise SandboxFailure(Reason.ARCHIVE_UNSAFE_PATH, f"{name!r} goes through a link; deliver the files themselves")
            path = path / part
        if path != self.root and not path.parent.is_dir():
            raise SandboxFailure(Reason.ARCHIVE_DAMAGED, f"{name!r} comes before its folder")
        return path

    def _link(self, member: tarfile.TarInfo, path: Path) -> None:
        """A link may climb first and descend after; `a/../b` could leave through a link named a."""
        parts = PurePosixPath(member.linkname).parts
        climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
        depth = len(path.relative_to(self.root).parts) - 1
        if member.linkname.startswith("/") or ".." in parts[climbs:] or climbs > depth:
            raise SandboxFailure(Reason.ARCHIVE_UNSAFE_PATH, f"{member.name}: a link to {member.linkname!r}, out of its folder")
        path.symlink_to(member.linkname)


class _Stream:
    """An iterator of chunks as the file tarfile reads from, cut after `limit` bytes."""

    def __init__(self, chunks: Iterator[bytes], limit: int):
        self.chunks, self.left, self.buffer = iter(chunks), limit, b""

    def read(self, size: int) -> bytes:
        while len(self.buffer) < size:
            chunk = next(self.chunks, b"")
            if not chunk:
                break
            self.left -= len(chunk)
            if self.left < 0:
                raise SandboxFailure(Reason.ARCHIVE_TOO_LARGE, "the archive is longer than its entries may be; deliver less")
            self.buffer += chunk
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken
