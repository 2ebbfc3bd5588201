"""The batch: what an emitter sends to `POST /api/ingest/{attempt}/batches`.

Columnar msgpack, zstd-compressed. (emitter, sequence) is the idempotency key. Points travel as arrays and
are validated as arrays; there is never an object per point.

Episode events carry `data` as follows (absent keys mean unknown, null means known to be missing):
  started   stage, step, group, sample, task, domain, purpose (train | eval), evaluation, worker,
            policy_version, seed
  turn      index, role (system | user | assistant | tool | environment), author, text, tokens, reward, facts {what
            the environment told beside the text: score, inventory, whether the action was understood}
  finished  termination, policy_version, prompt_tokens, response_tokens, turns, seconds, error,
            sampled (blob digest), token_texts (digest of a zstd msgpack list of strings, one a token)
  graded    score (number or null), reason, parsed, checks {name: score}, evidence, grader,
            termination (only when grading changes it: verifier_error, verifier_timeout, parse_failed)
  trained   step, advantage, trained_tokens, masked, filters [names], trained (blob digest),
            turns [{turn, index, return, episode_advantage, step_advantage, advantage, anchor, group_size, group_episodes,
            valid}] where the method credits turns; `index` is that of the turn event
"""

from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
import zstandard

from runner.contract.canonical import digest
from runner.contract.episode import EventKind

WIRE_VERSION = 1
MAX_COMPRESSED = 32 << 20
MAX_PLAIN = 128 << 20
MAX_POINTS = 200_000
MAX_SERIES_NAME = 200
CONTENT_TYPE = "application/vnd.assay.batch+zstd"
LOG_LEVELS = ("debug", "info", "warning", "error")


class InvalidBatch(ValueError):
    """A batch was refused; the message names the field, the value and the remedy."""


def _empty(dtype: str):
    return field(default_factory=lambda: np.empty(0, dtype))


@dataclass
class Points:
    """Metric points over training steps. Row i is (names[series[i]], step[i], value[i], wall[i])."""

    names: list[str] = field(default_factory=list)
    series: np.ndarray = _empty("int32")
    step: np.ndarray = _empty("int64")
    value: np.ndarray = _empty("float64")
    wall: np.ndarray = _empty("float64")

    def __len__(self) -> int:
        return len(self.series)


@dataclass
class Samples:
    """Hardware and waiting series over wall seconds (Unix time)."""

    names: list[str] = field(default_factory=list)
    series: np.ndarray = _empty("int32")
    wall: np.ndarray = _empty("float64")
    value: np.ndarray = _empty("float64")

    def __len__(self) -> int:
        return len(self.series)


@dataclass
class Batch:
    """One delivery. `logs` are {t, component, level, message}; `events` are {t, kind, step, data}."""

    emitter: str
    sequence: int
    points: Points = field(default_factory=Points)
    samples: Samples = field(default_factory=Samples)
    logs: list[dict[str, Any]] = field(default_factory=list)
    episodes: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)


_COLUMNS = {
    "points": {"series": "<i4", "step": "<i8", "value": "<f8", "wall": "<f8"},
    "samples": {"series": "<i4", "wall": "<f8", "value": "<f8"},
}
_TABLES = {"points": Points, "samples": Samples}


def encode_batch(batch: Batch) -> bytes:
    """Wire bytes of `batch`."""
    document = {
        "v": WIRE_VERSION,
        "emitter": batch.emitter,
        "sequence": batch.sequence,
        "logs": batch.logs,
        "episodes": batch.episodes,
        "events": batch.events,
        "blobs": batch.blobs,
    }
    for name, columns in _COLUMNS.items():
        table = getattr(batch, name)
        arrays = {column: np.ascontiguousarray(getattr(table, column), dtype).tobytes() for column, dtype in columns.items()}
        document[name] = {"names": table.names, **arrays}
    return zstandard.ZstdCompressor(level=1).compress(msgpack.packb(document))


def decode_batch(data: bytes) -> Batch:
    """Validate and unpack wire bytes. Raises InvalidBatch."""
    document = _unpack(data)
    if document.get("v") != WIRE_VERSION:
        raise InvalidBatch(f"v: {document.get('v')!r} is not {WIRE_VERSION}; upgrade the emitter or the control plane")
    emitter, sequence = document.get("emitter"), document.get("sequence")
    if not isinstance(emitter, str) or not 0 < len(emitter) <= 80:
        raise InvalidBatch("emitter: must be a name of 1 to 80 characters")
    if not isinstance(sequence, int) or isinstance(sequence, bool) or not 0 <= sequence < 2**62:
        raise InvalidBatch(f"sequence: must be a whole number, got {sequence!r}")
    return Batch(
        emitter=emitter,
        sequence=sequence,
        points=_table("points", document),
        samples=_table("samples", document),
        logs=[_log(item) for item in _list(document, "logs")],
        episodes=[_episode(item) for item in _list(document, "episodes")],
        events=[_event(item) for item in _list(document, "events")],
        blobs=_blobs(document.get("blobs") or {}),
    )


