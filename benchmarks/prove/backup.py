"""A backup of a filled database comes back whole: equal rows and equal hashes of every table, with the seconds of both ways.

./assay prove backup [GIB]      a database of 5 GiB by default
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from psycopg import sql

from benchmarks.fill import Sizes, fill_embedded
from benchmarks.record import publish, record
from benchmarks.server import serving
from controlplane.services import postgres
from controlplane.services.backup import tables, tree_size
from controlplane.services.embedded import stores
from controlplane.services.house import house_at

GIB = 5.0
# A guess of the database's bytes for each point of a long series, everything else included; the record has the size that came of it.
BYTES_A_POINT = 300


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="assay prove backup")
    parser.add_argument("gib", type=float, nargs="?", default=GIB)
    found = publish(measure(parser.parse_args(arguments).gib))
    if different := found["also"]["different"]:
        raise SystemExit(f"assay: came back different: {', '.join(different)}")


def measure(gib: float = GIB) -> dict:
    """The record; `ours` is the seconds of the restore, and `also` has those of the backup."""
    points = int(gib * 2**30 / BYTES_A_POINT)
    sizes = Sizes(runs=1_000, names=100, steps=points // 10, episodes=points // 20, tokens=1_000, turns=100)
    folder = Path(tempfile.mkdtemp(prefix="assay-backup-", dir="/tmp"))
    folder.chmod(0o711)
    try:
        with serving() as server:
            fill_embedded(sizes)
            url = postgres.url(server.house)
            size, before = database_bytes(url), hashes(url)
            backup_s = command(server.house.home, "backup", folder / "saved", DATABASE_URL=url)
        restore_s = command(folder / "home", "restore", folder / "saved")
        house = house_at(folder / "home")
        with stores(house):
            after = hashes(postgres.url(house))
        shutil.rmtree(house.data)
        shutil.rmtree(house.runtime, ignore_errors=True)
        saved = tree_size(folder / "saved" / "database")[1]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    different = [
        f"{name} {before.get(name)} {after.get(name)}" for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    ]
    settings = {"database_gib": round(size / 2**30, 2), "tables": len(before), "rows": sum(rows for rows, _ in before.values())}
    also = {"backup_s": backup_s, "saved_gib": round(saved / 2**30, 2), "different": different}
    return record("backup", restore_s, None, "s, restore", settings, also, lower_is_better=True)


def command(home: Path, *arguments: object, **environment: str) -> float:
    """Seconds of `./assay backup` or `restore` for the house at `home`."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "REDIS_URL", "ASSAY_STORAGE")}
    began = time.monotonic()
    argv = [sys.executable, "-m", "controlplane.services.commands", *map(str, arguments)]
    subprocess.run(argv, env={**inherited, "ASSAY_HOME": str(home), **environment}, check=True, stdout=sys.stderr)
    return round(time.monotonic() - began, 1)


def database_bytes(url: str) -> int:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT pg_database_size(current_database())").fetchone()[0]


def hashes(url: str) -> dict[str, tuple[int, int]]:
    """Rows of each table and the sum of their hashes, whatever their order."""
    of_table = sql.SQL("SELECT count(*), coalesce(sum(hashtextextended(rows::text, 0)::numeric), 0)::text FROM {} AS rows")
    with psycopg.connect(url) as connection:
        return {name: connection.execute(of_table.format(sql.Identifier(name))).fetchone() for name in tables(connection)}
