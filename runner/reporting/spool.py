"""The disk spool: an append-only record of everything an emitter was given, cut into numbered batches.

A spool is a folder of one emitter process:
    lock              held by whoever writes or delivers
    000000.log …      segments of frames: <length u32, crc32 u32, msgpack payload>
    delivered         position up to which the control plane has taken everything

A segment starts with ["segment", emitter, first sequence]. A seal frame ["=", sequence] says that the records since the seal before it are
batch `sequence`. Seals are on disk before a batch is sent, so a successor sends the same records under the same (emitter, sequence) and a
batch whose answer was lost is never counted twice.
"""

import fcntl
import os
import struct
import threading
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Sequence

import msgpack

_FRAME = struct.Struct("<II")
_POSITION = struct.Struct("<QQI")
SEGMENT_BYTES = 16 << 20
BATCH_POINTS = 1_000
# Taking one in costs the web process many times its size for a moment, which its memory shows for good.
BATCH_BYTES = 1 << 20
MAX_RECORD = 24 << 20


class SpoolBusy(RuntimeError):
    """Another process writes or delivers this spool."""


class RecordTooLarge(ValueError):
    """A single record exceeds what one batch can carry."""


@dataclass(frozen=True)
class Sealed:
    """One batch as it lies on disk: its records, and the position behind it."""

    emitter: str
    sequence: int
    records: list[list]
    position: "Position"


@dataclass(frozen=True, order=True)
class Position:
    """A byte offset in a numbered segment."""

    segment: int = 0
    offset: int = 0


class Packed(NamedTuple):
    """A record as its frame's payload, and how many points it carries."""

    payload: bytes
    points: int = 0


def pack(record: list) -> bytes:
    """The payload of a record's frame. Raises RecordTooLarge, or TypeError and ValueError on what msgpack cannot say."""
    payload = msgpack.packb(record, default=_plain)
    if len(payload) > MAX_RECORD:
        raise RecordTooLarge(f"a record of {len(payload)} bytes exceeds {MAX_RECORD}")
    return payload


