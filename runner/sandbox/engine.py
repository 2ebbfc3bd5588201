"""The Docker engine's API as this package uses it: streams that can be cut, and errors with a name."""

import http.client
import json
import select
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import requests
import urllib3
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

import docker
from runner.sandbox.reasons import Reason, SandboxFailure

# What the engine's being away, restarting or refusing can raise. Not OSError: a full disk of ours is no fault of the engine's.
ENGINE_ERRORS = (
    DockerException,
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,
    http.client.HTTPException,
    ConnectionError,
    EOFError,
)
READ = 64 << 10
TICK = 0.5
_POOL_TEXTS = ("non-overlapping ipv4 address pool", "address pools have been fully subnetted", "no available ipv4 addresses")


class Stopped(Exception):
    """The caller gave up: its deadline passed or its task was cancelled."""


class Engine(docker.APIClient):
    """The SDK's client, plus an exec, a build and an archive that end when they are told to."""

    def __init__(self, base_url: str | None, timeout: float):
        environment = docker.utils.kwargs_from_env()
        if base_url:
            environment["base_url"] = base_url
        super().__init__(version="auto", timeout=timeout, **environment)

    def exec_output(self, exec_id: str, stopped) -> Iterator[bytes]:
        """The multiplexed output of an exec until it ends. `stopped()` is asked at least every half second."""
        url = self._url("/exec/{0}/start", exec_id)
        headers = {"Connection": "Upgrade", "Upgrade": "tcp"}
        response = self._post_json(url, headers=headers, data={"Tty": False, "Detach": False}, stream=True)
        try:
            self._raise_for_status(response)
            yield from self._packets(response, exec_id, stopped)
        finally:
            response.close()

    def _packets(self, response, exec_id: str, stopped) -> Iterator[bytes]:
        reader = response.raw._fp.fp  # the SDK reads the same attribute; bytes after the headers may already wait in this buffer
        connection = self._get_raw_response_socket(response)
        connection = getattr(connection, "_sock", connection)
        connection.setblocking(False)
        if waiting := reader.read1(READ):
            yield waiting
        quiet = 0
        while True:
            if stopped():
                raise Stopped
            if not select.select([connection], [], [], TICK)[0]:
                quiet += 1
                # A child in the background may hold the stream open long after the command itself ended.
                if quiet % 2 == 0 and not self.exec_inspect(exec_id)["Running"]:
                    return
                continue
            quiet, data = 0, connection.recv(READ)
            if not data:
                return
            yield data

    def build_events(self, context: BinaryIO, params: Mapping[str, Any], timeout: float, stopped) -> Iterator[dict]:
        """Progress of a build. Closing the connection is what ends one, so a watcher does that once `stopped()`."""
        headers = {"Content-Type": "application/x-tar"}
        # The SDK's own build() hides the connection, and a step that prints nothing would then outlive every deadline.
        response = self._post(self._url("/build"), data=context, params=params, headers=headers, stream=True, timeout=timeout)
        with _cut_when(response, stopped) as cut:
            try:
                self._raise_for_status(response)
                yield from self._stream_helper(response, decode=True)
            except (*ENGINE_ERRORS, OSError, ValueError):
                if cut.is_set():
                    raise Stopped from None
                raise
            if cut.is_set():
                raise Stopped

    @contextmanager
    def archive(self, container: str, path: str):
        """A path of a container as chunks of a tar; leaving early closes the connection, nothing more is read."""
        response = self._get(self._url("/containers/{0}/archive", container), params={"path": path}, stream=True)
        try:
            self._raise_for_status(response)
            yield response.iter_content(READ)
        finally:
            response.close()

    def sizes(self, filters: Mapping[str, list[str]]) -> dict[str, int]:
        """Bytes written to the root file system, by container id."""
        params = {"size": 1, "filters": json.dumps(filters)}
        rows = self._result(self._get(self._url("/containers/json"), params=params), True)
        return {row["Id"]: row.get("SizeRw", 0) for row in rows}


