"""A page that watches a run through everything: it reconnects from its cursor, as the real one does, and remembers what it was sent."""

import json
import threading
import time

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

from tests.chaos.house import ChaosHouse

WATCHED = "timing_s/step"
AGAIN_S = 0.5


class Follower(threading.Thread):
    """`steps` holds every (attempt, step) that came; `heard` the moment of the newest frame; `losses` counts lost connections."""

    def __init__(self, house: ChaosHouse, run: str):
        super().__init__(name="follower", daemon=True)
        self.url = house.url.replace("http://", "ws://") + "/ws/live"
        self.headers = {"Cookie": "; ".join(f"{name}={value}" for name, value in house.cookies.items())}
        self.origin, self.run_id = house.url, run
        self.cursor = self.losses = self.resets = 0
        self.steps: set[tuple[int, int]] = set()
        self.heard = 0.0
        self.ended = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                self.watch()
            except (OSError, ConnectionClosed, InvalidHandshake, TimeoutError):
                self.losses += 1
                self.ended.wait(AGAIN_S)

    def watch(self) -> None:
        with connect(self.url, origin=self.origin, additional_headers=self.headers, proxy=None, open_timeout=5, max_size=None) as socket:
            topic = {"topic": "run", "run": self.run_id, "cursor": self.cursor, "series": [WATCHED]}
            socket.send(json.dumps({"type": "subscribe", "topics": [topic]}))
            while not self.ended.is_set():
                try:
                    self.take(json.loads(socket.recv(timeout=1.0)))
                except TimeoutError:
                    continue

    def take(self, message: dict) -> None:
        if message["type"] == "reset":
            self.resets += 1
        if message["type"] != "frame":
            return
        self.heard, self.cursor = time.time(), message["cursor"]
        self.steps |= {(attempt, step) for attempt, step, *_ in message["points"].get(WATCHED, ())}

    def close(self) -> None:
        self.ended.set()
        self.join(10)
