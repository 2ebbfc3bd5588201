"""Batches and token traces: what was packed comes back, anything else is refused."""

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.contract.canonical import digest
from runner.contract.episode import FRAME_TOKENS, InvalidTrace, Trace, write_trace
from runner.contract.events import Batch, InvalidBatch, Points, Samples, decode_batch, encode_batch


def a_batch(**changes) -> Batch:
    points = Points(["loss", "kl"], np.array([0, 1], "int32"), np.array([1, 1]), np.array([0.5, np.nan]), np.array([10.0, 10.0]))
    blob = b"trace"
    return Batch(
        **{
            "emitter": "driver-1",
            "sequence": 3,
            "points": points,
            "samples": Samples(["cpu"], np.array([0], "int32"), np.array([11.0]), np.array([np.inf])),
            "logs": [{"t": 1.0, "component": "driver", "level": "info", "message": "hello"}],
            "episodes": [{"episode": "e", "kind": "started", "ordinal": 0, "t": 1.0, "data": {}}],
            "events": [{"t": 1.0, "kind": "note", "step": None, "data": {}}],
            "blobs": {digest(blob): blob},
            **changes,
        }
    )


def test_a_batch_comes_back_with_its_infinities():
    back = decode_batch(encode_batch(a_batch()))
    assert back.points.names == ["loss", "kl"] and np.isnan(back.points.value[1])
    assert np.isposinf(back.samples.value[0])
    assert back.logs[0]["message"] == "hello" and list(back.blobs.values()) == [b"trace"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"emitter": ""}, "emitter"),
        ({"sequence": -1}, "sequence"),
        ({"points": Points(["a"], np.array([1], "int32"), np.array([1]), np.array([1.0]), np.array([1.0]))}, "points.series"),
        ({"points": Points(["a"], np.array([0], "int32"), np.array([-1]), np.array([1.0]), np.array([1.0]))}, "points.step"),
        ({"points": Points(["a"], np.array([0], "int32"), np.array([1]), np.array([1.0]), np.array([np.inf]))}, "points.wall"),
        ({"points": Points(["a\x1b"], np.array([0], "int32"), np.array([1]), np.array([1.0]), np.array([1.0]))}, "points.names"),
        ({"points": Points(["a"], np.array([0], "int32"), np.array([1, 2]), np.array([1.0]), np.array([1.0]))}, "columns differ"),
        ({"logs": [{"t": 1.0}]}, "logs"),
        ({"logs": [{"t": 1.0, "component": "x", "level": "loud", "message": ""}]}, "logs.level"),
        ({"episodes": [{"episode": "e", "kind": "begun", "ordinal": 0, "t": 1.0, "data": {}}]}, "episodes.kind"),
        ({"blobs": {"0" * 64: b"other"}}, "blobs"),
    ],
)
def test_a_broken_batch_names_its_field(changes, word):
    with pytest.raises(InvalidBatch, match=word):
        decode_batch(encode_batch(a_batch(**changes)))


@given(st.binary(max_size=200))
@example(b"\x81\x90\x00")  # a map whose key is a list
@settings(max_examples=100, deadline=None)
def test_noise_is_refused_not_raised(data):
    for body in (data, zstandard.compress(data), zstandard.compress(msgpack.packb(data))):
        with pytest.raises(InvalidBatch):
            decode_batch(body)


@given(st.integers(0, 3 * FRAME_TOKENS), st.integers(-5, 3 * FRAME_TOKENS), st.integers(0, 3 * FRAME_TOKENS))
@settings(max_examples=40, deadline=None)
def test_any_range_of_a_trace_equals_the_slice(total, start, stop):
    ids, logprobs = np.arange(total, dtype="int32"), np.linspace(-9, 0, total, dtype="float32")
    part = Trace.open(write_trace({"token_id": ids, "logprob": logprobs})).read(start, stop)
    first = max(start, 0)
    np.testing.assert_array_equal(part["token_id"], ids[first : max(first, stop)])
    np.testing.assert_array_equal(part["logprob"], logprobs[first : max(first, stop)])


def test_a_range_reads_only_its_frames():
    data = bytearray(write_trace({"token_id": np.arange(3 * FRAME_TOKENS)}))
    trace = Trace.open(bytes(data))
    position, length = trace.offsets[2]
    data[position : position + length] = bytes(length)
    damaged = Trace.open(bytes(data))
    assert damaged.read(0, FRAME_TOKENS)["token_id"][-1] == FRAME_TOKENS - 1
    with pytest.raises(InvalidTrace):
        damaged.read(2 * FRAME_TOKENS)


@pytest.mark.parametrize("cut", [0, 5, 12, 40, -1])
def test_a_torn_trace_is_refused(cut):
    whole = write_trace({"token_id": np.arange(100)})
    with pytest.raises(InvalidTrace):
        Trace.open(whole[:cut])


def test_columns_of_different_length_are_refused():
    with pytest.raises(ValueError, match="differ"):
        write_trace({"token_id": np.arange(3), "logprob": np.zeros(2)})
