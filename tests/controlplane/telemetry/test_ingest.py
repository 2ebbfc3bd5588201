"""POST /api/ingest/{attempt}/batches: what is taken, what is refused, and that nothing is lost or counted twice."""

import math
import threading
import uuid
from datetime import timedelta

import msgpack
import numpy as np
import pytest
import zstandard
from django.db import OperationalError, connection
from django.utils import timezone

from controlplane import storage
from controlplane.runs.models import RunEvent
from controlplane.telemetry import packs, services, views
from controlplane.telemetry.models import IngestBatch, LogLine, Pack, PackedBlob, Point, Rollup, Series, WallSample
from runner.contract.canonical import digest
from runner.contract.events import encode_batch
from runner.contract.states import AttemptState
from tests.controlplane.factories import deliver, make_attempt, make_batch, make_run, make_samples

pytestmark = pytest.mark.django_db


def stored(name="loss"):
    series = Series.objects.get(name=name)
    return {(point.attempt, point.step): point.value for point in Point.objects.filter(series_id=series.pk)}


def test_points_are_stored_with_their_rollup(client, run, attempt):
    response = deliver(client, attempt, make_batch(0, {"loss": [(1, 0.5), (2, 0.25), (150, 4.0)]}))
    assert response.status_code == 200
    assert response.json() == {"seq": 1, "accepted": 3, "repeated": 0, "conflicting": 0}
    assert stored() == {(1, 1): 0.5, (1, 2): 0.25, (1, 150): 4.0}
    first, second = Rollup.objects.order_by("bucket")
    assert (first.bucket, first.count, first.minimum, first.maximum, first.total) == (0, 2, 0.25, 0.5, 0.75)
    assert (first.last_step, first.last_value, first.last_wall) == (2, 0.25, 1002.0)
    assert (second.bucket, second.count, second.last_value) == (1, 1, 4.0)
    run.refresh_from_db()
    attempt.refresh_from_db()
    assert (run.seq, run.step) == (1, 150)
    assert (attempt.points_accepted, attempt.first_step) == (3, 1)


def test_the_same_batch_twice_is_stored_once_and_answered_alike(client, run, attempt):
    batch = make_batch(7, {"loss": [(1, 0.5)]}, logs=[{"t": 1.0, "component": "driver", "level": "info", "message": "hello"}])
    first, second = deliver(client, attempt, batch), deliver(client, attempt, batch)
    assert first.json() == second.json()
    run.refresh_from_db()
    assert run.seq == 1
    assert LogLine.objects.count() == 1


def test_the_first_value_of_a_step_wins_and_a_conflict_is_counted(client, attempt):
    deliver(client, attempt, make_batch(0, {"loss": [(1, 0.5), (2, math.nan)]}))
    response = deliver(client, attempt, make_batch(1, {"loss": [(1, 0.5), (1, 9.0), (2, math.nan), (3, 1.0), (3, 2.0)]}))
    assert response.json() == {"seq": 2, "accepted": 1, "repeated": 2, "conflicting": 2}
    assert stored()[1, 1] == 0.5 and stored()[1, 3] == 1.0
    rollup = Rollup.objects.get()
    assert (rollup.count, rollup.nan, rollup.total) == (2, 1, 1.5)
    attempt.refresh_from_db()
    assert (attempt.points_accepted, attempt.points_repeated, attempt.points_conflicting) == (3, 2, 2)


def test_another_attempt_keeps_its_own_value(client, run, attempt):
    deliver(client, attempt, make_batch(0, {"loss": [(1, 0.5)]}))
    attempt.state = AttemptState.LOST
    attempt.save()
    deliver(client, make_attempt(run, 2), make_batch(0, {"loss": [(1, 0.75)]}))
    assert stored() == {(1, 1): 0.5, (2, 1): 0.75}


def test_nan_and_infinity_survive(client, attempt):
    deliver(client, attempt, make_batch(0, {"loss": [(1, math.nan), (2, math.inf), (3, -math.inf), (4, 1.0)]}))
    values = stored()
    assert math.isnan(values[1, 1]) and values[1, 2] == math.inf and values[1, 3] == -math.inf
    rollup = Rollup.objects.get()
    assert (rollup.count, rollup.nan, rollup.positive_infinite, rollup.negative_infinite) == (1, 1, 1, 1)
    assert (rollup.minimum, rollup.maximum, rollup.last_value) == (1.0, 1.0, 1.0)


