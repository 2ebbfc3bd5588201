"""Points a second through the ingest endpoint: real HTTP, durable commits, emitters that encode while they send.

`main()` prints one JSON line for 20 series a batch, with the figure for 2,000 series beside it.
"""

import json
import threading
import time

import httpx
import numpy as np

from benchmarks.server import machine, serving
from runner.contract.events import CONTENT_TYPE, Batch, Points, encode_batch

EMITTERS = 4
POINTS_A_BATCH = 1000
SECONDS = 15.0


def main(seconds: float = SECONDS) -> dict:
    """Measure and print; returns the record."""
    with serving() as url:
        few, many = measure(url, 20, seconds), measure(url, 2000, seconds)
    record = {
        "name": "ingest",
        "ours": few["points_per_second"],
        "peer": None,
        "ratio": None,
        "unit": "points/s",
        "settings": {
            "emitters": EMITTERS,
            "points_a_batch": POINTS_A_BATCH,
            "series_a_batch": 20,
            "seconds": seconds,
            "fsync": True,
            **machine(),
        },
        "also": {"20 series": few, "2000 series": many},
    }
    print(json.dumps(record))
    return record


def measure(url: str, series: int, seconds: float) -> dict:
    """Send for `seconds` from EMITTERS runs at once; every answer must have accepted every point."""
    attempts = [make_attempt(series) for _ in range(EMITTERS)]
    stop_at, waits = time.monotonic() + seconds, []
    threads = [threading.Thread(target=emit, args=(url, attempt, series, stop_at, waits)) for attempt in attempts]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - began
    return {
        "points_per_second": round(len(waits) * batch_points(series) / elapsed),
        "batches": len(waits),
        "ack_ms": {"p50": round(float(np.percentile(waits, 50)) * 1000, 1), "p95": round(float(np.percentile(waits, 95)) * 1000, 1)},
        "points_a_batch": batch_points(series),
    }


def batch_points(series: int) -> int:
    """A batch holds whole steps: one point of each series a step."""
    return max(POINTS_A_BATCH // series, 1) * series


def make_attempt(series: int):
    """A run with a claimed attempt, as the driver finds it after its claim."""
    from controlplane.accounts.models import Project, Team
    from controlplane.accounts.tokens import new_token
    from controlplane.runs.models import Attempt, Run

    team, _ = Team.objects.get_or_create(slug="bench", defaults={"name": "Bench"})
    project, _ = Project.objects.get_or_create(team=team, slug="default", defaults={"name": "Default"})
    run = Run.objects.create(
        project=project,
        state="active",
        document={},
        config=b"{}",
        config_hash="",
        name=f"{series} series",
        method="grpo",
        model="m",
        environment="quiz",
    )
    token, token_hash = new_token()
    attempt = Attempt.objects.create(
        run=run, number=1, state="running", submission_id=f"bench-{run.pk}", claim_hash="", token_hash=token_hash
    )
    attempt.token = token
    return attempt


def emit(url: str, attempt, series: int, stop_at: float, waits: list[float]) -> None:
    """Send batch after batch and note how long each acknowledgement took."""
    names = [f"metric/{index}" for index in range(series)]
    steps, random = batch_points(series) // series, np.random.default_rng(attempt.pk)
    headers = {"Authorization": f"Bearer {attempt.token}", "Content-Type": CONTENT_TYPE}
    with httpx.Client(headers=headers, timeout=60) as client:
        sequence = 0
        while time.monotonic() < stop_at:
            step = np.repeat(np.arange(sequence * steps, (sequence + 1) * steps), series)
            columns = np.tile(np.arange(series, dtype="int32"), steps), step, random.normal(size=len(step)), np.full(len(step), time.time())
            body = encode_batch(Batch("bench", sequence, Points(names, *columns)))
            began = time.monotonic()
            answer = client.post(f"{url}/api/ingest/{attempt.pk}/batches", content=body)
            waits.append(time.monotonic() - began)
            if answer.status_code != 200 or answer.json()["accepted"] != len(step):
                raise RuntimeError(f"batch {sequence}: {answer.status_code} {answer.text}")
            sequence += 1


if __name__ == "__main__":
    main()
