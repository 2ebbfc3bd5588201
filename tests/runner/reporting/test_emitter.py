import json
import math
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from runner.contract.canonical import digest
from runner.contract.episode import EventKind
from runner.reporting.batches import read_batches
from runner.reporting.emitter import Emitter
from runner.reporting.replay import replay, write_connection
from runner.reporting.spool import MAX_RECORD

ROOT = Path(__file__).parents[3]


def test_everything_given_arrives_in_order_and_the_spool_is_gone(tmp_path, ingest):
    emitter = Emitter(tmp_path / "spool", "driver", url=ingest.url)
    name = emitter.blob(b"tokens")
    emitter.episode_event("e1", EventKind.FINISHED, 0, {"sampled": name})
    emitter.emit_points(3, {"a": 1.5, "b": float("nan"), "c": float("-inf"), "d": None, "e": np.float32(2)})
    emitter.emit_samples({"cpu": 12.0})
    emitter.log("warning", "look here", component="worker-0")
    emitter.event("note", 3, {"text": "hello"})
    assert emitter.close()
    (batch,) = ingest.batches.values()
    assert batch.blobs == {digest(b"tokens"): b"tokens"}
    assert batch.episodes[0]["data"] == {"sampled": name}
    values = dict(zip(batch.points.names, batch.points.value, strict=True))
    assert values["a"] == 1.5 and math.isnan(values["b"]) and values["c"] == -math.inf and values["e"] == 2 and "d" not in values
    assert batch.samples.names == ["cpu"] and batch.logs[0]["component"] == "worker-0" and batch.events[0]["kind"] == "note"
    assert not emitter.folder.exists()


def test_batches_leave_within_a_second_or_at_a_thousand_points(tmp_path, ingest):
    emitter = Emitter(tmp_path / "spool", "driver", url=ingest.url)
    emitter.emit_points(1, {"a": 1.0})
    ingest.wait_for(lambda: len(ingest.batches) == 1, seconds=1.5)
    for step in range(25):
        emitter.emit_points(step, {f"m{number}": 0.0 for number in range(100)})
    assert emitter.close()
    assert max(len(batch.points) for batch in ingest.batches.values()) <= 1000
    assert sum(ingest.points().values()) == 2501


def test_records_are_on_disk_when_emit_returns(tmp_path):
    emitter = Emitter(tmp_path / "spool", "driver")
    emitter.emit_points(1, {"a": 1.0})
    emitter._writer.seal()
    assert [len(batch.points) for batch in read_batches(tmp_path / "spool")] == [1]


def test_what_is_emitted_together_is_on_disk_when_the_block_ends_and_other_threads_do_not_wait_for_it(tmp_path):
    emitter = Emitter(tmp_path / "spool", "driver")
    with emitter.together():
        emitter.log("info", "first")
        emitter.blob(bytes(MAX_RECORD))  # too large with its frame: it alone is dropped
        other = threading.Thread(target=emitter.log, args=("info", "from elsewhere"))
        other.start()
        other.join()
        emitter._writer.seal()
        assert [line["message"] for batch in read_batches(tmp_path / "spool") for line in batch.logs] == ["from elsewhere"]
        emitter.log("info", "second")
    emitter._writer.seal()
    assert [line["message"] for batch in read_batches(tmp_path / "spool") for line in batch.logs] == ["from elsewhere", "first", "second"]
    assert emitter.dropped == 1


@pytest.mark.parametrize("status", [503, 500, 429, 408])
def test_a_refusing_server_is_asked_again_until_it_takes_each_batch_once(tmp_path, ingest, status):
    ingest.answer = lambda number: (status, {"Retry-After": "0"}) if number % 3 else None
    emitter = Emitter(tmp_path / "spool", "driver", url=ingest.url)
    for step in range(8):
        emitter.emit_points(step, {f"m{number}": float(number) for number in range(900)})
    assert emitter.close()
    assert len(ingest.points()) == 8 * 900 and set(ingest.points().values()) == {1}


def test_retry_after_is_honoured(tmp_path, ingest):
    times = []
    ingest.answer = lambda number: (times.append(time.monotonic()), (503, {"Retry-After": "1"}) if number == 1 else None)[1]
    emitter = Emitter(tmp_path / "spool", "driver", url=ingest.url)
    emitter.log("info", "x")
    ingest.wait_for(lambda: len(times) == 2)
    assert 0.95 <= times[1] - times[0] < 1.6
    emitter.close()


def test_a_lost_answer_is_resent_under_the_same_key(tmp_path, ingest):
    ingest.lose_answers = {1, 2}
    emitter = Emitter(tmp_path / "spool", "driver", url=ingest.url)
    emitter.emit_points(1, {"a": 1.0})
    assert emitter.close()
    assert ingest.repeated == 2 and ingest.points() == {("a", 1, 1.0): 1}


def test_a_batch_refused_for_good_is_kept_and_does_not_stop_the_others(tmp_path, ingest, capsys):
    ingest.answer = lambda number: (400, {}) if number == 1 else None
    emitter = Emitter(tmp_path / "spool", "driver", url=ingest.url)
    emitter.log("info", "refused")
    ingest.wait_for(lambda: ingest.requests == 1)
    emitter.log("info", "taken")
    assert emitter.close()
    assert [batch.logs[0]["message"] for batch in ingest.batches.values()] == ["taken"]
    assert (emitter.folder / "refused-0.batch").exists() and "refused with 400" in capsys.readouterr().err


