import os
import random
import threading

import pytest

from runner.reporting.spool import (
    BATCH_POINTS,
    Packed,
    Position,
    RecordTooLarge,
    SpoolBusy,
    SpoolReader,
    SpoolWriter,
    hold,
    pack,
    seal_abandoned,
    segment_path,
    segments,
)


def records_of(folder):
    return [record for sealed in SpoolReader(folder).batches() for record in sealed.records]


def test_only_sealed_records_are_offered_and_in_order(tmp_path):
    writer = SpoolWriter(tmp_path / "a", "a")
    for number in range(5):
        writer.append(["l", number])
    assert records_of(tmp_path / "a") == []
    writer.seal()
    writer.append(["l", 5])
    assert records_of(tmp_path / "a") == [["l", number] for number in range(5)]
    writer.close()
    assert records_of(tmp_path / "a") == [["l", number] for number in range(6)]


def test_a_batch_is_sealed_before_it_exceeds_its_points(tmp_path):
    writer = SpoolWriter(tmp_path / "a", "a")
    for number in range(7):
        writer.append(["p", number], points=400)
    writer.seal()
    sizes = [len(sealed.records) for sealed in SpoolReader(tmp_path / "a").batches()]
    assert sizes == [2, 2, 2, 1] and 2 * 400 <= BATCH_POINTS


def test_records_written_together_are_cut_into_batches_like_single_ones(tmp_path):
    writer = SpoolWriter(tmp_path / "a", "a")
    writer.append(["p", 0], points=400)
    assert writer.append_packed([Packed(pack(["p", number]), 400) for number in range(1, 7)])
    writer.append_packed([])
    writer.close()
    assert [[number for _, number in sealed.records] for sealed in SpoolReader(tmp_path / "a").batches()] == [[0, 1], [2, 3], [4, 5], [6]]


def test_what_a_full_disk_refused_leaves_no_empty_batch(tmp_path, monkeypatch):
    writer = SpoolWriter(tmp_path / "a", "a")
    with monkeypatch.context() as full, pytest.raises(OSError, match="the disk took"):
        full.setattr(os, "write", lambda file, data: 0)
        writer.append_packed([Packed(pack(["l", number])) for number in range(3)])
    writer.append(["l", "later"])
    writer.close()
    assert [sealed.records for sealed in SpoolReader(tmp_path / "a").batches()] == [[["l", "later"]]]


def test_sequences_go_on_over_segments_and_delivered_segments_are_removed(tmp_path):
    writer = SpoolWriter(tmp_path / "a", "a", segment_bytes=200)
    for number in range(40):
        writer.append(["l", "x" * 30, number])
        writer.seal()
    assert len(segments(tmp_path / "a")) > 3
    reader = SpoolReader(tmp_path / "a")
    seen = []
    for sealed in reader.batches():
        seen.append(sealed.sequence)
        reader.acknowledge(sealed.position)
    assert seen == list(range(40))
    assert len(segments(tmp_path / "a")) <= 2
    assert list(SpoolReader(tmp_path / "a").batches()) == []


def test_a_reader_started_anew_goes_on_where_delivery_stopped(tmp_path):
    writer = SpoolWriter(tmp_path / "a", "a")
    for number in range(4):
        writer.append(["l", number])
        writer.seal()
    reader = SpoolReader(tmp_path / "a")
    first, second, *_ = reader.batches()
    reader.acknowledge(second.position)
    assert [sealed.sequence for sealed in SpoolReader(tmp_path / "a").batches()] == [2, 3]


def test_a_damaged_position_means_sending_again_never_skipping(tmp_path):
    writer = SpoolWriter(tmp_path / "a", "a")
    writer.append(["l", 0])
    writer.close()
    reader = SpoolReader(tmp_path / "a")
    reader.acknowledge(next(reader.batches()).position)
    (tmp_path / "a" / "delivered").write_bytes(b"\xff" * 20)
    assert SpoolReader(tmp_path / "a").position == Position()
    assert records_of(tmp_path / "a") == [["l", 0]]


@pytest.mark.parametrize("seed", range(30))
def test_a_torn_tail_costs_only_the_torn_record(tmp_path, seed):
    """Cut the file at a random byte: every record whose frame is whole is delivered once, under gapless sequences."""
    chance = random.Random(seed)
    writer = SpoolWriter(tmp_path / "a", "a")
    ends = []
    for number in range(20):
        writer.append(["l", "x" * chance.randrange(60), number])
        ends.append(writer._size)
        if chance.random() < 0.3:
            writer.seal()
    os.close(writer._file)
    os.close(writer._hold)
    path = segment_path(tmp_path / "a", 0)
    cut = chance.randrange(path.stat().st_size + 1)
    os.truncate(path, cut)
    lock = hold(tmp_path / "a")
    seal_abandoned(tmp_path / "a")
    os.close(lock)
    batches = list(SpoolReader(tmp_path / "a").batches())
    assert [record[2] for sealed in batches for record in sealed.records] == [number for number in range(20) if ends[number] <= cut]
    assert [sealed.sequence for sealed in batches] == list(range(len(batches)))


def test_sealing_an_abandoned_spool_twice_changes_nothing(tmp_path):
    writer = SpoolWriter(tmp_path / "a", "a")
    writer.append(["l", 0])
    os.close(writer._file)
    os.close(writer._hold)
    seal_abandoned(tmp_path / "a")
    before = segment_path(tmp_path / "a", 0).read_bytes()
    seal_abandoned(tmp_path / "a")
    assert segment_path(tmp_path / "a", 0).read_bytes() == before


def test_a_held_spool_is_left_alone(tmp_path):
    writer = SpoolWriter(tmp_path / "a", "a")
    with pytest.raises(SpoolBusy):
        hold(tmp_path / "a")
    writer.close()
    os.close(hold(tmp_path / "a"))


def test_a_record_beyond_any_batch_is_refused_and_the_spool_stays_readable(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.reporting.spool.MAX_RECORD", 100)
    writer = SpoolWriter(tmp_path / "a", "a")
    with pytest.raises(RecordTooLarge):
        writer.append(["b", b"x" * 200])
    writer.append(["l", 1])
    writer.close()
    assert records_of(tmp_path / "a") == [["l", 1]]


def test_a_full_disk_leaves_no_half_frame_behind(tmp_path, monkeypatch):
    writer = SpoolWriter(tmp_path / "a", "a")
    writer.append(["l", 0])
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[: len(data) // 2]))
    with pytest.raises(OSError):
        writer.append(["l", 1])
    monkeypatch.setattr(os, "write", real)
    writer.append(["l", 2])
    writer.close()
    assert records_of(tmp_path / "a") == [["l", 0], ["l", 2]]


def test_many_threads_append_without_loss(tmp_path):
    writer = SpoolWriter(tmp_path / "a", "a", segment_bytes=4000)

    def work(name):
        for number in range(200):
            writer.append(["l", name, number])
            if number % 17 == 0:
                writer.seal()

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    writer.close()
    records = records_of(tmp_path / "a")
    assert len(records) == 800
    for name in range(4):
        assert [record[2] for record in records if record[1] == name] == list(range(200))
