"""Migrations go forward on a filled copy, and no hot table is locked for longer than a second.

    ./assay prove migrations [POINTS]      10,000,000 points by default

The database is filled as it stands today, every app is taken back to its first migration, and each migration is then applied while a
writer and a reader of each hot table ask for their locks two hundred times a second. The longest that any of them waited is the figure.
"""

import argparse
import threading
import time
from contextlib import ExitStack

import psycopg

from benchmarks.fill import Sizes, fill_embedded
from benchmarks.record import publish, record
from benchmarks.server import serving
from controlplane.services import postgres

POINTS, LONGEST_S, EVERY_S = 10_000_000, 1.0, 0.005
HOT = (
    "telemetry_point",
    "telemetry_rollup",
    "telemetry_wallsample",
    "telemetry_series",
    "telemetry_ingestbatch",
    "telemetry_logline",
    "episodes_episode",
    "episodes_episodeevent",
    "episodes_turn",
    "runs_run",
    "runs_attempt",
    "runs_runevent",
)
MODES = {"writer": "ROW EXCLUSIVE", "reader": "ACCESS SHARE"}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="assay prove migrations")
    parser.add_argument("points", type=int, nargs="?", default=POINTS)
    found = publish(measure(parser.parse_args(arguments).points))
    if broken := found["also"]["broken"]:
        raise SystemExit(f"assay: locked for longer than {LONGEST_S:g} s: {', '.join(broken)}")


def measure(points: int = POINTS) -> dict:
    """The record; `ours` is the longest wait for a lock during any migration."""
    steps = points // 10
    sizes = Sizes(runs=1_000, names=100, steps=steps, episodes=points // 100, tokens=1_000, turns=100)
    with serving() as server:
        filled = fill_embedded(sizes)
        applied = forward(postgres.url(server.house), take_back())
    waits = {name: max(one["waits"].values()) for name, one in applied.items()}
    broken = [f"{name} {wait} s" for name, wait in waits.items() if wait > LONGEST_S]
    settings = {"points": points, "episodes": sizes.episodes, "hot_tables": len(HOT), "target": f"no lock longer than {LONGEST_S:g} s"}
    return record(
        "migrations",
        max(waits.values()),
        None,
        "s, longest lock",
        settings,
        {"migrations": applied, "broken": broken, "fill_s": filled.seconds},
    )


def take_back() -> list[tuple[str, str]]:
    """Undo all that came after each app's first tables; returns the undone migrations in the order in which they are applied."""
    from django.core.management import call_command
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    ours = [node for node in executor.loader.graph.nodes if executor.loader.disk_migrations[node].__module__.startswith("controlplane.")]
    later = [node for node in ours if not node[1].endswith("_initial")]
    plan = [migration for migration, _ in executor.migration_plan(executor.loader.graph.leaf_nodes(), clean_start=True)]
    undone = [(one.app_label, one.name) for one in plan if (one.app_label, one.name) in set(later)]
    for app in dict.fromkeys(app for app, _ in reversed(undone)):
        first = max(name for label, name in ours if label == app and name.endswith("_initial"))
        call_command("migrate", app, first, verbosity=0)
    return undone


def forward(url: str, migrations: list[tuple[str, str]]) -> dict[str, dict]:
    """Apply them one by one under the probes; seconds and the longest waits by table, those of over a millisecond."""
    from django.core.management import call_command

    found = {}
    for app, name in migrations:
        with Probes(url) as probes:
            began = time.monotonic()
            call_command("migrate", app, name, verbosity=0)
            seconds = round(time.monotonic() - began, 2)
        found[f"{app}.{name}"] = {"seconds": seconds, "waits": probes.longest()}
    return found


class Probes:
    """A writer and a reader of every hot table, each in a thread with its own connection."""

    def __init__(self, url: str, tables: tuple[str, ...] = HOT):
        self.url, self.tables = url, tables
        self.waits: dict[str, float] = {}
        self.ended = threading.Event()
        self.stack = ExitStack()

    def __enter__(self) -> "Probes":
        pairs = [(table, who) for table in self.tables for who in MODES]
        ready = threading.Barrier(len(pairs) + 1)
        threads = [threading.Thread(target=self._ask, args=(*pair, ready), daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
            self.stack.callback(thread.join)
        ready.wait(60)
        return self

    def __exit__(self, *_) -> None:
        self.ended.set()
        self.stack.close()

    def _ask(self, table: str, who: str, ready: threading.Barrier) -> None:
        with psycopg.connect(self.url) as connection:
            ready.wait(60)
            while not self.ended.is_set():
                began = time.monotonic()
                connection.execute(f"LOCK TABLE {table} IN {MODES[who]} MODE")
                took = time.monotonic() - began
                connection.rollback()
                self.waits[f"{table}, {who}"] = max(took, self.waits.get(f"{table}, {who}", 0.0))
                self.ended.wait(EVERY_S)

    def longest(self) -> dict[str, float]:
        """Seconds of the five longest waits, the longest first."""
        ranked = sorted(self.waits.items(), key=lambda item: -item[1])
        return {name: round(wait, 4) for name, wait in ranked[:5]}