def test_a_rollup_of_nothing_finite_has_no_mean_and_gets_one_later(client, attempt):
    deliver(client, attempt, make_batch(0, {"loss": [(1, math.nan)]}))
    rollup = Rollup.objects.get()
    assert (rollup.count, rollup.minimum, rollup.total, rollup.last_step) == (0, None, None, None)
    deliver(client, attempt, make_batch(1, {"loss": [(2, 3.0)]}))
    rollup.refresh_from_db()
    assert (rollup.count, rollup.nan, rollup.minimum, rollup.total, rollup.last_step) == (1, 1, 3.0, 3.0, 2)


def test_values_at_the_edge_of_float64_do_not_poison_a_batch(client, attempt):
    for sequence in range(4):
        series = {"loss": [(sequence * 2, 1.7e308), (sequence * 2 + 1, 1.7e308)], "tiny": [(sequence, 5e-324)]}
        assert deliver(client, attempt, make_batch(sequence, series)).status_code == 200
    assert Rollup.objects.get(count=8).total == math.inf
    assert Rollup.objects.get(count=4).minimum == 5e-324


def test_late_and_out_of_order_points_fill_in(client, attempt):
    deliver(client, attempt, make_batch(0, {"loss": [(50, 5.0)]}))
    deliver(client, attempt, make_batch(1, {"loss": [(10, 1.0)]}))
    rollup = Rollup.objects.get()
    assert (rollup.last_step, rollup.last_value, rollup.count) == (50, 5.0, 2)


def test_wall_samples_have_a_namespace_of_their_own(client, attempt):
    samples = make_samples({"gpu": [(10.0, 0.5), (10.5, math.nan), (10.0, 0.9)]})
    deliver(client, attempt, make_batch(0, {"gpu": [(1, 7.0)]}, samples=samples))
    assert set(Series.objects.values_list("name", "axis")) == {("gpu", "step"), ("gpu", "wall")}
    assert WallSample.objects.get(wall=10.0).value == 0.5
    assert WallSample.objects.count() == 2


def test_logs_keep_their_order_and_odd_characters(client, attempt):
    lines = [{"t": float(n), "component": "worker-0", "level": "warning", "message": f"line {n} \x00 \x1b[31m \u202e"} for n in range(3)]
    deliver(client, attempt, make_batch(0, logs=lines))
    assert [line.t for line in LogLine.objects.order_by("id")] == [0.0, 1.0, 2.0]
    assert LogLine.objects.first().message == "line 0 \N{REPLACEMENT CHARACTER} \x1b[31m \u202e"


def test_run_events_are_appended_and_states_cannot_be_forged(client, run, attempt):
    events = [
        {"t": 5.0, "kind": "stage_started", "step": 3, "data": {"stage": 1, "rate": math.inf}},
        {"t": 6.0, "kind": "run_state", "data": {"to": "succeeded"}},
    ]
    deliver(client, attempt, make_batch(0, events=events))
    started, forged = RunEvent.objects.filter(run=run).order_by("id")
    assert (started.kind, started.step, started.data) == ("stage_started", 3, {"stage": 1, "rate": "Infinity"})
    assert (forged.kind, forged.data) == ("note", {"kind": "run_state", "to": "succeeded"})


