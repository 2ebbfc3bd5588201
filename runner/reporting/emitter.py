"""What the runner says about itself. `emit` has written to the disk spool before it returns; a thread delivers."""

import secrets
import shutil
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, TextIO

from runner.contract.canonical import digest
from runner.contract.episode import EventKind
from runner.reporting.courier import Courier, DeliveryClosed
from runner.reporting.spool import Packed, RecordTooLarge, SpoolWriter, pack

SEND_SECONDS = 0.5
MAX_MESSAGE = 16_000


class Emitter:
    """Points, samples, log lines, events, episodes and blobs of one process.

    Never raises into training and never waits for the network: a record that cannot be written (disk full) is counted in `dropped` and
    said on stderr. Without `url` everything stays in the spool. Holds threads and locks: make it in the process that uses it.
    """

    def __init__(self, spool: Path, component: str, *, url: str | None = None, token: str = "", journal: TextIO | None = None):
        """`spool` is the attempt's spool folder, `url` the attempt's batches endpoint; log lines go to `journal` too."""
        self.journal = journal
        self.name = f"{component}-{secrets.token_hex(6)}"
        self.component = component
        self.dropped = 0
        self.folder = spool / self.name
        self._writer = SpoolWriter(self.folder, self.name)
        self._gathered = threading.local()
        self._stop, self._wake = threading.Event(), threading.Event()
        self._courier = Courier(self.folder, url, token, self._stop) if url else None
        self._everything_delivered = False
        self._thread = threading.Thread(target=self._deliver, name=f"deliver-{self.name}", daemon=True)
        if self._courier:
            self._thread.start()

    def emit_points(self, step: int, values: dict[str, float], wall: float | None = None) -> None:
        """Metric values of one training step. NaN and infinity travel as they are; None means missing and is left out."""
        self._guard(self._append_numbers, ["p", step, wall or time.time()], values)

    def emit_samples(self, values: dict[str, float], wall: float | None = None) -> None:
        """Hardware and waiting series over wall seconds."""
        self._guard(self._append_numbers, ["s", wall or time.time()], values)

    def log(self, level: str, message: str, component: str | None = None) -> None:
        """One log line; `level` is one of contract.events.LOG_LEVELS."""
        line = {"t": time.time(), "component": component or self.component, "level": level, "message": message[:MAX_MESSAGE]}
        self._append(["l", line])
        if self.journal:
            written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line["t"]))
            self._guard(self.journal.write, f"{written} {level:7} {line['component']}: {line['message']}\n")

    def event(self, kind: str, step: int | None, data: dict[str, Any]) -> None:
        """Something that happened to the run (contract.events)."""
        self._append(["v", {"t": time.time(), "kind": kind, "step": step, "data": data}])

    def episode_event(self, episode: str, kind: EventKind, ordinal: int, data: dict[str, Any], at: float | None = None) -> None:
        """One of the five events of an episode; (episode, kind, ordinal) is its identity."""
        self._append(["e", {"episode": episode, "kind": str(kind), "ordinal": ordinal, "t": at or time.time(), "data": data}])

    def blob(self, data: bytes) -> str:
        """Hand over immutable bytes; the digest is what later records name them by. Call it before the record that does."""
        self._append(["b", data])
        return digest(data)

    @contextmanager
    def together(self) -> Iterator[None]:
        """What this thread emits inside goes to the disk in one write; it is there when the block ends."""
        self._gathered.records = records = []
        try:
            yield
        finally:
            del self._gathered.records
            self._write(records)

    def close(self, timeout: float = 5.0) -> bool:
        """Deliver what is left within `timeout` seconds; True when everything arrived. What did not stays for a replay."""
        deadline = time.monotonic() + timeout
        self._guard(self._writer.seal)
        if not self._courier:
            self._writer.close()
            return False
        self._courier.deadline = deadline
        self._stop.set()
        self._wake.set()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            return False
        self._writer.close()
        if self._everything_delivered and not any(self.folder.glob("refused-*")):
            shutil.rmtree(self.folder, ignore_errors=True)
        return self._everything_delivered

    def _append_numbers(self, head: list, values: dict[str, float]) -> None:
        values = {name: float(value) for name, value in values.items() if value is not None}
        if values:
            self._append([*head, values], len(values))

    def _append(self, record: list, points: int = 0) -> None:
        if (payload := self._guard(pack, record)) is None:
            return
        gathered = getattr(self._gathered, "records", None)
        if gathered is None:
            self._write([Packed(payload, points)])
        else:
            gathered.append(Packed(payload, points))

    def _write(self, records: list[Packed]) -> None:
        filled = self._guard(self._writer.append_packed, records)
        if filled:
            self._wake.set()
        elif filled is None:
            self.dropped += len(records) - 1

    def _guard(self, action, *arguments) -> Any:
        try:
            return action(*arguments)
        except (OSError, RecordTooLarge, TypeError, ValueError, OverflowError) as error:
            self.dropped += 1
            if self.dropped in (1, 10, 100, 1000):
                print(f"{self.name}: {self.dropped} records could not be spooled: {error}", file=sys.stderr)
            return None

    def _deliver(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(SEND_SECONDS)
            self._wake.clear()
            self._deliver_once()
        # The stop flag interrupts pauses; the last round runs without it, bounded by the courier's deadline.
        self._courier.stop = threading.Event()
        self._everything_delivered = self._deliver_once()
        self._courier.close()

    def _deliver_once(self) -> bool:
        self._guard(self._writer.seal)
        try:
            return self._courier.run()
        except DeliveryClosed as closed:
            print(f"{self.name}: {closed}", file=sys.stderr)
            self._courier.deadline = 0.0
            self._stop.wait()
        except Exception as error:  # a defect in delivery must not end training, nor spin
            print(f"{self.name}: delivery failed: {error!r}", file=sys.stderr)
            self._stop.wait(1.0)
        return False
