"""Outages under load, for the proof of kills: the web process, the database, the broker, and an emitter that nobody listens to."""

import json
import socket
import tempfile
import threading
import time
from pathlib import Path

import httpx
import psutil
import redis

from controlplane.env import read_environment_file
from runner.reporting.emitter import Emitter
from tests.chaos.follower import Follower
from tests.chaos.house import ChaosHouse, hold_down, until, visible_steps
from tests.chaos.kills import delivers

DATABASE_AWAY_S = 20.0
CATCH_UP_S = 60.0
SOCKET_BACK_S = 5.0
EMITTERS, POINTS_PER_S = 4, 500
SLOWDOWN, MEMORY_BYTES, CLOSE_S = 0.01, 64 << 20, 5.0
STEP_S, POINTS_PER_STEP = 0.1, 20


# ---------------------------------------------------------------- on a house with a run
def web_away(house: ChaosHouse, run: str, seconds: float) -> dict:
    """Nothing is declared lost, everything is delivered afterwards."""
    before = house.step(run)
    let_go = hold_down(house, "web", seconds)
    until(house.web_answers, "the web process answers again")
    answering = time.time()
    # What waits in the spool grows with the absence, and the run goes on meanwhile.
    until(lambda: delivers(house, run, let_go), "what the run reported meanwhile arrives", max(CATCH_UP_S, seconds / 2))
    caught_up = time.time()
    silent = house.rows("SELECT 1 FROM runs_runevent WHERE run_id = %s AND kind = 'contact_lost'", run)
    assert not silent, "our own absence was taken for the runner's"
    assert house.step(run) > before, "the run did not go on"
    return {"away_s": seconds, "true_s": round(answering - let_go, 1), "catch_up_s": round(caught_up - answering, 1)}


