"""The dispatcher of the proofs, and what the proofs measure with."""

import json
import os
import subprocess
import sys
import threading
import time

import psycopg
import pytest

from benchmarks.prove import __main__ as dispatcher
from benchmarks.prove.migrations import Probes
from benchmarks.prove.soak import broken, errors_in, growth
from controlplane.services import postgres


def test_without_a_name_it_lists_every_proof_with_its_line(capsys):
    dispatcher.main([])
    said = capsys.readouterr().out
    for name, words in dispatcher.proofs().items():
        assert name in said and words and words in said
    assert {"soak", "migrations"} <= dispatcher.proofs().keys()


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(SystemExit, match="soak"):
        dispatcher.main(["nothing"])


def test_growth_compares_the_end_with_the_time_after_the_warm_up():
    rows = [10, 10, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 110, 110]
    assert growth(rows)["share"] == pytest.approx(0.1)


def holding() -> dict:
    sound = {"early_mib": 100, "late_mib": 101, "share": 0.01}
    counts = dict.fromkeys(("steps_missing", "resets", "losses", "emitters_exit"), 0)
    refused = {"points_missing": 0, "repeated": 0}
    page = [{"heap_mb": 20}]
    return {"memory": {"web": sound}, "lag": {"p95_s": 0.5}, **counts, "refused": refused, "errors": [], "page": page, "real_run": None}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory": {"web": {"early_mib": 100, "late_mib": 106, "share": 0.06}}}, "web grew by 6.0%"),
        ({"lag": {"p95_s": 2.5}}, "p95 lag 2.5 s"),
        ({"lag": {"p95_s": None}}, "p95 lag None s"),
        ({"steps_missing": 3}, "3 steps_missing"),
        ({"refused": {"points_missing": 4}}, "4 points_missing"),
        ({"errors": ["web: ERROR"]}, "web: ERROR"),
        ({"page": [{"heap_mb": 151}]}, "the page's heap is 151 MB"),
        ({"real_run": {"state": "failed", "step": 2, "reason": "why"}}, "the real run is failed: why"),
    ],
)
def test_a_soak_says_what_does_not_hold(changes, words):
    assert broken(holding()) == []
    assert broken({**holding(), **changes}) == [words]


def test_errors_are_found_in_every_log(tmp_path):
    (tmp_path / "web.log").write_text("2026 INFO fine\n2026 ERROR bad\n")
    (tmp_path / "postgres.log").write_text("LOG:  checkpoint\nFATAL:  no\n")
    assert errors_in(tmp_path) == ["postgres: FATAL:  no", "web: 2026 ERROR bad"]


def test_a_probe_sees_a_lock_for_as_long_as_it_is_held(services):
    url = postgres.url(services, "postgres")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS probed")
        connection.execute("CREATE TABLE probed (id int)")
    try:
        with Probes(url, ("probed",)) as probes, psycopg.connect(url) as holder:
            holder.execute("LOCK TABLE probed IN SHARE MODE")  # what building an index takes
            time.sleep(0.3)
            holder.rollback()
            threading.Event().wait(0.1)
        assert probes.longest()["probed, writer"] >= 0.2 > probes.longest()["probed, reader"]
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DROP TABLE probed")


@pytest.mark.slow
def test_no_migration_locks_a_hot_table_for_long():
    known, broken = measured_migrations()
    assert {"runs.0003_recipe_and_saved_views", "telemetry.0002_series_axis_and_wall"} <= known
    for _ in range(2):
        # A machine that stood still for a second does so elsewhere the next time; a lock is where it was.
        broken = broken and broken & measured_migrations()[1]
    assert not broken


def measured_migrations() -> tuple[set[str], set[str]]:
    """Names of all, and of those that locked a table for long."""
    code = "import json; from benchmarks.prove.migrations import measure; print(json.dumps(measure(5_000)))"
    ours = ("ASSAY_", "DATABASE_URL", "REDIS_URL", "RAY_", "SECRET_KEY", "DJANGO_")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])["also"]
    return set(found["migrations"]), {told.split()[0] for told in found["broken"]}
