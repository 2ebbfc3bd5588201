"""A control plane small enough to fail on command: real sockets, real batches, the ingest rules of (emitter, sequence)."""

import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from runner.contract.events import InvalidBatch, decode_batch


class Ingest:
    """Keeps the first delivery of each (emitter, sequence). `failing` maps a request's number to an answer, or is a constant answer."""

    def __init__(self):
        self.batches, self.repeated, self.requests = {}, 0, 0
        self.answer = lambda number: None
        self.hang = 0.0
        self.lose_answers = set()
        self._mutex = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/api/ingest/a/batches"

    def take(self, body: bytes) -> tuple[int, dict]:
        with self._mutex:
            self.requests += 1
            number = self.requests
        time.sleep(self.hang)
        if (scripted := self.answer(number)) is not None:
            return scripted
        try:
            batch = decode_batch(body)
        except InvalidBatch:
            return 400, {}
        with self._mutex:
            key = (batch.emitter, batch.sequence)
            self.repeated += key in self.batches
            self.batches.setdefault(key, batch)
        return (0 if number in self.lose_answers else 200), {}

    def points(self) -> Counter:
        """How often each (name, step, value) was taken over distinct batches."""
        return Counter(
            (batch.points.names[series], int(step), float(value))
            for batch in list(self.batches.values())
            for series, step, value in zip(batch.points.series, batch.points.step, batch.points.value, strict=True)
        )

    def wait_for(self, condition, seconds=10.0):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not within {seconds} s; {self.requests} requests, {len(self.batches)} batches"
            time.sleep(0.01)

    def _handler(ingest):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                status, headers = ingest.take(self.rfile.read(int(self.headers["Content-Length"])))
                if status == 0:  # taken, but the answer never arrives
                    self.connection.close()
                    return
                self.send_response(status)
                for name, value in {**headers, "Content-Length": "0"}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, *arguments):
                pass

        return Handler


@pytest.fixture
def ingest():
    server = Ingest()
    yield server
    server.server.shutdown()
    server.server.server_close()
