"""Points a second over HTTP into durable Postgres, beside MLflow's log_batch on the same server and beside the local peers.

Both servers stand at once, one web process each, and take turns within every repetition. Their clients are the same threads of this
process; MLflow's bodies are encoded with orjson, which costs less than its own client does. Aim and trackio write local files without
HTTP, so that their figures say only what the peers' users get.
"""

import tempfile
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import httpx
import numpy as np
import orjson

from benchmarks import peers
from benchmarks.record import medians, publish, record
from benchmarks.server import serving
from runner.contract.events import CONTENT_TYPE, Batch, Points, encode_batch

EMITTERS = 4
POINTS_A_BATCH = 1000
MLFLOW_MOST = 1000
"""Metrics that MLflow takes in one call; a step of 2,000 series is two calls."""
FEW, MANY = 20, 2000
SECONDS, REPETITIONS = 6.0, 5


def main() -> None:
    publish(measure())


def measure(seconds: float = SECONDS, repetitions: int = REPETITIONS) -> dict:
    """Targets: 20,000 points/s on two cores, and four times MLflow on the same Postgres."""
    with serving() as server, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        same = stack.enter_context(peers.mlflow_server(peers.mlflow_store(server.database("mlflow")), folder))
        sqlite = stack.enter_context(peers.mlflow_server(f"sqlite:///{folder}/mlflow.db", folder))
        rounds = [one_round(server.url, same, sqlite, seconds) for _ in range(repetitions)]
    found = medians(rounds)
    few, many = found["20 series"], found["2000 series"]
    settings = {
        "emitters": EMITTERS,
        "points_a_batch": POINTS_A_BATCH,
        "series_a_batch": FEW,
        "seconds": seconds,
        "repetitions": repetitions,
        "web_workers": 1,
        "mlflow_workers": 1,
        "database": "the same Postgres 18, fsync on, defaults for durability",
        "peer": f"{peers.version('mlflow')} log-batch over HTTP",
        "target": "at least 20000, and 4 times the peer",
    }
    also = {
        "2000 series": {**many, "ratio": round(many["assay"]["points_per_second"] / many["mlflow, same Postgres"]["points_per_second"], 2)},
        "20 series": few,
        "lowest and highest of ours": [pick([one["20 series"]["assay"]["points_per_second"] for one in rounds]) for pick in (min, max)],
    }
    ours, peer = few["assay"]["points_per_second"], few["mlflow, same Postgres"]["points_per_second"]
    return record("ingest", ours, peer, "points/s", settings, also)


def one_round(url: str, same: httpx.Client, sqlite: httpx.Client, seconds: float) -> dict:
    """Each side once with few and once with many series."""
    found = {}
    for series in (FEW, MANY):
        found[f"{series} series"] = {
            "assay": run_threads([Assay(url, series) for _ in range(EMITTERS)], series, seconds),
            "mlflow, same Postgres": run_threads([MLflow(same, series) for _ in range(EMITTERS)], series, seconds),
        }
    found["20 series"] |= {
        "mlflow, sqlite": run_threads([MLflow(sqlite, FEW) for _ in range(EMITTERS)], FEW, seconds),
        "aim, local": peers.run_script("aim", "aim_points.py", str(FEW), str(seconds)),
        "trackio, local": peers.run_script("trackio", "trackio_points.py", str(FEW), str(seconds)),
    }
    return found


def run_threads(emitters: list, series: int, seconds: float) -> dict:
    """All emitters send for `seconds`, each the next batch as soon as the last was acknowledged."""
    stop_at, waits, failures = time.monotonic() + seconds, [], []
    threads = [threading.Thread(target=send_until, args=(emitter, stop_at, waits, failures)) for emitter in emitters]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.monotonic() - began
    if failures:
        raise failures[0]
    p50, p95 = np.percentile(waits, [50, 95]) * 1000
    points = len(waits) * batch_points(series)
    return {"points_per_second": round(points / elapsed), "batches": len(waits), "ack_p50_ms": round(p50, 1), "ack_p95_ms": round(p95, 1)}


