"""The watchers count honestly: what never came is missing, what came twice is no second arrival."""

import time
from array import array

from benchmarks.sockets import Socket, Watched, percentiles


def frame(*points, cursor=1):
    return {"type": "frame", "run": "r", "cursor": cursor, "points": {"a": [list(point) for point in points]}}


def test_it_counts_gaps_and_repeats_and_measures_from_the_emit():
    socket = Socket(Watched("r", 0, ("a",)), array("f"))
    now = time.time()
    socket.receive(frame((1, 0, 1.0, now - 0.5), (1, 3, 1.0, now - 0.5), cursor=7))
    socket.receive(frame((1, 3, 1.0, now)))
    assert socket.missing(0, 5) == 3 and socket.repeated == 1 and len(socket.lags) == 2
    assert 0.5 <= socket.lags[0] < 1


def test_a_reset_is_counted_and_the_cursor_followed():
    socket = Socket(Watched("r", 4, ("a",)), array("f"))
    assert socket.topic()["cursor"] == 4
    socket.receive(frame(cursor=9))
    socket.receive({"type": "reset", "run": "r"})
    assert socket.resets == 1 and socket.topic()["cursor"] == 9


def test_nothing_that_arrived_is_no_figure():
    assert percentiles([]) == {"p50_s": None, "p95_s": None, "p99_s": None, "most_s": None}
