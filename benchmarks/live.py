"""From `emit` in a training process to the frame in a viewer's socket: a real emitter, the real server, real WebSocket clients.

The emitter lives in a process of its own. Every viewer follows the same run, which is the hardest case for one room. No peer pushes:
MLflow, Aim and trackio read again at intervals, so that there is no figure to set beside this one.
"""

import asyncio
import multiprocessing
import tempfile
import time
from pathlib import Path

from benchmarks.ingest import make_attempt
from benchmarks.record import medians, publish, record
from benchmarks.server import serving
from benchmarks.sockets import Crowd, Watched, percentiles

FEW, MANY = 50, 200
SERIES, STEPS_A_SECOND, SECONDS, REPETITIONS = 20, 4, 12.0, 5
CATCH_UP_S = 20.0


def main() -> None:
    publish(measure())


def measure(seconds: float = SECONDS, repetitions: int = REPETITIONS, few: int = FEW, many: int = MANY) -> dict:
    """Targets: p95 of at most 1 s in 50 sockets and 2 s in 200, no step missing in any."""
    with serving() as server:
        cookie = f"sessionid={server.session()}"
        rounds = [{str(count): one_round(server.url, cookie, count, seconds) for count in (few, many)} for _ in range(repetitions)]
    found = medians(rounds)
    for count in (few, many):  # a gap in one repetition is a gap: no median hides it
        found[str(count)]["steps_missing"] = sum(one[str(count)]["steps_missing"] for one in rounds)
    settings = {
        "sockets": few,
        "series": SERIES,
        "steps_a_second": STEPS_A_SECOND,
        "seconds": seconds,
        "repetitions": repetitions,
        "web_workers": 1,
        "peer": "none pushes",
        "target": "p95 at most 1 s in 50 sockets and 2 s in 200, 0 steps missing",
    }
    return record("live", found[str(few)]["p95_s"], None, "s, p95", settings, found, lower_is_better=True)


def one_round(url: str, cookie: str, sockets: int, seconds: float) -> dict:
    attempt = make_attempt(f"{sockets} sockets")
    names = tuple(f"metric/{index}" for index in range(SERIES))
    return asyncio.run(watch(url, cookie, Watched(str(attempt.run_id), 0, names), attempt, sockets, seconds))


async def watch(url: str, cookie: str, watched: Watched, attempt, sockets: int, seconds: float) -> dict:
    steps = round(seconds * STEPS_A_SECOND)
    async with Crowd(url, cookie, [watched] * sockets) as crowd:
        context = multiprocessing.get_context("spawn")
        emitting = context.Process(target=emit, args=(url, attempt.pk, attempt.token, watched.series, steps))
        emitting.start()
        while emitting.is_alive():
            await asyncio.sleep(0.2)
        if emitting.exitcode:
            raise RuntimeError(f"the emitter ended with {emitting.exitcode}")
        await crowd.wait_for_all({watched.run: steps}, CATCH_UP_S)
        counts = {name: crowd.count(name) for name in ("repeated", "resets", "losses")}
        return {
            **percentiles(crowd.lags),
            "frames_of_steps": len(crowd.lags),
            "steps_missing": crowd.missing({watched.run: steps}),
            **counts,
        }


def emit(url: str, attempt: int, token: str, names: tuple[str, ...], steps: int) -> None:
    """A training loop that only reports."""
    from runner.reporting.emitter import Emitter

    with tempfile.TemporaryDirectory() as folder:
        emitter = Emitter(Path(folder), "driver", url=f"{url}/api/ingest/{attempt}/batches", token=token)
        began = time.monotonic()
        for step in range(steps):
            time.sleep(max(0.0, began + step / STEPS_A_SECOND - time.monotonic()))
            emitter.emit_points(step, dict.fromkeys(names, float(step)))
        if not emitter.close(30):
            raise RuntimeError("not everything was delivered within 30 s")


if __name__ == "__main__":
    main()
