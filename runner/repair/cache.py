"""Task folders on a node, by digest: fetched once, verified whole, shared by every process that runs there."""

import fcntl
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from runner.repair.archives import UnsafeArchive, unpack
from runner.repair.files import BadTaskFiles, read_files, task_paths

FETCH_TIMEOUT_S = 300.0
Fetch = Callable[[str, Path], None]


class TaskUnavailable(RuntimeError):
    """A task's files cannot be had, or are not those of its digest (finding E13). The message names the digest and the remedy."""


class TaskCache:
    """Folders `<root>/<digest>` that are whole or not there. `fetch(digest, file)` writes a task's tar; None fetches nothing."""

    def __init__(self, root: Path, fetch: Fetch | None = None):
        self.root, self.fetch = root, fetch

    def folder(self, digest: str) -> Path:
        """The dense folder of the task with this digest. Raises TaskUnavailable."""
        place = self.root / digest
        if not place.is_dir():
            with self._locked(digest):
                if not place.is_dir():
                    self._bring(digest, place)
        return place

    def adopt(self, dense: Path) -> str:
        """Copy a folder of this machine into the cache; returns its digest."""
        files = read_files(dense)
        place = self.root / files.digest
        with self._locked(files.digest):
            if not place.is_dir():
                with self._partial() as partial:
                    for path in task_paths(dense):
                        target = partial / path.relative_to(dense)
                        target.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(path, target)
                        target.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
                    partial.rename(place)
        return files.digest

    def _bring(self, digest: str, place: Path) -> None:
        if self.fetch is None:
            raise TaskUnavailable(f"E13: task {digest[:12]} is not in {self.root}, and there is no control plane to fetch it from")
        with self._partial() as partial:
            packed = partial.with_suffix(".tar")
            try:
                self.fetch(digest, packed)
                unpack(packed, partial)
                found = read_files(partial).digest
            except (UnsafeArchive, BadTaskFiles, OSError) as error:
                raise TaskUnavailable(f"E13: task {digest[:12]}: {error}") from error
            finally:
                packed.unlink(missing_ok=True)
            if found != digest:
                raise TaskUnavailable(f"E13: what came for task {digest[:12]} has the digest {found[:12]}; import the bank again")
            partial.rename(place)

    @contextmanager
    def _partial(self) -> Iterator[Path]:
        partial = self.root / f".{uuid.uuid4().hex}.partial"
        partial.mkdir(parents=True)
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    @contextmanager
    def _locked(self, digest: str) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.root / f".{digest}.lock", os.O_CREAT | os.O_RDWR, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def http_fetch(url: str, token: str, timeout: float = FETCH_TIMEOUT_S) -> Fetch:
    """Fetch from a control plane: GET `url`/<digest>, answered with a tar. `url` is …/api/ingest/<attempt>/tasks."""

    def fetch(digest: str, file: Path) -> None:
        try:
            with httpx.stream("GET", f"{url}/{digest}", headers={"Authorization": f"Bearer {token}"}, timeout=timeout) as answer:
                if answer.status_code != 200:
                    told = answer.read().decode(errors="replace")[:500]
                    raise TaskUnavailable(f"E13: the control plane refused task {digest[:12]} ({answer.status_code}): {told}")
                with file.open("wb") as packed:
                    for chunk in answer.iter_bytes():
                        packed.write(chunk)
        except httpx.HTTPError as error:
            raise TaskUnavailable(f"task {digest[:12]} could not be fetched from {url} ({type(error).__name__}: {error})") from error

    return fetch
