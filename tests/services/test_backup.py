"""A backup taken from a serving house comes back whole in another, or not at all."""

import os
import secrets
import shutil
import tempfile
from pathlib import Path

import psycopg
import pytest

from controlplane.services import backup, postgres
from controlplane.services.embedded import stores
from controlplane.services.house import House, HouseError

PARTED = "CREATE TABLE part (id bigint PRIMARY KEY, text text); INSERT INTO part SELECT n, 'naïve ' || n FROM generate_series(1, 1000) AS n"


@pytest.fixture
def make_house(monkeypatch):
    """make_house() → an empty house, which from then on is the one that commands speak of."""
    made = []

    def make() -> House:
        folder = Path(tempfile.mkdtemp(prefix="assay-backup-", dir="/tmp"))
        folder.chmod(0o711)
        house = House(home=folder / "home", data=folder / "data", runtime=Path(f"/tmp/assay-backup-run-{secrets.token_hex(4)}"))
        made.extend([folder, house.runtime])
        house.prepare()
        monkeypatch.setattr(backup, "house_at", lambda home: house)
        monkeypatch.setenv("ASSAY_HOME", str(house.home))
        monkeypatch.setenv("ASSAY_STORAGE", str(house.home / "storage"))
        monkeypatch.delenv("DATABASE_URL", raising=False)
        return house

    yield make
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def saved(make_house, tmp_path, monkeypatch):
    """A backup of a house with a table of 1,000 rows and two files."""
    house = make_house()
    blobs = house.home / "storage" / "blobs" / "ab"
    blobs.mkdir(parents=True)
    (blobs / "c1").write_bytes(os.urandom(10_000))
    (house.home / "storage" / "empty").touch()
    with stores(house, volatile=True):
        with psycopg.connect(postgres.url(house)) as connection:
            connection.execute(PARTED)
        with monkeypatch.context() as patch:
            patch.setenv("DATABASE_URL", postgres.url(house))
            manifest = backup.backup(tmp_path / "saved")
    assert manifest["rows"] == {"part": 1000} and manifest["storage"] == {"files": 2, "bytes": 10_000}
    return tmp_path / "saved", (blobs / "c1").read_bytes()


def tables_of(house: House) -> list:
    with stores(house, volatile=True), psycopg.connect(postgres.url(house)) as connection:
        return backup.tables(connection)


def test_everything_comes_back(saved, make_house):
    folder, blob = saved
    house = make_house()
    assert backup.restore(folder)["rows"] == {"part": 1000}
    assert (house.home / "storage" / "blobs" / "ab" / "c1").read_bytes() == blob
    with stores(house, volatile=True), psycopg.connect(postgres.url(house)) as connection:
        assert connection.execute("SELECT count(*), min(text), max(id) FROM part").fetchone() == (1000, "naïve 1", 1000)
    with pytest.raises(HouseError, match="holds 1 tables already; restore into an empty one"):
        backup.restore(folder)


@pytest.mark.parametrize("damage", ["blob", "dump"])
def test_a_damaged_backup_leaves_nothing_behind(saved, make_house, damage):
    folder, _ = saved
    if damage == "blob":
        (folder / "storage" / "blobs" / "ab" / "c1").unlink()
    else:
        next((folder / "database").glob("*.dat*")).write_bytes(b"no dump")
    house = make_house()
    with pytest.raises(HouseError, match="the backup is damaged. storage: 1 files" if damage == "blob" else "pg_restore failed"):
        backup.restore(folder)
    assert tables_of(house) == [] and not list((house.home / "storage").iterdir())


def test_an_unfinished_or_unknown_backup_is_refused_before_anything_starts(saved, make_house, tmp_path):
    folder, _ = saved
    make_house()
    with pytest.raises(HouseError, match="has backup format 7, this version reads 1"):
        (folder / "manifest.json").write_text('{"format": 7}')
        backup.restore(folder)
    with pytest.raises(HouseError, match="holds no manifest.json"):
        (folder / "manifest.json").unlink()
        backup.restore(folder)


def test_a_backup_goes_into_an_empty_folder_and_needs_a_database(make_house, tmp_path, monkeypatch):
    make_house()
    with pytest.raises(HouseError, match="start it with `./assay up` first"):
        backup.backup(tmp_path / "new")
    (tmp_path / "file").touch()
    monkeypatch.setenv("DATABASE_URL", "postgresql://assay@127.0.0.1:1/assay")
    with pytest.raises(HouseError, match="is not empty"):
        backup.backup(tmp_path)
    assert not (tmp_path / "new").exists()