def hold(folder: Path) -> int:
    """Take the spool's lock and return its descriptor. Raises SpoolBusy. The kernel gives it back when the holder dies."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SpoolBusy(f"{folder} is held by a living process") from None
    return descriptor


def segment_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.log"


def segments(folder: Path) -> list[int]:
    """Numbers of the segments on disk, oldest first."""
    return sorted(int(path.stem) for path in folder.glob("[0-9]*.log"))


class SpoolWriter:
    """Appends records. Every public method may be called from any thread; a record is on disk when `append` returns."""

    def __init__(self, folder: Path, emitter: str, segment_bytes: int = SEGMENT_BYTES):
        folder.mkdir(parents=True, exist_ok=False, mode=0o700)
        self.folder, self.emitter, self.segment_bytes = folder, emitter, segment_bytes
        self.sequence = 0
        self._mutex = threading.Lock()
        self._hold = hold(folder)
        self._number = -1
        self._file = -1
        self._reset()
        self._open_segment()

    def append(self, record: list, points: int = 0) -> bool:
        """Write one record; True when that filled a batch. Raises OSError when the disk refuses, RecordTooLarge."""
        return self.append_packed([Packed(pack(record), points)])

    def append_packed(self, records: Sequence[Packed]) -> bool:
        """Write records in as few writes as batches allow; True when they filled a batch. Raises OSError, and then some may be missing."""
        with self._mutex:
            filled, waiting = False, []
            for record in records:
                if (self._records or waiting) and self._overflows(record):
                    self._write(waiting)
                    self._seal()
                    filled, waiting = True, []
                waiting.append(record.payload)
                self._points, self._bytes = self._points + record.points, self._bytes + len(record.payload)
            self._write(waiting)
            return filled or self._points >= BATCH_POINTS

    def _overflows(self, record: Packed) -> bool:
        return self._points + record.points > BATCH_POINTS or self._bytes + len(record.payload) > BATCH_BYTES

    def seal(self) -> None:
        """Close the open batch, when it holds anything, so that it can be sent."""
        with self._mutex:
            if self._records:
                self._seal()

    def close(self) -> None:
        """Seal and let go of the files."""
        with self._mutex:
            if self._file < 0:
                return
            if self._records:
                self._seal()
            os.close(self._file)
            os.close(self._hold)
            self._file = -1

    def _seal(self) -> None:
        self._write([msgpack.packb(["=", self.sequence])])
        self.sequence += 1
        self._reset()
        if self._size > self.segment_bytes:
            self._open_segment()

    def _reset(self) -> None:
        self._records = self._points = self._bytes = 0

    def _open_segment(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._number += 1
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(segment_path(self.folder, self._number), flags, 0o600)
        self._size = 0
        self._write([msgpack.packb(["segment", self.emitter, self.sequence])])
        self._reset()

    def _write(self, payloads: list[bytes]) -> None:
        frames = b"".join(part for payload in payloads for part in (_FRAME.pack(len(payload), zlib.crc32(payload)), payload))
        written = os.write(self._file, frames)
        if written < len(frames):
            # A full disk takes part of a frame; what follows would be unreadable behind it.
            os.ftruncate(self._file, self._size)
            raise OSError(28, f"{self.folder}: the disk took {written} of {len(frames)} bytes")
        self._size += len(frames)
        self._records += len(payloads)


def _plain(value: Any) -> Any:
    """Numpy scalars and paths as the plain values they stand for."""
    return value.item() if hasattr(value, "item") else str(value)


def _frames(path: Path, offset: int) -> Iterator[tuple[Any, int]]:
    """(payload, offset behind it) of each whole frame from `offset`; stops before one that is torn or still being written."""
    with open(path, "rb") as file:
        file.seek(offset)
        while True:
            head = file.read(_FRAME.size)
            if len(head) < _FRAME.size:
                return
            length, checksum = _FRAME.unpack(head)
            payload = file.read(length) if length <= MAX_RECORD else b""
            if len(payload) < length or zlib.crc32(payload) != checksum:
                return
            offset += _FRAME.size + length
            yield msgpack.unpackb(payload, strict_map_key=False), offset


class SpoolReader:
    """Reads sealed batches in order from where delivery stopped; at most one batch is in memory."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.position = self._read_position()

    def batches(self) -> Iterator[Sealed]:
        """Sealed batches behind `position`. Ends when none is left for now; a later call goes on."""
        while (number := self._current()) is not None:
            followed = segment_path(self.folder, number + 1).exists()
            yield from self._segment_batches(number)
            if not followed:
                return
            self.position = Position(number + 1, 0)

    def acknowledge(self, position: Position) -> None:
        """Everything up to `position` was taken: remember it and remove the segments behind it."""
        self.position = position
        packed = _POSITION.pack(position.segment, position.offset, zlib.crc32(_POSITION.pack(position.segment, position.offset, 0)))
        descriptor = os.open(self.folder / "delivered", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, packed, 0)
        finally:
            os.close(descriptor)
        for number in segments(self.folder):
            if number < position.segment:
                segment_path(self.folder, number).unlink(missing_ok=True)

    def _current(self) -> int | None:
        left = [number for number in segments(self.folder) if number >= self.position.segment]
        if not left:
            return None
        if left[0] > self.position.segment:
            self.position = Position(left[0], 0)
        return left[0]

    def _segment_batches(self, number: int) -> Iterator[Sealed]:
        emitter = self._emitter(number)
        records: list[list] = []
        for record, end in _frames(segment_path(self.folder, number), self.position.offset):
            if record[0] == "=":
                yield Sealed(emitter, record[1], records, Position(number, end))
                records = []
            elif record[0] != "segment":
                records.append(record)

    def _emitter(self, number: int) -> str:
        return next((record[1] for record, _ in _frames(segment_path(self.folder, number), 0)), "")

    def _read_position(self) -> Position:
        try:
            segment, offset, checksum = _POSITION.unpack((self.folder / "delivered").read_bytes())
        except (FileNotFoundError, struct.error):
            return Position()
        good = checksum == zlib.crc32(_POSITION.pack(segment, offset, 0))
        return Position(segment, offset) if good else Position()


def seal_abandoned(folder: Path) -> None:
    """Make a dead writer's last records deliverable: cut off a torn frame and seal what was never sealed. Hold the lock."""
    for number in segments(folder)[-1:]:
        path, sequence, open_records, end = segment_path(folder, number), None, 0, 0
        for record, end in _frames(path, 0):
            if record[0] == "segment":
                sequence = record[2]
            elif record[0] == "=":
                sequence, open_records = record[1] + 1, 0
            else:
                open_records += 1
        with open(path, "r+b") as file:
            file.truncate(end)
            if open_records and sequence is not None:
                payload = msgpack.packb(["=", sequence])
                file.seek(end)
                file.write(_FRAME.pack(len(payload), zlib.crc32(payload)) + payload)
