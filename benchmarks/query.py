"""A chart's query: 10 series of 100,000 points each over HTTP, beside the sampled call that MLflow's own chart makes.

Ours is one request that returns min, max, mean, last and counts of at most 600 exact buckets for all series. MLflow's chart asks for one
metric a request and gets 320 raw points of it; the ten requests go over six connections, as a browser sends them. Both read the same Postgres.
"""

import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psycopg

from benchmarks import peers
from benchmarks.fill import Sizes, column, fill_embedded
from benchmarks.record import medians, publish, record
from benchmarks.server import Server, serving

SERIES, STEPS, BUCKETS = 10, 100_000, 600
CALLS, REPETITIONS, PEER_CALLS, HISTORIES = 40, 5, 6, 1
CHART_POINTS = 320
"""`maxResults` of MLflow's chart."""
CONNECTIONS = 6
ZOOM = (40_000, 51_000)
PAGE = 25_000
"""Points a page of MLflow's full history."""


def main() -> None:
    publish(measure())


def measure(calls: int = CALLS, repetitions: int = REPETITIONS, steps: int = STEPS) -> dict:
    """Targets: p95 of at most 80 ms, ten times faster than MLflow's chart."""
    with serving() as server, tempfile.TemporaryDirectory() as folder:
        database = server.database("mlflow")
        client, path, names = prepare(server, steps)
        with peers.mlflow_server(peers.mlflow_store(database), Path(folder)) as mlflow:
            run = fill_mlflow(mlflow, database, steps)
            rounds = [one_round(client, path, names, mlflow, run, calls) for _ in range(repetitions)]
            history = timed(lambda: full_history(mlflow, run), HISTORIES)
    found = medians(rounds)
    ours, peer = found["assay, whole run"]["p95_ms"], found["mlflow, its chart"]["p95_ms"]
    settings = {
        "series": SERIES,
        "steps": steps,
        "buckets": BUCKETS,
        "calls": calls,
        "peer_calls": min(calls, PEER_CALLS),
        "repetitions": repetitions,
        "peer": f"{peers.version('mlflow')} get-history-bulk-interval, {CHART_POINTS} points a series, {CONNECTIONS} connections",
        "ours_returns": "min, max, mean, last and counts of every bucket; every point is in one",
        "peer_returns": "raw points at even places; what lies between them is not looked at",
        "database": "the same Postgres 18 for both, one web worker each",
        "target": "p95 at most 80 ms, and 10 times faster than the peer",
    }
    return record("query", ours, peer, "ms, p95", settings, {**found, "mlflow, full history": history}, lower_is_better=True)


def one_round(client: httpx.Client, path: str, names: list[str], mlflow: httpx.Client, run: str, calls: int) -> dict:
    points = {"names": names, "buckets": BUCKETS}
    few = min(calls, PEER_CALLS)
    return {
        "assay, whole run": timed(lambda: get(client, path, points), calls),
        "assay, 11,000 steps from raw points": timed(lambda: get(client, path, {**points, "from": ZOOM[0], "to": ZOOM[1]}), calls),
        "mlflow, its chart": timed(lambda: sampled(mlflow, run, CHART_POINTS), few),
        "mlflow, 600 points": timed(lambda: sampled(mlflow, run, BUCKETS), few),
    }


def timed(call, times: int) -> dict:
    """Call one after the other; the first, which opens connections and warms caches, is not counted. `bytes` of one answer."""
    size, took = call(), []
    for _ in range(times):
        began = time.perf_counter()
        size = call()
        took.append(time.perf_counter() - began)
    p50, p95 = np.percentile(took, [50, 95]) * 1000
    return {"p50_ms": round(p50, 1), "p95_ms": round(p95, 1), "bytes": size}


def get(client: httpx.Client, path: str, parameters: dict) -> int:
    return len(client.get(path, params=parameters).raise_for_status().content)


# ---------------------------------------------------------------- ours
def prepare(server: Server, steps: int) -> tuple[httpx.Client, str, list[str]]:
    """A signed-in client, the path of the filled run's points, and its long series."""
    filled = fill_embedded(Sizes(runs=20, names=SERIES, steps=steps, episodes=800, tokens=100, turns=10, logs=10))
    names = column("SELECT name FROM telemetry_series WHERE run_id = %s ORDER BY id LIMIT %s", filled.large, SERIES)
    return server.browser(), f"/api/v1/runs/{filled.large}/points", names


# ---------------------------------------------------------------- MLflow
def fill_mlflow(client: httpx.Client, database: str, steps: int) -> str:
    """A run whose metrics were made known through the API; their history then through COPY, as log-batch would have left it."""
    run = peers.mlflow_run(client)
    last = [{"key": f"metric/{index}", "value": 0.0, "timestamp": 0, "step": steps} for index in range(SERIES)]
    client.post("/api/2.0/mlflow/runs/log-batch", json={"run_id": run, "metrics": last}).raise_for_status()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO metrics (key, value, timestamp, run_uuid, step, is_nan) "
            "SELECT 'metric/' || n, random(), step, %s, step, false FROM generate_series(0, %s) AS n, generate_series(0, %s) AS step",
            [run, SERIES - 1, steps - 1],
        )
        connection.execute("VACUUM ANALYZE metrics")
    return run


def sampled(client: httpx.Client, run: str, points: int) -> int:
    """One chart of all series; returns the bytes of all answers. Raises RuntimeError when a series comes back short."""

    def one(index: int) -> int:
        query = {"run_ids": run, "metric_key": f"metric/{index}", "max_results": points}
        answer = client.get("/ajax-api/2.0/mlflow/metrics/get-history-bulk-interval", params=query).raise_for_status()
        if len(answer.json()["metrics"]) < points // 2:
            raise RuntimeError(f"metric/{index}: {len(answer.json()['metrics'])} points came, {points} were asked for")
        return len(answer.content)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        return sum(pool.map(one, range(SERIES)))


def full_history(client: httpx.Client, run: str) -> int:
    """Every point of every series, page by page."""
    size = 0
    for index in range(SERIES):
        query = {"run_id": run, "metric_key": f"metric/{index}", "max_results": PAGE}
        while True:
            answer = client.get("/ajax-api/2.0/mlflow/metrics/get-history", params=query).raise_for_status()
            size += len(answer.content)
            if not (token := answer.json().get("next_page_token")):
                break
            query["page_token"] = token
    return size


if __name__ == "__main__":
    main()
