"""Real WebSocket clients that watch runs, and note when each step reached them and whether any never did."""

import asyncio
import time
from array import array
from dataclasses import dataclass
from typing import Self

import numpy as np
import orjson
import websockets

PING_S = 20.0


@dataclass(frozen=True)
class Watched:
    """A run as a page subscribes to it. Steps are those of `series[0]`, which every step carries."""

    run: str
    cursor: int
    series: tuple[str, ...]


class Socket:
    """One page's socket. `lags` are seconds from emit to frame, `seen` has a mark at each step that arrived."""

    def __init__(self, watched: Watched, lags: array):
        self.watched, self.lags = watched, lags
        self.seen = bytearray()
        self.repeated = self.resets = self.losses = 0
        self.subscribed = asyncio.Event()
        self.cursor = watched.cursor

    async def live(self, url: str, cookie: str) -> None:
        """Stays connected until it is cancelled; a lost connection is counted and taken up again from the cursor, as the page does."""
        while True:
            try:
                headers = {"Cookie": cookie, "Origin": url.replace("ws", "http", 1).removesuffix("/ws/live")}
                async with websockets.connect(url, additional_headers=headers, max_size=None, ping_interval=PING_S) as connection:
                    await connection.send(orjson.dumps({"type": "subscribe", "topics": [self.topic()]}).decode())
                    self.subscribed.set()
                    async for message in connection:
                        self.receive(orjson.loads(message))
            except (OSError, websockets.WebSocketException):
                pass
            self.losses += 1
            await asyncio.sleep(1)

    def topic(self) -> dict:
        return {"topic": "run", "run": self.watched.run, "cursor": self.cursor, "series": list(self.watched.series)}

    def receive(self, message: dict) -> None:
        if message["type"] == "reset":
            self.resets += 1
        if message["type"] != "frame":
            return
        self.cursor = message["cursor"]
        now = time.time()
        for _, step, _, wall in message["points"].get(self.watched.series[0], ()):
            self.arrived(step, now - wall)

    def arrived(self, step: int, lag: float) -> None:
        if step >= len(self.seen):
            self.seen.extend(bytes(step + 1 - len(self.seen)))
        if self.seen[step]:
            self.repeated += 1
        else:
            self.seen[step] = 1
            self.lags.append(lag)

    def missing(self, first: int, stop: int) -> int:
        """Steps of [first, stop) that never arrived."""
        return stop - first - sum(self.seen[first:stop])


class Crowd:
    """Many sockets of one process."""

    def __init__(self, url: str, cookie: str, watched: list[Watched]):
        self.url, self.cookie = f"{url.replace('http', 'ws', 1)}/ws/live", cookie
        self.lags = array("f")
        self.sockets = [Socket(one, self.lags) for one in watched]
        self.tasks: list[asyncio.Task] = []

    async def __aenter__(self) -> Self:
        self.tasks = [asyncio.create_task(socket.live(self.url, self.cookie)) for socket in self.sockets]
        await asyncio.wait_for(asyncio.gather(*(socket.subscribed.wait() for socket in self.sockets)), 60)
        return self

    async def __aexit__(self, *_) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def missing(self, steps: dict[str, int]) -> int:
        """Steps that some socket never got, given how many each run emitted; the sockets were there before the first."""
        return sum(socket.missing(0, steps[socket.watched.run]) for socket in self.sockets)

    async def wait_for_all(self, steps: dict[str, int], seconds: float) -> None:
        """Returns when nothing is missing, or when time is up."""
        deadline = time.monotonic() + seconds
        while self.missing(steps) and time.monotonic() < deadline:
            await asyncio.sleep(0.2)

    def count(self, name: str) -> int:
        return sum(getattr(socket, name) for socket in self.sockets)


def percentiles(lags) -> dict[str, float]:
    """Seconds; every figure None when nothing arrived."""
    if not len(lags):
        return dict.fromkeys(("p50_s", "p95_s", "p99_s", "most_s"))
    found = np.percentile(np.asarray(lags), [50, 95, 99, 100])
    return dict(zip(("p50_s", "p95_s", "p99_s", "most_s"), (round(float(one), 3) for one in found), strict=True))
