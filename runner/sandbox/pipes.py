"""The streams of one command of a sandbox of processes."""

import os
import select
import threading
import time
from collections.abc import Iterator

from runner.sandbox.base import ExecResult
from runner.sandbox.reasons import Reason, SandboxFailure
from runner.sandbox.streams import HeadTail

READ = 64 << 10
TICK = 0.5
# How long output may still arrive after the command itself ended: a child in the background may hold the streams for ever.
LINGER = 0.2


class Exchange:
    """Pipes for standard output, errors and the exit code. `theirs` go to the sandbox: input, output, errors, status."""

    def __init__(self, stdin: int | None = None):
        self.null = os.open(os.devnull, os.O_RDWR)
        (self.output, out), (self.errors, err), (self.code, status) = os.pipe(), os.pipe(), os.pipe()
        self.theirs = [self.null if stdin is None else stdin, out, err, status]
        self._open = [self.null, self.output, self.errors, self.code, out, err, status]

    def close_theirs(self) -> None:
        self._close(self.theirs[1:])

    def close(self) -> None:
        self._close(list(self._open))

    def _close(self, descriptors: list[int]) -> None:
        for descriptor in descriptors:
            if descriptor in self._open:
                self._open.remove(descriptor)
                os.close(descriptor)

    def status(self, timeout: float) -> int | None:
        """The exit code; None when the sandbox ended first, or after `timeout` seconds."""
        if not select.select([self.code], [], [], timeout)[0]:
            return None
        data = os.read(self.code, 32)
        return int(data) if data else None

    def chunks(self, timeout: float) -> Iterator[bytes]:
        """Standard output to its end. Raises when it takes longer than `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while select.select([self.output], [], [], max(0.0, deadline - time.monotonic()))[0]:
            data = os.read(self.output, READ)
            if not data:
                return
            yield data
        raise SandboxFailure(Reason.EXEC_FAILED, f"files did not arrive within {timeout:.0f} s")


def run(exchange: Exchange, timeout: float, output_cap: int, flood_limit: int | None, cancelled: threading.Event) -> ExecResult:
    """Read until the command ends or is cut off. exit_code None without either flag: the sandbox itself ended."""
    started = time.monotonic()
    streams = {exchange.output: HeadTail(output_cap), exchange.errors: HeadTail(output_cap)}
    watched, code, ended_at, timed_out, flooded = [*streams, exchange.code], None, None, False, False
    while watched:
        now = time.monotonic()
        if ended_at and now - ended_at > LINGER:
            break
        if not ended_at and (cancelled.is_set() or now - started > timeout):
            timed_out = True
            break
        for descriptor in select.select(watched, [], [], LINGER if ended_at else TICK)[0]:
            data = os.read(descriptor, READ)
            if descriptor in streams:
                streams[descriptor].add(data)
            else:
                code, ended_at = int(data) if data else None, time.monotonic()
            if not data or descriptor == exchange.code:
                watched.remove(descriptor)
        if flooded := bool(flood_limit) and sum(stream.total for stream in streams.values()) > flood_limit:
            break
    return _result(exchange, streams, code, time.monotonic() - started, timed_out, flooded)


def _result(
    exchange: Exchange, streams: dict[int, HeadTail], code: int | None, seconds: float, timed_out: bool, flooded: bool
) -> ExecResult:
    return ExecResult(
        exit_code=None if timed_out or flooded else code,
        stdout=streams[exchange.output].value(),
        stderr=streams[exchange.errors].value(),
        seconds=seconds,
        printed=sum(stream.total for stream in streams.values()),
        truncated=any(stream.omitted for stream in streams.values()),
        timed_out=timed_out,
        flooded=flooded,
    )