@contextmanager
def _cut_when(response, stopped):
    done, cut = threading.Event(), threading.Event()

    def watch():
        while not done.wait(TICK):
            if stopped():
                cut.set()
                _shut(response)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield cut
    finally:
        done.set()
        watcher.join()
        response.close()


def _shut(response) -> None:
    try:
        connection = response.raw._fp.fp.raw
        getattr(connection, "_sock", connection).shutdown(socket.SHUT_RDWR)
    except (OSError, AttributeError):
        response.close()


def wedged(error: BaseException) -> bool:
    """Whether the engine took a request and never answered; the SDK wraps some of these."""
    return isinstance(error, requests.exceptions.ReadTimeout) or "read timed out" in str(error).lower()


def unreachable(error: BaseException) -> bool:
    """Whether the engine was not there to answer: not started, or gone in the middle."""
    return isinstance(error, ENGINE_ERRORS) and not isinstance(error, APIError) and not wedged(error)


def failure(error: Exception, otherwise: Reason, doing: str) -> SandboxFailure:
    """What an error of the engine means, by name; `otherwise` for an ordinary refusal."""
    if isinstance(error, SandboxFailure):
        return error
    if wedged(error):
        return SandboxFailure(Reason.DAEMON_WEDGED, f"{doing}: the container engine took the request and does not answer; restart it")
    if unreachable(error):
        return SandboxFailure(Reason.DAEMON_UNREACHABLE, f"{doing}: the container engine does not answer: {error}; start dockerd")
    text = str(getattr(error, "explanation", None) or error)
    if any(known in text.lower() for known in _POOL_TEXTS):
        remedy = "give the engine small pools (default-address-pools, /24 slices of 172.16.0.0/12) and restart it while no container runs"
        return SandboxFailure(Reason.ADDRESS_POOL_EXHAUSTED, f"{doing}: {text}; {remedy}")
    if isinstance(error, ImageNotFound):
        return SandboxFailure(Reason.IMAGE_MISSING, f"{doing}: {text}; build the image first")
    return SandboxFailure(otherwise, f"{doing}: {text}")


def gone(error: BaseException) -> bool:
    return isinstance(error, NotFound)


class EventWatch:
    """Follows the engine's event stream on a thread: which containers ran out of memory, and how often the engine went away."""

    def __init__(self, engine: Engine, labels: list[str]):
        self.engine, self.labels = engine, labels
        self.out_of_memory: set[str] = set()
        self.interruptions = 0
        self._closed = threading.Event()
        self._stream = self._subscribe()
        self._thread = threading.Thread(target=self._follow, name="docker-events", daemon=True)
        self._thread.start()

    def _subscribe(self):
        return self.engine.events(filters={"type": "container", "event": ["oom"], "label": self.labels}, decode=True)

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                for event in self._stream:
                    self.out_of_memory.add(event["Actor"]["ID"])
            except (*ENGINE_ERRORS, OSError, ValueError):
                pass
            if self._closed.is_set():
                return
            self.interruptions += 1
            self._reconnect()

    def _reconnect(self) -> None:
        while not self._closed.wait(TICK):
            try:
                self._stream = self._subscribe()
                return
            except (*ENGINE_ERRORS, OSError):
                continue

    def ran_out(self, container: str, patience: float = 0.5) -> bool:
        """Whether the kernel ended something of this container for its memory; the event may come a moment after the exit."""
        deadline = time.monotonic() + patience
        while container not in self.out_of_memory and time.monotonic() < deadline:
            time.sleep(0.02)
        return container in self.out_of_memory

    def forget(self, container: str) -> None:
        self.out_of_memory.discard(container)

    def close(self) -> None:
        self._closed.set()
        try:
            self._stream.close()
        except (OSError, DockerException, AttributeError):
            pass