def test_the_small_blobs_of_a_batch_lie_in_one_file_and_are_found_by_their_digest(client, run, attempt, settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    large, small = bytes(packs.LARGEST_PACKED + 1), [b"trace", b"", b"texts"]
    deliver(client, attempt, make_batch(0, blobs={digest(blob): blob for blob in [large, *small]}))
    deliver(client, attempt, make_batch(1, blobs={digest(blob): blob for blob in [b"other", b"trace"]}))
    assert [bytes(packs.open_blob(run.pk, digest(blob))) for blob in [*small, b"other"]] == [*small, b"other"]
    assert storage.read(digest(large)) == large
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 3
    with pytest.raises(storage.BlobMissing):
        packs.open_blob(run.pk, digest(b"never sent"))
    with pytest.raises(storage.BlobMissing):
        packs.open_blob(uuid.uuid4(), digest(b"trace"))


def test_a_batch_that_comes_again_stores_no_second_file(client, attempt, settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    for _ in range(2):
        deliver(client, attempt, make_batch(0, blobs={digest(b"trace"): b"trace"}))
    assert Pack.objects.count() == PackedBlob.objects.count() == 1
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_headline_metrics_reach_the_run(client, run, attempt):
    deliver(client, attempt, make_batch(0, {"critic/score/mean": [(2, 0.5), (1, 0.1)], "actor/entropy": [(2, math.nan)]}))
    deliver(client, attempt, make_batch(1, {"critic/score/mean": [(0, 0.9)]}))
    run.refresh_from_db()
    assert run.latest == {
        "reward": {"value": 0.5, "step": 2, "attempt": 1},
        "entropy": {"value": "NaN", "step": 2, "attempt": 1},
    }


def test_a_late_batch_of_an_old_attempt_is_taken_but_moves_nothing_back(client, run, attempt):
    attempt.state, attempt.ended_at = AttemptState.LOST, timezone.now() - timedelta(hours=1)
    attempt.save()
    deliver(client, make_attempt(run, 2), make_batch(0, {"critic/score/mean": [(4, 0.4)]}))
    assert deliver(client, attempt, make_batch(0, {"critic/score/mean": [(90, 0.9)]})).status_code == 200
    run.refresh_from_db()
    assert (run.step, run.latest["reward"]["value"]) == (4, 0.4)
    assert stored("critic/score/mean") == {(2, 4): 0.4, (1, 90): 0.9}


def test_a_day_after_its_end_an_attempt_is_closed_for_data(client, attempt):
    attempt.state, attempt.ended_at = AttemptState.LOST, timezone.now() - timedelta(hours=25)
    attempt.save()
    assert deliver(client, attempt, make_batch(0, {"loss": [(1, 1.0)]})).status_code == 410
    assert not Point.objects.exists()


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer wrong", "Basic {token}"])
def test_without_its_token_nothing_is_taken(client, attempt, header):
    response = deliver(client, attempt, make_batch(0, {"loss": [(1, 1.0)]}), Authorization=header.format(token=attempt.token))
    assert response.status_code == 401
    assert not Point.objects.exists()


def test_a_token_opens_only_its_own_attempt(client, team, attempt):
    other = make_attempt(make_run(team))
    other.token = attempt.token
    assert deliver(client, other, make_batch(0, {"loss": [(1, 1.0)]})).status_code == 401


def test_only_post_is_allowed(client, attempt):
    assert client.get(f"/api/ingest/{attempt.pk}/batches").status_code == 405


def damaged(**changes) -> bytes:
    document = msgpack.unpackb(zstandard.ZstdDecompressor().decompress(encode_batch(make_batch(0, {"loss": [(1, 1.0)]}))))
    return zstandard.ZstdCompressor().compress(msgpack.packb({**document, **changes}))


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"junk", "body: not a compressed batch"),
        (damaged(v=2), "v: 2 is not 1"),
        (damaged(sequence=-1), "sequence"),
        (damaged(blobs={"ab" * 32: b"other"}), "not the SHA-256"),
        (damaged(logs=[{"t": 1.0, "component": "x", "level": "loud", "message": "m"}]), "logs.level"),
        (damaged(episodes=[{"episode": "no-uuid", "kind": "started", "ordinal": 0, "t": 1.0, "data": {}}]), "no UUID"),
        (damaged(events=[{"t": 1e300, "kind": "note", "data": {}}]), "Unix seconds"),
    ],
)
def test_a_malformed_batch_is_refused_whole_and_counted(client, run, attempt, body, detail):
    response = deliver(client, attempt, body)
    assert response.status_code == 400
    assert detail in response.json()["detail"]
    attempt.refresh_from_db()
    run.refresh_from_db()
    assert (attempt.batches_refused, run.seq, Point.objects.count()) == (1, 0, 0)


def test_a_body_beyond_the_limit_is_refused_before_it_is_unpacked(client, attempt, monkeypatch):
    monkeypatch.setattr(views, "MAX_COMPRESSED", 10)
    assert deliver(client, attempt, make_batch(0, {"loss": [(1, 1.0)]})).status_code == 413


