"""The list of runs at 10,000 runs, over HTTP with a session, beside MLflow's runs/search over as many runs in the same Postgres.

Ours returns the whole page: 50 rows with their curves, facets counted over all runs. MLflow's returns JSON of 100 runs, the first page that
its own list asks for; its browser then still has to draw it.
"""

import tempfile
from pathlib import Path

import httpx
import psycopg

from benchmarks import peers
from benchmarks.fill import Sizes, fill_embedded
from benchmarks.query import get, timed
from benchmarks.record import medians, publish, record
from benchmarks.server import serving

RUNS, CALLS, REPETITIONS = 10_000, 40, 5
KEYS = 10
"""Metrics, and parameters, of each MLflow run."""
PAGES = {
    "assay, /runs": "/runs",
    "assay, by reward": "/runs?sort=-reward",
    "assay, search": "/runs?q=experiment+7",
    "assay, one method": "/runs?method=gigpo",
}


def main() -> None:
    publish(measure())


def measure(runs: int = RUNS, calls: int = CALLS, repetitions: int = REPETITIONS) -> dict:
    """Target: p95 of at most 120 ms."""
    with serving() as server, tempfile.TemporaryDirectory() as folder:
        database = server.database("mlflow")
        fill_embedded(Sizes(runs=runs, names=20, steps=1_000, episodes=800, tokens=100, turns=10, logs=10))
        browser = server.browser()
        with peers.mlflow_server(peers.mlflow_store(database), Path(folder)) as mlflow:
            fill_mlflow(mlflow, database, runs)
            rounds = [one_round(browser, mlflow, calls) for _ in range(repetitions)]
    found = medians(rounds)
    ours, peer = found["assay, /runs"]["p95_ms"], found["mlflow, runs/search"]["p95_ms"]
    settings = {
        "runs": runs,
        "calls": calls,
        "repetitions": repetitions,
        "peer": f"{peers.version('mlflow')} runs/search, 100 runs of {KEYS} metrics and {KEYS} parameters",
        "ours_returns": "the HTML page: 50 rows with curves, and facets over all runs",
        "peer_returns": "JSON of 100 runs",
        "database": "the same Postgres 18 for both, one web worker each",
        "target": "p95 at most 120 ms",
    }
    return record("list", ours, peer, "ms, p95", settings, found, lower_is_better=True)


def one_round(browser: httpx.Client, mlflow: httpx.Client, calls: int) -> dict:
    ours = {name: timed(lambda path=path: get(browser, path, None), calls) for name, path in PAGES.items()}
    return {**ours, "mlflow, runs/search": timed(lambda: search(mlflow), calls)}


def search(client: httpx.Client) -> int:
    body = {"experiment_ids": ["0"], "max_results": 100, "order_by": ["attributes.start_time DESC"], "run_view_type": "ACTIVE_ONLY"}
    answer = client.post("/ajax-api/2.0/mlflow/runs/search", json=body).raise_for_status()
    if len(answer.json()["runs"]) != 100:
        raise RuntimeError(f"{len(answer.json()['runs'])} runs came, 100 were asked for")
    return len(answer.content)


def fill_mlflow(client: httpx.Client, database: str, runs: int) -> None:
    """One run through the API, then its rows once for each other run."""
    first = peers.mlflow_run(client)
    metrics = [{"key": f"metric/{index}", "value": 0.5, "timestamp": 1, "step": 1} for index in range(KEYS)]
    params = [{"key": f"param/{index}", "value": "1"} for index in range(KEYS)]
    client.post("/api/2.0/mlflow/runs/log-batch", json={"run_id": first, "metrics": metrics, "params": params}).raise_for_status()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "CREATE TEMPORARY TABLE copies AS SELECT n, replace(gen_random_uuid()::text, '-', '') AS id FROM generate_series(2, %s) AS n",
            [runs],
        )
        for table in ("runs", "metrics", "latest_metrics", "params", "tags"):
            copy_rows(connection, table, first)
        connection.execute("VACUUM ANALYZE")


def copy_rows(connection: psycopg.Connection, table: str, first: str) -> None:
    """The rows of run `first` again for every copy, under its identifier and, in `runs`, with a start of its own."""
    query = "SELECT column_name FROM information_schema.columns WHERE table_name = %s AND table_schema = 'public'"
    columns = [name for (name,) in connection.execute(query, [table])]
    own = {"run_uuid": "copies.id", "start_time": "source.start_time - copies.n", "end_time": "source.start_time"}
    chosen = ", ".join(own.get(name, f"source.{name}") for name in columns)
    connection.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {chosen} FROM {table} AS source, copies WHERE source.run_uuid = %s", [first]
    )


if __name__ == "__main__":
    main()
