"""`./assay backup FOLDER` and `./assay restore FOLDER`: everything that cannot be made again.

    FOLDER/database/        one consistent snapshot, in pg_dump's directory format
    FOLDER/storage/         blobs, checkpoints, spools, banks
    FOLDER/manifest.json    rows of each table, files and bytes of the storage

The snapshot comes first: a blob is on disk before a row names it, and is swept only when none has named it for a day. The manifest comes
last, so that a folder without one is no backup.
"""

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from controlplane.env import home_folder, read_environment
from controlplane.services import postgres
from controlplane.services.embedded import stores
from controlplane.services.front import read_state
from controlplane.services.house import House, HouseError, house_at

FORMAT = 1
JOBS = min(4, os.cpu_count() or 1)
LIBPQ = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD", "dbname": "PGDATABASE", "sslmode": "PGSSLMODE"}


def backup(folder: Path) -> dict:
    """Write `folder`, which is absent or empty, while the house goes on serving; returns the manifest. Raises HouseError."""
    house, environment = house_at(home_folder()), read_environment()
    if not read_state(house) and "DATABASE_URL" not in os.environ:
        raise HouseError(f"Nothing runs in {house.home}, so there is no database to read; start it with `./assay up` first.")
    if folder.exists() and any(folder.iterdir()):
        raise HouseError(f"{folder} is not empty; name a folder that is, or one that is not there yet.")
    check_room(folder, tree_size(environment.storage)[1])
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    rows = dump(house, environment.database_url, folder / "database")
    copy_tree(environment.storage, folder / "storage")
    files, size = tree_size(folder / "storage")
    manifest = {"format": FORMAT, "made_at": time.time(), "rows": rows, "storage": {"files": files, "bytes": size}}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def restore(folder: Path) -> dict:
    """Fill an empty database and an empty storage from `folder`; returns the manifest. Raises HouseError, and then both are empty again."""
    manifest = read_manifest(folder)
    house = house_at(home_folder())
    if read_state(house):
        raise HouseError(f"{house.home} is up; end it with `./assay down` before restoring into it.")
    house.prepare()
    with database_for_restore(house) as url:
        storage = read_environment().storage
        check_empty(url, storage)
        check_room(storage, manifest["storage"]["bytes"])
        try:
            load(house, url, folder / "database")
            copy_tree(folder / "storage", storage)
            check_restored(manifest, url, storage)
        except BaseException:
            empty_again(url, storage)
            raise
    return manifest


def read_manifest(folder: Path) -> dict:
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
    except FileNotFoundError:
        raise HouseError(f"{folder} holds no manifest.json: it is no backup, or one that was not finished.") from None
    except ValueError as error:
        raise HouseError(f"{folder / 'manifest.json'} cannot be read: {error}") from None
    if manifest.get("format") != FORMAT:
        raise HouseError(
            f"{folder} has backup format {manifest.get('format')!r}, this version reads {FORMAT}; restore it with the version that made it."
        )
    return manifest


@contextmanager
def database_for_restore(house: House):
    """The URL of the given database, or of the house's own, which runs for as long as the context lasts."""
    if "DATABASE_URL" in os.environ:
        yield os.environ["DATABASE_URL"]
        return
    with stores(house):
        yield postgres.url(house)


def check_empty(url: str, storage: Path) -> None:
    with psycopg.connect(url) as connection:
        if found := tables(connection):
            raise HouseError(f"The database holds {len(found)} tables already; restore into an empty one (another ASSAY_HOME makes one).")
    if storage.exists() and any(storage.iterdir()):
        raise HouseError(f"The storage {storage} is not empty; restore into an empty one (another ASSAY_HOME has one).")


def check_room(target: Path, size: int) -> None:
    """The storage is copied as it is; the database's dump is smaller than the database and is not foreseen."""
    existing = next(folder for folder in [target.absolute(), *target.absolute().parents] if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < size:
        raise HouseError(f"{free / 2**30:.1f} GiB are free under {existing}, the storage has {size / 2**30:.1f}; choose a larger disk.")


def check_restored(manifest: dict, url: str, storage: Path) -> None:
    with psycopg.connect(url) as connection:
        rows = count_rows(connection)
    wrong = [f"{name}: {rows.get(name)} rows of {count}" for name, count in manifest["rows"].items() if rows.get(name) != count]
    files, size = tree_size(storage)
    if (files, size) != (manifest["storage"]["files"], manifest["storage"]["bytes"]):
        wrong.append(f"storage: {files} files with {size} bytes of {manifest['storage']['files']} with {manifest['storage']['bytes']}")
    if wrong:
        raise HouseError(f"What came back is not what was saved; the backup is damaged. {'; '.join(wrong)}")


# ------------------------------------------------------------ the database
def dump(house: House, url: str, folder: Path) -> dict[str, int]:
    """Dump one snapshot; returns the rows of each table in that snapshot."""
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        snapshot = connection.execute("SELECT pg_export_snapshot()").fetchone()[0]
        run(
            house, url, "pg_dump", "--format=directory", f"--jobs={JOBS}", f"--snapshot={snapshot}", "--compress=1", f"--file={folder}"
        )
        return count_rows(connection)


def load(house: House, url: str, folder: Path) -> None:
    database = conninfo_to_dict(url)["dbname"]
    run(house, url, "pg_restore", f"--dbname={database}", f"--jobs={JOBS}", "--exit-on-error", "--no-owner", "--no-privileges", str(folder))


def run(house: House, url: str, program: str, *arguments: str) -> None:
    """A Postgres client program; what leads to the server goes through the environment, where no process list shows the password."""
    command = [str(postgres.binaries(house, None) / program), "--no-password", *arguments]
    given = {LIBPQ[key]: str(value) for key, value in conninfo_to_dict(url).items() if key in LIBPQ}
    done = subprocess.run(command, env={**postgres.plain_environment(), **given}, capture_output=True, text=True)
    if done.returncode != 0:
        raise HouseError(f"{program} failed: {done.stderr.strip()[-2000:]}")


def tables(connection: psycopg.Connection) -> list[str]:
    return [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename")]


def count_rows(connection: psycopg.Connection) -> dict[str, int]:
    counting = sql.SQL("SELECT count(*) FROM {}")
    return {name: connection.execute(counting.format(sql.Identifier(name))).fetchone()[0] for name in tables(connection)}


def empty_again(url: str, storage: Path) -> None:
    """Both were empty when the restore began."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    for entry in storage.iterdir() if storage.exists() else ():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


# ------------------------------------------------------------ the storage
def copy_tree(source: Path, target: Path) -> None:
    """Copy what is there; a file that retention or a sweep takes away meanwhile is left out."""
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    for parent, folders, names in os.walk(source):
        there = target / os.path.relpath(parent, source)
        for name in folders:
            (there / name).mkdir(mode=0o700, exist_ok=True)
        for name in names:
            try:
                shutil.copy2(Path(parent) / name, there / name, follow_symlinks=False)
            except FileNotFoundError:
                continue


def tree_size(folder: Path) -> tuple[int, int]:
    """(files, bytes) below `folder`."""
    sizes = []
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.lstat(os.path.join(parent, name)).st_size)
            except FileNotFoundError:
                continue
    return len(sizes), sum(sizes)
