"""The pinned clean source of an environment: a folder or an archive, read as text by path, with its SHA-256."""

import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

from runner.contract.canonical import digest
from runner.repair.archives import CarefulTarInfo, UnsafeArchive
from runner.repair.env_file import ENV_FILE, SOURCE_TAR, Source, read_env_file
from runner.repair.files import read_files, sha256_of

MAX_SOURCE_FILE = 32 << 20
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class BadSource(ValueError):
    """The pinned source cannot be read; the message names the file and the remedy."""


@dataclass(frozen=True)
class PinnedSource:
    """`read(path)` is the text of a file, None when the source has none of that path; `sha256` is the archive's."""

    name: str
    sha256: str
    read: Callable[[str], str | None]


def pack_source(folder: Path) -> bytes:
    """A tar whose bytes depend on names, executable bits and contents alone: sorted, no times, no owners, not compressed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in read_files(folder).entries:
            item = tarfile.TarInfo(entry.path)
            item.size, item.mode = (folder / entry.path).stat().st_size, 0o755 if entry.executable else 0o644
            with (folder / entry.path).open("rb") as file:
                tar.addfile(item, file)
    return packed.getvalue()


def env_source(env_folder: Path) -> PinnedSource | None:
    """The source that an authored environment declares: env.toml's, else env/source/source.json's, else its one archive."""
    if (env_folder / ENV_FILE).is_file():
        return declared_source(env_folder, read_env_file(env_folder).source)
    for folder in (env_folder / "env" / "source", env_folder / "source"):
        if folder.is_dir():
            return folder_source(folder)
    return None


def declared_source(env_folder: Path, source: Source) -> PinnedSource:
    """What [source] of env.toml names. Raises BadSource."""
    path = env_folder / (source.directory or source.archive)
    if source.directory:
        if not path.is_dir():
            raise BadSource(f"{path}: [source] directory of {ENV_FILE} is not there")
        return directory_source(path)
    if not path.is_file():
        raise BadSource(f"{path}: [source] archive of {ENV_FILE} is not there")
    return archive_source(path)


def folder_source(folder: Path) -> PinnedSource | None:
    """The archive in `folder`: the one that source.json names, else the only one. None when there is none."""
    named = folder / "source.json"
    try:
        name = json.loads(named.read_text()).get("archive") if named.is_file() else None
    except (ValueError, AttributeError) as error:
        raise BadSource(f"{named}: not a JSON object: {error}") from None
    found = [folder / str(name)] if name else [path for path in sorted(folder.iterdir()) if path.name.endswith(ARCHIVES)]
    if len(found) != 1 or not found[0].is_file() or found[0].parent != folder:
        return None
    return archive_source(found[0])


def directory_source(folder: Path) -> PinnedSource:
    """A source that is kept unpacked; its SHA-256 is that of the tar which the compiler makes of it."""
    packed = pack_source(folder)
    return _TarSource(SOURCE_TAR, io.BytesIO(packed)).pinned(digest(packed))


def archive_source(path: Path) -> PinnedSource:
    """A packed source. Raises BadSource when it is no tar."""
    return _TarSource(path.name, path).pinned(sha256_of(path))


class _TarSource:
    """Members of a tar by path, with the one folder that holds everything left off."""

    def __init__(self, name: str, place: Path | io.BytesIO):
        self.name, self.place = name, place
        self.texts: dict[str, str | None] = {}

    def pinned(self, sha256: str) -> PinnedSource:
        return PinnedSource(self.name, sha256, self.read)

    @cached_property
    def members(self) -> dict[str, str]:
        files = {path: path for path in self._names()}
        tops = {PurePosixPath(path).parts[0] for path in files}
        if len(tops) == 1 and all("/" in path for path in files):
            files |= {path.partition("/")[2]: path for path in files}
        return files

    def _names(self) -> list[str]:
        try:
            with self._open() as tar:
                return [str(PurePosixPath(item.name)) for item in tar if item.isreg()]
        except (tarfile.TarError, UnsafeArchive, OSError, EOFError) as error:
            raise BadSource(f"{self.name}: cannot be read to its end: {error}") from None

    def _open(self) -> tarfile.TarFile:
        try:
            if isinstance(self.place, Path):
                return tarfile.open(self.place, tarinfo=CarefulTarInfo)
            self.place.seek(0)
            return tarfile.open(fileobj=self.place, tarinfo=CarefulTarInfo)
        except (tarfile.TarError, UnsafeArchive, OSError, EOFError) as error:
            raise BadSource(f"{self.name}: no tar archive that can be read: {error}") from None

    def read(self, path: str) -> str | None:
        if path not in self.texts:
            self.texts[path] = self._read(path)
        return self.texts[path]

    def _read(self, path: str) -> str | None:
        member = self.members.get(str(PurePosixPath(path)))
        if member is None:
            return None
        with self._open() as tar:
            item = next(item for item in tar if str(PurePosixPath(item.name)) == member)
            if item.size > MAX_SOURCE_FILE:
                raise BadSource(f"{self.name}: {path} is larger than {MAX_SOURCE_FILE >> 20} MiB; a defect must be in a source file")
            return tar.extractfile(item).read().decode("utf-8", "surrogateescape")
