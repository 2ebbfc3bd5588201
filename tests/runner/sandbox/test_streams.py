import struct

from runner.sandbox.streams import Frames, HeadTail, printable


def frame(stream, data):
    return struct.pack(">BxxxL", stream, len(data)) + data


def test_frames_are_found_however_the_packets_were_cut():
    data = frame(1, b"hello") + frame(2, b"") + frame(2, b"trouble") + frame(1, b"!")
    for size in range(1, len(data)):
        frames, seen = Frames(), {1: b"", 2: b""}
        for start in range(0, len(data), size):
            for stream, part in frames.feed(data[start : start + size]):
                seen[stream] += part
        assert seen == {1: b"hello!", 2: b"trouble"}


def test_first_and_last_bytes_are_kept_and_the_rest_is_counted():
    kept = HeadTail(10)
    for letter in b"abcdefghijklmnopqrstuvwxyz":
        kept.add(bytes([letter]))
    assert kept.value() == b"abcde\n[16 bytes omitted]\nvwxyz"
    assert (kept.total, kept.omitted) == (26, 16)


def test_what_fits_is_kept_as_it_is():
    kept = HeadTail(10)
    kept.add(b"0123456789")
    assert kept.value() == b"0123456789" and not kept.omitted


def test_what_a_database_would_refuse_is_written_out():
    assert printable("a\0b\ud800\n\u00e9") == "a\\0b\\ud800\n\u00e9"


def test_a_flood_costs_the_cap_only():
    kept = HeadTail(1000)
    for _ in range(1000):
        kept.add(b"y\n" * 5000)
    assert len(kept.head) + len(kept.tail) == 1000
    assert kept.total == 10_000_000
