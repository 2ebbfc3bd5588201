"""Episodes: five idempotent events and two immutable token traces.

An event is identified by (episode, kind, ordinal); later kinds add columns to the episode's row.
A trace is a columnar file of independent zstd frames with an index, so that a range of tokens can be read
without the rest. *sampled* holds what the policy produced, *trained* what the learner made of it; they are
joined by token offset.
"""

import struct
import threading
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import msgpack
import numpy as np
import zstandard


class EventKind(StrEnum):
    STARTED = "started"
    TURN = "turn"
    FINISHED = "finished"
    GRADED = "graded"
    TRAINED = "trained"


class Author(IntEnum):
    """Who wrote a token. Loss, curves and the transcript read this one field."""

    ENVIRONMENT = 0
    TEMPLATE = 1
    STUDENT = 2
    TEACHER = 3
    GOLD = 4
    BRIDGE = 5


SAMPLED_COLUMNS = {"token_id": "int32", "logprob": "float32", "author": "uint8", "mask": "uint8"}
TRAINED_COLUMNS = {"learner_logprob": "float32", "teacher_logprob": "float32", "advantage": "float32", "entropy": "float32", "mask": "uint8"}

FRAME_TOKENS = 4096
_MAGIC = b"ASSAYTK1"
_PREFIX = struct.Struct("<8sI")
_MAX_HEADER = 1 << 24
_own = threading.local()  # a compressor serves one thread, and making one costs more than a short trace


class InvalidTrace(ValueError):
    """The bytes are no token trace, or are damaged."""


def write_trace(columns: dict[str, np.ndarray]) -> bytes:
    """Pack equally long one-dimensional columns, one value per token; absent values are NaN."""
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1:
        raise ValueError(f"columns differ in length: { {name: len(values) for name, values in columns.items()} }")
    total = lengths.pop()
    arrays = {name: np.ascontiguousarray(values, dtype=_dtype(name)) for name, values in columns.items()}
    frames = [_pack_frame(arrays, start) for start in range(0, total, FRAME_TOKENS)]
    header = msgpack.packb(
        {"tokens": total, "columns": [[name, array.dtype.str] for name, array in arrays.items()], "frames": [len(frame) for frame in frames]}
    )
    return _PREFIX.pack(_MAGIC, len(header)) + header + b"".join(frames)


def _dtype(name: str) -> str:
    return SAMPLED_COLUMNS.get(name) or TRAINED_COLUMNS.get(name) or "float32"


def _pack_frame(arrays: dict[str, np.ndarray], start: int) -> bytes:
    raw = b"".join(array[start : start + FRAME_TOKENS].tobytes() for array in arrays.values())
    if not hasattr(_own, "compressor"):
        _own.compressor = zstandard.ZstdCompressor(level=3)
    return _own.compressor.compress(raw)


@dataclass(frozen=True)
class Trace:
    """A readable token trace over `data`, the bytes of a file or a memory map."""

    data: memoryview
    tokens: int
    columns: list[tuple[str, np.dtype]]
    offsets: list[tuple[int, int]]

    @classmethod
    def open(cls, data) -> "Trace":
        """Read the index. Raises InvalidTrace on anything that is not a whole trace."""
        view = memoryview(data)
        try:
            magic, size = _PREFIX.unpack_from(view)
            if magic != _MAGIC or size > _MAX_HEADER:
                raise InvalidTrace("not a token trace")
            header = msgpack.unpackb(view[_PREFIX.size : _PREFIX.size + size])
            offsets, position = [], _PREFIX.size + size
            for length in header["frames"]:
                offsets.append((position, length))
                position += length
            columns = [(name, np.dtype(kind)) for name, kind in header["columns"]]
        except (struct.error, KeyError, TypeError, ValueError, msgpack.exceptions.UnpackException) as error:
            raise InvalidTrace(f"unreadable header: {error}") from None
        if position != len(view):
            raise InvalidTrace(f"{len(view)} bytes, its index says {position}")
        return cls(view, header["tokens"], columns, offsets)

    def read(self, start: int = 0, stop: int | None = None) -> dict[str, np.ndarray]:
        """Columns of tokens [start, stop), decompressing only the frames that hold them."""
        stop = self.tokens if stop is None else min(stop, self.tokens)
        start = min(max(start, 0), stop)
        first, last = start // FRAME_TOKENS, max(start, stop - 1) // FRAME_TOKENS
        frames = [self._frame(index) for index in range(first, last + 1)] if stop > start else []
        base = first * FRAME_TOKENS
        return {
            name: np.concatenate([frame[name] for frame in frames])[start - base : stop - base] if frames else np.empty(0, kind)
            for name, kind in self.columns
        }

    def _frame(self, index: int) -> dict[str, np.ndarray]:
        position, length = self.offsets[index]
        count = min(FRAME_TOKENS, self.tokens - index * FRAME_TOKENS)
        size = count * sum(kind.itemsize for _, kind in self.columns)
        try:
            raw = zstandard.ZstdDecompressor().decompress(self.data[position : position + length], max_output_size=size)
        except zstandard.ZstdError as error:
            raise InvalidTrace(f"frame {index} is damaged: {error}") from None
        columns, cursor = {}, 0
        for name, kind in self.columns:
            columns[name] = np.frombuffer(raw, kind, count, cursor)
            cursor += count * kind.itemsize
        return columns
