"""Takes sealed batches to the control plane, oldest first, until it has said yes to each."""

import email.utils
import random
import sys
import threading
import time
from pathlib import Path

import httpx

from runner.contract.events import CONTENT_TYPE, encode_batch
from runner.reporting.batches import build_batch
from runner.reporting.spool import Sealed, SpoolReader

# Long: on a busy machine a batch of episodes takes seconds to be taken in, and giving up early only makes it come twice.
REQUEST_SECONDS = 30.0
LONGEST_PAUSE = 30.0
LONGEST_RETRY_AFTER = 120.0
# The control plane understood the batch and will never take it.
REFUSED = {400, 413, 415, 422}
# Nothing will be taken from this attempt any more.
CLOSED = {410}


class DeliveryClosed(RuntimeError):
    """The control plane takes nothing more from this attempt; what is left stays on disk."""


class Courier:
    """Delivers one spool. Used by a living emitter's thread and by a successor's replay alike.

    `stop` interrupts every pause. Counters `delivered` and `refused` are batches.
    """

    def __init__(self, folder: Path, url: str, token: str, stop: threading.Event):
        self.reader = SpoolReader(folder)
        self.folder, self.stop = folder, stop
        self.delivered = self.refused = 0
        self.deadline = float("inf")
        self._url = url
        authorization = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(headers={**authorization, "Content-Type": CONTENT_TYPE}, trust_env=False)
        self._trouble = ""

    def run(self) -> bool:
        """Deliver what is sealed now; True when nothing is left, False when stopped first. Raises DeliveryClosed."""
        for sealed in self.reader.batches():
            if not self._deliver(sealed):
                return False
            self.reader.acknowledge(sealed.position)
        return True

    def close(self) -> None:
        self._client.close()

    def _deliver(self, sealed: Sealed) -> bool:
        body = encode_batch(build_batch(sealed))
        pause = 0.5
        while True:
            answer = self._post(body)
            if answer is not None and answer.is_success:
                self._say("")
                self.delivered += 1
                return True
            if answer is not None and answer.status_code in CLOSED:
                raise DeliveryClosed(f"the control plane answered {answer.status_code}: {answer.text[:200]}")
            if answer is not None and answer.status_code in REFUSED:
                self._keep_refused(sealed, body, answer)
                return True
            if answer is not None:
                self._say(f"the control plane answered {answer.status_code}: {answer.text[:200]}")
            wait = _retry_after(answer)
            if self._pause(pause * random.uniform(0.5, 1.0) if wait is None else wait):
                return False
            pause = min(pause * 2, LONGEST_PAUSE)

    def _post(self, body: bytes) -> httpx.Response | None:
        timeout = min(REQUEST_SECONDS, max(self.deadline - time.monotonic(), 0.1))
        try:
            return self._client.post(self._url, content=body, timeout=timeout)
        except httpx.HTTPError as error:
            self._say(f"no answer from {self._url}: {error!r}")
            return None

    def _say(self, trouble: str) -> None:
        """Put a change of fortune on stderr once, not at every try."""
        if trouble != self._trouble:
            print(f"{self.folder.name}: {trouble or 'delivering again'}; nothing is lost, it waits in the spool", file=sys.stderr)
            self._trouble = trouble

    def _pause(self, seconds: float) -> bool:
        """Wait; True when asked to stop, or when the deadline comes first."""
        if self.stop.wait(max(0.0, min(seconds, self.deadline - time.monotonic()))):
            return True
        return time.monotonic() >= self.deadline

    def _keep_refused(self, sealed: Sealed, body: bytes, answer: httpx.Response) -> None:
        self.refused += 1
        path = self.folder / f"refused-{sealed.sequence}.batch"
        path.write_bytes(body)
        print(f"batch {sealed.sequence} was refused with {answer.status_code} and kept as {path}: {answer.text[:500]}", file=sys.stderr)


def _retry_after(answer: httpx.Response | None) -> float | None:
    """Seconds the server asked for, from either form of the header (RFC 9110 10.2.3)."""
    value = answer.headers.get("retry-after") if answer is not None else None
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        moment = email.utils.parsedate_to_datetime(value) if email.utils.parsedate(value) else None
        seconds = moment.timestamp() - time.time() if moment else 1.0
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)
