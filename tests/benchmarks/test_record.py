import json

import pytest

from benchmarks.record import machine, medians, publish, record


def test_the_ratio_says_how_many_times_better_we_are():
    assert record("x", 40_000, 10_000, "points/s", {}, {})["ratio"] == 4
    assert record("x", 50, 500, "ms", {}, {}, lower_is_better=True)["ratio"] == 10
    assert record("x", 50, None, "ms", {}, {})["ratio"] is None


def test_it_is_one_line_and_kept_with_the_earlier_ones(tmp_path, capsys):
    for ours in (1, 2):
        publish(record("x", ours, None, "s", {"n": 1}, {}), tmp_path)
    assert [json.loads(line)["ours"] for line in capsys.readouterr().out.splitlines()] == [1, 2]
    kept = json.loads((tmp_path / "x.json").read_text())
    assert [one["ours"] for one in kept] == [1, 2]
    assert {"name", "ours", "peer", "ratio", "unit", "settings", "also", "machine"} <= kept[0].keys()


def test_the_machine_is_described_but_not_named():
    import socket

    found = machine()
    assert found["cores"] >= 1 and found["cpu"] and found["kernel"] and found["load_at_start"] >= 0
    assert socket.gethostname() not in json.dumps(found)


def test_medians_join_repetitions_key_by_key():
    repetitions = [{"a": {"p95": value}, "word": "w", "count": 3} for value in (1.0, 9.0, 2.0)]
    assert medians(repetitions) == {"a": {"p95": 2.0}, "word": "w", "count": 3}


@pytest.mark.parametrize("name", ["ingest", "query", "live", "list", "emit", "tokens", "pages", "transcript", "sandbox"])
def test_every_benchmark_can_be_called_by_its_name(name):
    import importlib

    from benchmarks import NAMES

    assert name in NAMES and callable(importlib.import_module(f"benchmarks.{name}").main)
