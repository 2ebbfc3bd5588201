"""The driver's side of the control endpoints: claim, heartbeat, state, checkpoints, exit, bank.

State, checkpoints and exit are fenced: a 409 means another attempt owns the run, and this process must end. They are sent in order by
a thread that tries again until each was taken, so that an outage delays them and never stops training.
"""

import os
import queue
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import psutil


TRY_SECONDS = 60.0
FENCED = {409, 410}
# The control plane reads a whole checkpoint again before it says yes.
SLOW = {"checkpoints": 300.0}


class ClaimRefused(RuntimeError):
    """Another process claimed this attempt, or the code is wrong: this process must not run."""


class Fenced(RuntimeError):
    """The attempt is closed or superseded."""


class Unreachable(RuntimeError):
    """The control plane did not answer in time."""


class Control:
    """Talks for one attempt. Methods that change the run are queued; `flush` waits for them."""

    def __init__(self, base: str, attempt: str):
        self.base = f"{base.rstrip('/')}/api/ingest/{attempt}"
        self.fenced = threading.Event()
        self._client = httpx.Client(trust_env=False)
        self._outbox: queue.Queue = queue.Queue()
        self._idle = threading.Event()
        self._idle.set()
        threading.Thread(target=self._send_all, name="control", daemon=True).start()

    @property
    def batches_url(self) -> str:
        return f"{self.base}/batches"

    def claim(self, code: str) -> dict[str, Any]:
        """Take the attempt; the token in the answer is used from here on. Raises ClaimRefused, Unreachable."""
        own = psutil.Process()
        body = {"code": code, "host": socket.gethostname(), "pid": own.pid, "started": own.create_time()}
        answer = self._insist("claim", body)
        if answer.is_error:
            raise ClaimRefused(f"claim answered {answer.status_code}: {_detail(answer)}")
        reply = answer.json()
        self.token = reply["token"]
        self._client.headers["Authorization"] = f"Bearer {self.token}"
        return reply

    def heartbeat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Say the run is alive; the answer may carry a command. Raises Fenced, Unreachable."""
        answer = self._post("heartbeat", body)
        if answer is None or answer.status_code >= 500 or answer.status_code == 429:
            raise Unreachable("heartbeat found no answer")
        self._raise_if_fenced(answer)
        return answer.json() if answer.is_success else {}

    def state(self, state: str, phase: str, first_step: int | None = None) -> None:
        self._outbox_put("state", {"state": state, "phase": phase, "first_step": first_step})

    def checkpoint(self, **row: Any) -> None:
        """Register a checkpoint's progress: writing, complete, broken."""
        self._outbox_put("checkpoints", row)

    def anchors(self, results: list[dict[str, Any]], finished: bool = False) -> None:
        """Hand over what anchor agents earned; `finished` says that no more will come."""
        self._outbox_put("anchors", {"results": results, "finished": finished})

    def warmed(self, results: list[dict[str, Any]]) -> None:
        """Hand over how tasks came through on the node that is being warmed."""
        self._outbox_put("warmed", {"results": results})

    def regrades(self, results: list[dict[str, Any]]) -> None:
        """Hand over what saved episodes were graded once more."""
        self._outbox_put("regrades", {"results": results})

    def exit(self, record: dict[str, Any]) -> None:
        self._outbox_put("exit", record)

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until everything queued was taken; False when it was not."""
        return self._idle.wait(timeout)

    def bank(self, expected: str, cache: Path) -> bytes:
        """The bank's file, from the cache when it is there. The caller checks that its content has the digest `expected`."""
        path = cache / "banks" / f"{expected}.zst"
        if path.exists():
            return path.read_bytes()
        answer = self._insist("bank", None)
        if answer.is_error:
            raise Unreachable(f"bank answered {answer.status_code}: {_detail(answer)}")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_bytes(answer.content)
        os.replace(temporary, path)
        return answer.content

    def _outbox_put(self, path: str, body: dict[str, Any]) -> None:
        self._idle.clear()
        self._outbox.put((path, body))

    def _send_all(self) -> None:
        while True:
            path, body = self._outbox.get()
            pause = 0.5
            while not self.fenced.is_set():
                answer = self._post(path, body)
                if answer is not None and answer.status_code < 500 and answer.status_code != 429:
                    self._note(path, answer)
                    break
                time.sleep(pause)
                pause = min(pause * 2, 15.0)
            if self._outbox.empty():
                self._idle.set()

    def _note(self, path: str, answer: httpx.Response) -> None:
        if answer.status_code in FENCED:
            self.fenced.set()
        elif answer.is_error:
            print(f"{path} was refused with {answer.status_code}: {_detail(answer)}", file=sys.stderr)

    def _insist(self, path: str, body: dict | None) -> httpx.Response:
        """Ask until there is an answer, for TRY_SECONDS."""
        end, pause = time.monotonic() + TRY_SECONDS, 0.5
        while True:
            answer = self._post(path, body) if body is not None else self._get(path)
            if answer is not None and answer.status_code < 500 and answer.status_code != 429:
                return answer
            if time.monotonic() + pause > end:
                raise Unreachable(f"{self.base}/{path} did not answer within {TRY_SECONDS:.0f} s")
            time.sleep(pause)
            pause = min(pause * 2, 5.0)

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response | None:
        try:
            return self._client.post(f"{self.base}/{path}", json=body, timeout=SLOW.get(path, 10.0))
        except httpx.HTTPError:
            return None

    def _get(self, path: str) -> httpx.Response | None:
        try:
            return self._client.get(f"{self.base}/{path}", timeout=60.0)
        except httpx.HTTPError:
            return None

    def _raise_if_fenced(self, answer: httpx.Response) -> None:
        if answer.status_code in FENCED:
            self.fenced.set()
            raise Fenced(_detail(answer))


class NoControl:
    """A run without a control plane: nothing to claim, nobody to tell."""

    def __init__(self):
        self.fenced = threading.Event()

    def heartbeat(self, body: dict[str, Any]) -> dict[str, Any]:
        return {}

    def state(self, state: str, phase: str, first_step: int | None = None) -> None:
        pass

    def checkpoint(self, **row: Any) -> None:
        pass

    def anchors(self, results: list[dict[str, Any]], finished: bool = False) -> None:
        pass

    def warmed(self, results: list[dict[str, Any]]) -> None:
        pass

    def regrades(self, results: list[dict[str, Any]]) -> None:
        pass

    def exit(self, record: dict[str, Any]) -> None:
        pass

    def flush(self, timeout: float = 30.0) -> bool:
        return True


def _detail(answer: httpx.Response) -> str:
    try:
        problem = answer.json()
        return f"{problem.get('title', '')}: {problem.get('detail', '')}"
    except ValueError:
        return answer.text[:200]
