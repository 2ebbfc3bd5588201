"""The files of repair tasks: blobs that a version names, and a task's folder as a tar made of them."""

import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from typing import BinaryIO

from controlplane import storage
from controlplane.accounts.models import Team
from controlplane.banks.models import BankFile, BankVersion
from runner.contract.bank import InvalidBank
from runner.contract.bank import Task as Record
from runner.contract.repair import MAX_TASK_FILES, FileEntry, read_listing

IN_MEMORY = 32 << 20
BATCH_BYTES = 64 << 20


def put_all(contents: Iterable[tuple[str, bytes]]) -> None:
    """Store blobs, each under the digest it comes with. Raises ValueError when one of them is not its content's."""
    batch, size = {}, 0
    for name, content in contents:
        if storage.digest(content) != name:
            raise ValueError(f"{name[:80]}: the content has another SHA-256; send it again")
        batch[name] = content
        size += len(content)
        if size >= BATCH_BYTES:
            storage.put_many(batch)
            batch, size = {}, 0
    storage.put_many(batch)


def missing(team: Team, digests: Sequence[str]) -> list[str]:
    """Those of `digests` that the team has to send: none of its versions names them."""
    # Another team's files are not told of: that would say what it has.
    known = set(BankFile.objects.filter(version__bank__team=team, digest__in=digests).values_list("digest", flat=True))
    return [name for name in digests if name not in known]


def named_by(records: Sequence[Record]) -> set[str]:
    """Every blob that the tasks name, each seen in the store. Raises InvalidBank."""
    found: set[str] = set()
    problems = []
    for record in records:
        digest = record.payload["task_digest"]
        try:
            found |= {digest, *(file.sha256 for file in _checked_listing(digest))}
        except (ValueError, storage.BlobMissing) as error:
            problems.append((0, f"task {record.key}: {error}"))
    problems += [(0, f"file {name} was not sent") for name in sorted(found) if not storage.exists(name)]
    if problems:
        raise InvalidBank(problems[:100])
    return found


def _checked_listing(digest: str) -> list[FileEntry]:
    files = read_listing(storage.read(digest))
    if len(files) > MAX_TASK_FILES:
        raise ValueError(f"more than {MAX_TASK_FILES} files")
    for file in files:
        parts = file.path.split("/")
        if file.path.startswith("/") or not all(parts) or {".", ".."} & set(parts):
            raise ValueError(f"{file.path!r:.200} leads out of the task's folder")
        storage.blob_path(file.sha256)
    return files


def name_files(version: BankVersion, digests: Iterable[str]) -> None:
    """Write down which blobs the version needs, so that the sweeper leaves them."""
    BankFile.objects.bulk_create([BankFile(version=version, digest=digest) for digest in sorted(digests)], batch_size=2000)


def task_tar(digest: str) -> BinaryIO:
    """A task's folder as a tar, in a temporary file at its start; the caller closes it. Raises storage.BlobMissing."""
    packed = tempfile.SpooledTemporaryFile(IN_MEMORY)
    try:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for file in read_listing(storage.read(digest)):
                content = storage.open_blob(file.sha256)
                item = tarfile.TarInfo(file.path)
                item.size, item.mode = len(content), 0o755 if file.executable else 0o644
                tar.addfile(item, _Reader(content))
    except BaseException:
        packed.close()
        raise
    packed.seek(0)
    return packed


class _Reader:
    """Reads a memory map from its start; tarfile asks for no more than this."""

    def __init__(self, content: memoryview):
        self.content, self.at = content, 0

    def read(self, size: int) -> bytes:
        chunk = bytes(self.content[self.at : self.at + size])
        self.at += len(chunk)
        return chunk