def send_until(emitter, stop_at: float, waits: list[float], failures: list[Exception]) -> None:
    sequence = 0
    try:
        while time.monotonic() < stop_at:
            batch = points_of(sequence, emitter.series)
            began = time.monotonic()
            emitter.send(sequence, *batch)
            waits.append(time.monotonic() - began)
            sequence += 1
    except Exception as error:  # noqa: BLE001 - raised again by the thread that waits for us
        failures.append(error)


def batch_points(series: int) -> int:
    """A batch holds whole steps: one point of each series a step."""
    return max(POINTS_A_BATCH // series, 1) * series


def points_of(sequence: int, series: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(series index, step, value) of one batch."""
    steps = batch_points(series) // series
    step = np.repeat(np.arange(sequence * steps, (sequence + 1) * steps), series)
    return np.tile(np.arange(series, dtype="int32"), steps), step, np.random.default_rng(sequence).normal(size=len(step))


class Assay:
    """One emitter with a run of its own, over the real protocol."""

    def __init__(self, url: str, series: int):
        attempt = make_attempt(f"{series} series")
        self.series, self.names = series, [f"metric/{index}" for index in range(series)]
        self.path = f"/api/ingest/{attempt.pk}/batches"
        self.client = httpx.Client(
            base_url=url, timeout=60, headers={"Authorization": f"Bearer {attempt.token}", "Content-Type": CONTENT_TYPE}
        )

    def send(self, sequence: int, series: np.ndarray, step: np.ndarray, value: np.ndarray) -> None:
        """Every point must have been accepted."""
        points = Points(self.names, series, step, value, np.full(len(step), time.time()))
        answer = self.client.post(self.path, content=encode_batch(Batch("bench", sequence, points)))
        if answer.status_code != 200 or answer.json()["accepted"] != len(step):
            raise RuntimeError(f"batch {sequence}: {answer.status_code} {answer.text:.300}")


class MLflow:
    """One MLflow run; its batches are those of Assay, cut to what one call takes."""

    def __init__(self, client: httpx.Client, series: int):
        self.run, self.series = peers.mlflow_run(client), series
        self.client = httpx.Client(base_url=client.base_url, timeout=120, headers={"Content-Type": "application/json"})

    def send(self, sequence: int, series: np.ndarray, step: np.ndarray, value: np.ndarray) -> None:
        now = int(time.time() * 1000)
        rows = zip(series.tolist(), step.tolist(), value.tolist(), strict=True)
        metrics = [{"key": f"metric/{index}", "value": number, "timestamp": now, "step": at} for index, at, number in rows]
        for first in range(0, len(metrics), MLFLOW_MOST):
            body = orjson.dumps({"run_id": self.run, "metrics": metrics[first : first + MLFLOW_MOST]})
            answer = self.client.post("/api/2.0/mlflow/runs/log-batch", content=body)
            if answer.status_code != 200:
                raise RuntimeError(f"log-batch: {answer.status_code} {answer.text:.300}")


def make_attempt(name: str):
    """A run with a claimed attempt, as the driver finds it after its claim; its token is in `token`."""
    from django.utils import timezone

    from controlplane.accounts.models import Project
    from controlplane.accounts.services import ensure_embedded_owner
    from controlplane.accounts.tokens import new_token
    from controlplane.runs.models import Attempt, Run

    owner = ensure_embedded_owner()
    project, _ = Project.objects.get_or_create(team=owner.memberships.first().team, slug="bench", defaults={"name": "Bench"})
    # No job of Ray's stands behind it: nobody shall look for one.
    unwatched = timezone.now() + timedelta(days=1)
    described = dict(name=name, method="grpo", model="m", environment="quiz", document={}, config=b"{}", config_hash="", next_check_at=unwatched)
    run = Run.objects.create(project=project, owner=owner, state="active", **described)
    token, token_hash = new_token()
    attempt = Attempt.objects.create(
        run=run, number=1, state="running", submission_id=f"bench-{run.pk}", claim_hash="", token_hash=token_hash
    )
    attempt.token = token
    return attempt


if __name__ == "__main__":
    main()
