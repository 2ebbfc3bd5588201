"""The blob store: immutable files named by the SHA-256 of their content, under ASSAY_STORAGE/blobs/ab/cdef….

A blob is whole and on disk before any row names it. The sweeper removes blobs that no row names once they are a day old.
"""

import fcntl
import mmap
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from django.conf import settings

from runner.contract.canonical import digest

DIGEST = re.compile(r"[0-9a-f]{64}")
PREFIXES = [f"{number:02x}" for number in range(256)]
SWEEP_AFTER_S = 86_400.0


class BlobMissing(LookupError):
    """No blob of that digest is in the store."""


def blob_path(name: str) -> Path:
    """Where the blob of digest `name` lies. Raises ValueError on anything but 64 hexadecimal digits."""
    if not DIGEST.fullmatch(name):
        raise ValueError(f"blob {name!r:.80}: must be a SHA-256 digest of 64 lowercase hexadecimal digits")
    return folder(name[:2]) / name[2:]


def folder(prefix: str) -> Path:
    return Path(settings.ASSAY_STORAGE) / "blobs" / prefix


def put(content: bytes) -> str:
    """Store `content` durably and return its digest; storing it again only renews its age."""
    name = digest(content)
    put_many({name: content})
    return name


def put_many(blobs: dict[str, bytes]) -> None:
    """Store each blob under its digest, which the caller has checked. All are durable on return."""
    paths = {name: blob_path(name) for name in blobs}
    with ExitStack() as locks:
        for prefix in sorted({name[:2] for name in blobs}):
            locks.enter_context(_locked(prefix, fcntl.LOCK_SH))
        fresh = [name for name, path in paths.items() if not _renewed(path)]
        partials: dict[str, Path] = {}
        try:
            for name in fresh:
                partials[name] = _write_partial(paths[name], blobs[name])
            _sync(list(partials.values()))
            for name, partial in partials.items():
                partial.rename(paths[name])
            _sync([folder(prefix) for prefix in sorted({name[:2] for name in fresh})])
        finally:
            for partial in partials.values():
                partial.unlink(missing_ok=True)


def _renewed(path: Path) -> bool:
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _write_partial(path: Path, content: bytes) -> Path:
    partial = path.with_name(f".{uuid.uuid4().hex}.partial")
    try:
        partial.write_bytes(content)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return partial


def _sync(paths: list[Path]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _locked(prefix: str, kind: int) -> Iterator[int]:
    # Writers share the folder's lock and the sweeper excludes them: else it could remove a blob between "exists" and its renewal.
    path = folder(prefix)
    path.mkdir(parents=True, exist_ok=True)
    directory = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(directory, kind)
        yield directory
    finally:
        os.close(directory)


def exists(name: str) -> bool:
    return blob_path(name).exists()


def read(name: str) -> bytes:
    """All bytes of a blob. Raises BlobMissing."""
    try:
        return blob_path(name).read_bytes()
    except FileNotFoundError:
        raise _missing(name) from None


def open_blob(name: str) -> memoryview:
    """A memory map of a blob, so that a reader of a range touches only its pages; unmapped with its last view. Raises BlobMissing."""
    try:
        with blob_path(name).open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if os.fstat(file.fileno()).st_size else memoryview(b"")
    except FileNotFoundError:
        raise _missing(name) from None


def _missing(name: str) -> BlobMissing:
    return BlobMissing(f"blob {name}: not in the store; it was swept, or the storage folder is another one")


def sweep(prefix: str, named: Callable[[list[str]], Iterable[str]], now: float | None = None) -> int:
    """Remove blobs below `prefix` that are older than a day and that no row names; returns how many.

    `named(digests)` answers which of the digests a row names. Partial files of writers that died go too.
    """
    if not folder(prefix).exists():
        return 0
    oldest = (now or time.time()) - SWEEP_AFTER_S
    with _locked(prefix, fcntl.LOCK_EX):
        aged = {prefix + entry.name: entry.path for entry in os.scandir(folder(prefix)) if entry.stat().st_mtime < oldest}
        kept = set(named([name for name in aged if DIGEST.fullmatch(name)])) if aged else set()
        for name in aged.keys() - kept:
            os.unlink(aged[name])
    return len(aged.keys() - kept)