def test_a_failing_database_asks_to_come_again(client, attempt, monkeypatch):
    def away(*_):
        raise OperationalError("server closed the connection")

    monkeypatch.setattr(views, "accept_batch", away)
    response = deliver(client, attempt, make_batch(0, {"loss": [(1, 1.0)]}))
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")


def test_a_full_queue_asks_to_come_again(client, attempt, monkeypatch):
    monkeypatch.setattr(views, "_queue", threading.BoundedSemaphore(1))
    views._queue.acquire()
    response = deliver(client, attempt, make_batch(0, {"loss": [(1, 1.0)]}))
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")


def test_busy_writers_ask_to_come_again(client, attempt, monkeypatch):
    monkeypatch.setattr(views, "_writers", threading.BoundedSemaphore(1))
    monkeypatch.setattr(views, "WAIT_S", 0.01)
    views._writers.acquire()
    assert deliver(client, attempt, make_batch(0, {"loss": [(1, 1.0)]})).status_code == 503


def test_what_a_batch_touched_is_remembered(client, attempt):
    logs = [{"t": 1.0, "component": "driver", "level": "info", "message": "hello"}]
    deliver(client, attempt, make_batch(0, {"loss": [(3, 1.0), (9, 1.0)]}, logs=logs))
    line = LogLine.objects.get().pk
    assert IngestBatch.objects.get().touched == {"counts": [2, 0, 0], "steps": [3, 9], "names": ["loss"], "logs": [line, line]}


def test_viewers_are_told_once_a_batch_and_only_after_the_commit(client, attempt, monkeypatch, django_capture_on_commit_callbacks):
    told = []
    monkeypatch.setattr("controlplane.telemetry.live._publish", lambda topic, payload: told.append((topic, payload)))
    with django_capture_on_commit_callbacks() as callbacks:
        deliver(client, attempt, make_batch(0, {"loss": [(1, 1.0)], "kl": [(1, 1.0)]}))
    assert told == []
    for callback in callbacks:
        callback()
    assert told[0] == (f"assay:run:{attempt.run_id}", {"seq": 1})
    assert [topic.split(":")[1] for topic, _ in told] == ["run", "runs"]


@pytest.mark.django_db(transaction=True)
def test_the_same_batch_from_many_threads_is_stored_once(run, attempt):
    batch = make_batch(0, {"loss": [(step, float(step)) for step in range(50)]})
    receipts = []

    def send():
        receipts.append(services.accept_batch(type(attempt).objects.select_related("run__project").get(pk=attempt.pk), batch))
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert receipts == [services.Receipt(1, 50, 0, 0)] * 6
    assert Point.objects.count() == 50 and Rollup.objects.get().count == 50


@pytest.mark.django_db(transaction=True)
def test_cursors_of_parallel_emitters_have_no_gap(run, attempt):
    def send(emitter):
        mine = type(attempt).objects.select_related("run__project").get(pk=attempt.pk)
        for sequence in range(10):
            services.accept_batch(
                mine, make_batch(sequence, {f"{emitter}/loss": [(sequence, 1.0)], "shared": [(sequence, 1.0)]}, emitter=emitter)
            )
        connection.close()

    threads = [threading.Thread(target=send, args=(f"emitter-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.refresh_from_db()
    assert run.seq == 40
    assert sorted(IngestBatch.objects.values_list("seq", flat=True)) == list(range(1, 41))
    assert Point.objects.count() == 50


def test_many_series_in_one_batch(client, attempt):
    names = {f"metric/{n}": [(step, float(n)) for step in range(3)] for n in range(500)}
    assert deliver(client, attempt, make_batch(0, names)).json()["accepted"] == 1500
    ids = dict(Series.objects.values_list("id", "name"))
    rows = Point.objects.values_list("series_id", "value")
    assert all(ids[series] == f"metric/{int(value)}" for series, value in rows)


def test_steps_far_apart_do_not_overflow(client, attempt):
    assert deliver(client, attempt, make_batch(0, {"loss": [(0, 1.0), (2**53, 2.0)], "kl": [(2**53, 3.0)]})).status_code == 200
    assert set(Rollup.objects.values_list("bucket", "count")) == {(0, 1), (2**53 // 100, 1)}
    assert np.isclose(sum(Rollup.objects.values_list("total", flat=True)), 6.0)
