"""What a command prints, kept within bounds."""

import struct
from collections.abc import Iterator

_HEADER = struct.Struct(">BxxxL")


def printable(text: str) -> str:
    """Text from a container as a database can keep it: no NUL, no half of a surrogate pair."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


class HeadTail:
    """The first and the last bytes of a stream, each half of `cap`; what lies between is counted only."""

    def __init__(self, cap: int):
        self.half = max(1, cap // 2)
        self.head, self.tail = bytearray(), bytearray()
        self.total = 0

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.half - len(self.head)
        if room > 0:
            self.head += data[:room]
            data = data[room:]
        if data:
            self.tail += data[-self.half :]
            if len(self.tail) > self.half:
                del self.tail[: -self.half]

    @property
    def omitted(self) -> int:
        return self.total - len(self.head) - len(self.tail)

    def value(self) -> bytes:
        marker = f"\n[{self.omitted} bytes omitted]\n".encode() if self.omitted else b""
        return bytes(self.head) + marker + bytes(self.tail)


class Frames:
    """Splits the engine's multiplexed stream into (1 stdout or 2 stderr, bytes), however it was cut into packets."""

    def __init__(self):
        self.buffer = bytearray()
        self.stream, self.left = 0, 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        self.buffer += data
        while self.buffer:
            if not self.left:
                if len(self.buffer) < _HEADER.size:
                    return
                self.stream, self.left = _HEADER.unpack_from(self.buffer)
                del self.buffer[: _HEADER.size]
                continue
            taken = bytes(self.buffer[: self.left])
            del self.buffer[: len(taken)]
            self.left -= len(taken)
            yield self.stream, taken