def test_close_returns_in_five_seconds_when_the_server_hangs_and_nothing_is_lost(tmp_path, ingest):
    attempt = tmp_path
    write_connection(attempt, ingest.url, "t")
    ingest.hang = 30
    emitter = Emitter(attempt / "spool", "driver", url=ingest.url)
    emitter.emit_points(1, {"a": 1.0})
    ingest.wait_for(lambda: ingest.requests == 1)
    emitter.emit_points(2, {"a": 2.0})
    begin = time.monotonic()
    assert not emitter.close()
    assert time.monotonic() - begin <= 5.2
    ingest.hang = 0
    emitter._thread.join(15)
    emitter._writer.close()
    assert replay(attempt).left == 0
    assert ingest.points() == {("a", 1, 1.0): 1, ("a", 2, 2.0): 1}


def test_a_closed_attempt_ends_delivery_and_keeps_the_spool(tmp_path, ingest, capsys):
    ingest.answer = lambda number: (410, {})
    emitter = Emitter(tmp_path / "spool", "driver", url=ingest.url)
    emitter.log("info", "late")
    ingest.wait_for(lambda: ingest.requests == 1)
    time.sleep(1.2)
    assert ingest.requests == 1
    assert not emitter.close()
    assert read_batches(tmp_path / "spool")[0].logs[0]["message"] == "late"


def test_no_emit_raises_when_the_disk_refuses(tmp_path, monkeypatch, capsys):
    emitter = Emitter(tmp_path / "spool", "driver")
    monkeypatch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    emitter.emit_points(1, {"a": 1.0})
    emitter.emit_points(1, {"a": "many"})
    emitter.blob(b"x")
    assert emitter.dropped == 3 and "No space left" in capsys.readouterr().err


EMIT = """
import os, sys
from pathlib import Path
from runner.reporting.emitter import Emitter
emitter = Emitter(Path(sys.argv[1]) / "spool", "driver", url=sys.argv[2], token="t")
step = 0
while True:
    step += 1
    emitter.emit_points(step, {"a": float(step), "b": 0.5})
    os.write(1, b"%d\\n" % step)
"""


@pytest.mark.parametrize("outage", [False, True])
def test_kill_minus_nine_loses_no_point_whose_emit_returned_and_repeats_none(tmp_path, ingest, outage):
    """The survivor of a killed emitter delivers its spool under the same keys, also when answers got lost on the way."""
    ingest.answer = lambda number: (503, {"Retry-After": "0"}) if outage or number % 4 == 0 else None
    ingest.lose_answers = {1, 3, 6}
    write_connection(tmp_path, ingest.url, "t")
    argv = [sys.executable, "-c", EMIT, str(tmp_path), ingest.url]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT)
    returned = 0
    end = time.monotonic() + 2.5
    for line in process.stdout:
        returned = int(line)
        if time.monotonic() > end:
            break
    os.kill(process.pid, signal.SIGKILL)
    returned = max([returned, *(int(line) for line in process.stdout.read().split() if line)])
    process.wait()
    process.stdout.close()
    ingest.answer = lambda number: (503, {"Retry-After": "0"}) if number % 4 == 0 else None
    result = replay(tmp_path)
    assert result.left == 0
    points = ingest.points()
    assert set(points.values()) == {1}
    steps = {step for name, step, _ in points if name == "a"}
    assert steps >= set(range(1, returned + 1)) and len(steps) <= returned + 1
    assert not (tmp_path / "connection.json").exists() and not list((tmp_path / "spool").iterdir())


def test_replay_leaves_a_living_emitter_alone(tmp_path, ingest):
    write_connection(tmp_path, ingest.url, "t")
    emitter = Emitter(tmp_path / "spool", "driver")
    assert replay(tmp_path).busy == 1
    emitter.close()


def test_the_replay_command_says_what_it_did(tmp_path, ingest):
    write_connection(tmp_path, ingest.url, "t")
    assert stat.S_IMODE((tmp_path / "connection.json").stat().st_mode) == 0o600
    Emitter(tmp_path / "spool", "driver").log("info", "left behind")
    script = (
        "import sys; from pathlib import Path; from runner.reporting.emitter import Emitter;"
        "Emitter(Path(sys.argv[1]) / 'spool', 'driver').log('info', 'from a dead process')"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=True)
    command = [sys.executable, "-m", "runner.reporting", "replay", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "delivered 1 batches; 0 spools left" in done.stdout
    assert [batch.logs[0]["message"] for batch in ingest.batches.values()][-1] == "from a dead process"


MEMORY = """
import json, resource, sys, time
from pathlib import Path
from runner.reporting.emitter import Emitter
emitter = Emitter(Path(sys.argv[1]) / "spool", "driver", url=sys.argv[2])
rss = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096
emitter.emit_points(0, {"warm": 1.0}); time.sleep(1)
before, spent, highest = rss(), 0.0, 0
for step in range(600):
    begin = time.perf_counter()
    emitter.emit_points(step, {f"metric/{number}": float(step) for number in range(200)})
    spent += time.perf_counter() - begin
    highest = max(highest, rss())
    time.sleep(0.002)
print(json.dumps({"growth": highest - before, "per_step": spent / 600, "highest": highest}))
begin = time.monotonic(); emitter.close(); print(time.monotonic() - begin)
"""


def test_ten_minutes_of_outage_cost_little_memory_and_no_time(tmp_path, ingest):
    """600 steps of 200 points (ten minutes at 200 points a second, played fast) while nothing is taken."""
    ingest.answer = lambda number: (503, {})
    argv = [sys.executable, "-c", MEMORY, str(tmp_path), ingest.url]
    lines = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    measured = json.loads(lines[0])
    assert measured["growth"] < 16 << 20 and measured["highest"] < 128 << 20
    assert measured["per_step"] < 0.01, "less than 1 % of a step of one second"
    assert float(lines[1]) <= 5.2