def _unpack(data: bytes) -> dict:
    if len(data) > MAX_COMPRESSED:
        raise InvalidBatch(f"body: {len(data)} bytes exceed {MAX_COMPRESSED}; send smaller batches")
    try:
        with zstandard.ZstdDecompressor().stream_reader(data) as stream:
            plain = stream.read(MAX_PLAIN + 1)
        if len(plain) > MAX_PLAIN:
            raise InvalidBatch(f"body: unpacks to more than {MAX_PLAIN} bytes; send smaller batches")
        document = msgpack.unpackb(plain, strict_map_key=False)
    except (zstandard.ZstdError, msgpack.exceptions.UnpackException, ValueError, TypeError) as error:  # TypeError: a key that is a list
        raise error if isinstance(error, InvalidBatch) else InvalidBatch(f"body: not a compressed batch ({error})") from None
    if not isinstance(document, dict):
        raise InvalidBatch(f"body: must be a map, got {type(document).__name__}")
    return document


def _list(document: dict, key: str) -> list:
    value = document.get(key) or []
    if not isinstance(value, list):
        raise InvalidBatch(f"{key}: must be a list, got {type(value).__name__}")
    return value


def _table(key: str, document: dict):
    source = document.get(key) or {}
    if not isinstance(source, dict):
        raise InvalidBatch(f"{key}: must be a map, got {type(source).__name__}")
    names = source.get("names") or []
    if not all(isinstance(name, str) and 0 < len(name) <= MAX_SERIES_NAME and name.isprintable() for name in names):
        raise InvalidBatch(f"{key}.names: each must be printable text of 1 to {MAX_SERIES_NAME} characters")
    arrays = {column: _array(key, column, dtype, source) for column, dtype in _COLUMNS[key].items()}
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) != 1:
        raise InvalidBatch(f"{key}: columns differ in length ({sorted(lengths)})")
    table = _TABLES[key](names=names, **arrays)
    _check_table(key, table)
    return table


def _array(key: str, column: str, dtype: str, source: dict) -> np.ndarray:
    data = source.get(column, b"")
    if not isinstance(data, bytes) or len(data) % np.dtype(dtype).itemsize:
        raise InvalidBatch(f"{key}.{column}: must be little-endian {dtype[1:]} bytes")
    return np.frombuffer(data, dtype)


def _check_table(key: str, table) -> None:
    if len(table) > MAX_POINTS:
        raise InvalidBatch(f"{key}: {len(table)} rows exceed {MAX_POINTS}; send smaller batches")
    if len(table) and (table.series.min() < 0 or table.series.max() >= len(table.names)):
        raise InvalidBatch(f"{key}.series: an index lies outside names (0 to {len(table.names) - 1})")
    if not np.isfinite(table.wall).all():
        raise InvalidBatch(f"{key}.wall: must be finite Unix seconds")
    if key == "points" and len(table) and (table.step.min() < 0 or table.step.max() > 2**53):
        raise InvalidBatch("points.step: must lie in 0 to 2^53")


def _require(item: Any, where: str, **kinds: type | tuple) -> dict:
    if not isinstance(item, dict):
        raise InvalidBatch(f"{where}: each must be a map, got {type(item).__name__}")
    for key, kind in kinds.items():
        if not isinstance(item.get(key), kind) or isinstance(item.get(key), bool):
            raise InvalidBatch(f"{where}.{key}: missing or of the wrong type ({item.get(key)!r:.80})")
    return item


def _log(item: Any) -> dict:
    _require(item, "logs", t=(int, float), component=str, level=str, message=str)
    if item["level"] not in LOG_LEVELS:
        raise InvalidBatch(f"logs.level: {item['level']!r:.40} is none of {', '.join(LOG_LEVELS)}")
    return item


def _episode(item: Any) -> dict:
    _require(item, "episodes", episode=str, kind=str, ordinal=int, t=(int, float), data=dict)
    if item["kind"] not in set(EventKind):
        raise InvalidBatch(f"episodes.kind: {item['kind']!r:.40} is none of {', '.join(EventKind)}")
    return item


def _event(item: Any) -> dict:
    return _require(item, "events", t=(int, float), kind=str, data=dict)


def _blobs(blobs: Any) -> dict[str, bytes]:
    if not isinstance(blobs, dict):
        raise InvalidBatch(f"blobs: must be a map, got {type(blobs).__name__}")
    for name, content in blobs.items():
        if not isinstance(content, bytes) or digest(content) != name:
            raise InvalidBatch(f"blobs: {name!r:.80} is not the SHA-256 of its content")
    return blobs