def database_away(house: ChaosHouse, run: str, seconds: float = DATABASE_AWAY_S) -> dict:
    """Under EMITTERS × POINTS_PER_S: 503 with Retry-After, a spool, and all of it in CATCH_UP_S afterwards."""
    connection = json.loads((house.attempt_folder(run) / "connection.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        load, asked = Load(Path(folder), connection), Asked(connection)
        time.sleep(3.0)
        let_go = hold_down(house, "postgres", seconds)
        until(house.web_answers, "the web process has its database again")
        answering, emitted = time.time(), load.end()
        until(lambda: load.delivered, "the spools are empty", CATCH_UP_S)
        caught_up, refusals = time.time(), asked.end()
    assert refusals, "nobody was refused: the database was not away"
    without = sorted({answer for answer in refusals if answer[0] != 503 or not answer[1]})
    assert not without, f"refused otherwise than by 503 with Retry-After: {without}"
    arrived = house.rows(COUNT, run)[0]["points"]
    assert arrived == emitted, f"{emitted} points were emitted, {arrived} arrived"
    told = {"away_s": seconds, "true_s": round(answering - let_go, 1), "catch_up_s": round(caught_up - answering, 1)}
    return {**told, "refusals": len(refusals), "points": emitted}


COUNT = """SELECT count(*) AS points FROM telemetry_point JOIN telemetry_series ON telemetry_series.id = series_id
           WHERE run_id = %s AND name LIKE 'outage/%%'"""


def broker_flushed(house: ChaosHouse, run: str) -> dict:
    """Sockets hear again within SOCKET_BACK_S, and no step is missing in what they were sent."""
    follower = Follower(house, run)
    until(lambda: follower.heard, "the page hears")
    redis.Redis.from_url(read_environment_file(house.home / "environment")["REDIS_URL"]).flushall()
    flushed = time.time()
    until(lambda: follower.heard > flushed, "the page hears after the flush", SOCKET_BACK_S)
    heard, steps = follower.heard, set(visible_steps(house, run))
    until(lambda: {step for _, step in follower.steps} >= steps, "the page was sent every step", SOCKET_BACK_S)
    follower.close()
    return {"true_s": round(heard - flushed, 2), "steps": len(steps)}


class Load:
    """Emitters that report under the run's own attempt until `end`, which returns how many points they were given."""

    def __init__(self, folder: Path, connection: dict):
        self.emitters = [Emitter(folder, "load", url=connection["url"], token=connection["token"]) for _ in range(EMITTERS)]
        self.given, self.over = [0] * EMITTERS, threading.Event()
        self.threads = [threading.Thread(target=self.emit, args=[index], daemon=True) for index in range(EMITTERS)]
        for thread in self.threads:
            thread.start()

    def emit(self, index: int) -> None:
        names = [f"outage/{index}/{number}" for number in range(POINTS_PER_S // 10)]
        while not self.over.wait(0.1):
            step = self.given[index] // len(names)
            self.emitters[index].emit_points(step, dict.fromkeys(names, float(step)))
            self.given[index] += len(names)

    def end(self) -> int:
        self.over.set()
        for thread in self.threads:
            thread.join()
        self.closing = [threading.Thread(target=emitter.close, args=[CATCH_UP_S], daemon=True) for emitter in self.emitters]
        for thread in self.closing:
            thread.start()
        return sum(self.given)

    @property
    def delivered(self) -> bool:
        return not any(emitter.folder.exists() for emitter in self.emitters)


class Asked(threading.Thread):
    """Asks for the run every half second as a runner does, and remembers each refusal: (status, Retry-After)."""

    def __init__(self, connection: dict):
        super().__init__(daemon=True)
        self.refusals: list[tuple[int, str | None]] = []
        self.over = threading.Event()
        base, headers = connection["url"].rpartition("/")[0], {"Authorization": f"Bearer {connection['token']}"}
        self.client = httpx.Client(base_url=base, headers=headers, trust_env=False, timeout=30.0)
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.5):
            answer = self.client.get("/bank")
            if answer.status_code >= 400:
                self.refusals.append((answer.status_code, answer.headers.get("Retry-After")))

    def end(self) -> list[tuple[int, str | None]]:
        self.over.set()
        self.join(30.0)
        return self.refusals


# ---------------------------------------------------------------- an emitter alone
def emitter_hung() -> dict:
    """A server that takes the connection and never answers: `close` returns in time and the records stay."""
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.TemporaryDirectory() as folder:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/api/ingest/1/batches"
        emitter = Emitter(Path(folder), "driver", url=url, token="t")
        emitter.emit_points(1, {"loss": 1.0})
        time.sleep(1.0)
        began = time.monotonic()
        delivered = emitter.close()
        took = time.monotonic() - began
        assert took <= CLOSE_S + 0.2 and not delivered and any(emitter.folder.glob("*.log")), f"close took {took:.1f} s"
    return {"close_s": round(took, 2)}


def emitter_without_api(seconds: float) -> dict:
    """A trainer that reports POINTS_PER_STEP every STEP_S to nobody: what that costs it, and how much memory it takes.

    The cost is processor time, the trainer's own and the courier's, as a share of the time of the steps: all that training could lose,
    whatever else the machine does meanwhile.
    """
    with socket.create_server(("127.0.0.1", 0)) as free, tempfile.TemporaryDirectory() as folder:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/api/ingest/1/batches"
        free.close()
        emitter = Emitter(Path(folder), "driver", url=url, token="t")
        courier = time.pthread_getcpuclockid(emitter._thread.ident)
        before, began, own, step, highest = psutil.Process().memory_info().rss, time.monotonic(), 0.0, 0, 0
        while (spent := time.monotonic() - began) < seconds:
            own -= time.thread_time()
            emitter.emit_points(step, {f"metric/{number}": float(step) for number in range(POINTS_PER_STEP)})
            own += time.thread_time()
            step += 1
            time.sleep(max(0.0, step * STEP_S - spent))
            highest = max(highest, psutil.Process().memory_info().rss - before) if step % 100 == 0 else highest
        cost = (own + time.clock_gettime(courier)) / (step * STEP_S)
        emitter.close()
    assert emitter.dropped == 0, f"{emitter.dropped} records were dropped"
    assert cost < SLOWDOWN, f"training could lose {cost:.2%}"
    assert highest < MEMORY_BYTES, f"memory grew by {highest >> 20} MiB"
    figures = {"cost": round(cost, 5), "emit_us": round(1e6 * own / step, 1), "memory_growth_mib": round(highest / 2**20, 1)}
    return {"seconds": seconds, "steps": step, "points_per_s": round(POINTS_PER_STEP / STEP_S), **figures}
