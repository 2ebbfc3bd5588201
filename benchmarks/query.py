"""Chart query: 10 series of 100,000 points into at most 600 exact buckets, over real HTTP with authentication.

`main()` prints one JSON line; beside the whole run it gives a zoomed range, read from raw points, and 40,000 tokens of one episode.
"""

import json
import time
import uuid

import httpx
import msgpack
import numpy as np
import zstandard

from benchmarks.ingest import make_attempt
from benchmarks.server import machine, serving

SERIES, STEPS, BUCKETS, CALLS, TOKENS = 10, 100_000, 600, 60, 40_000


def main(calls: int = CALLS) -> dict:
    """Measure and print; returns the record."""
    with serving() as url:
        run, episode, token = fill()
        with httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
            points = {"names": [f"metric/{index}" for index in range(SERIES)], "buckets": BUCKETS}
            whole = measure(client, f"/runs/{run}/points", points, calls)
            zoom = measure(client, f"/runs/{run}/points", {**points, "from": 40_000, "to": 51_000}, calls)
            tokens = measure(client, f"/episodes/{episode}/tokens", {}, calls)
    record = {
        "name": "query",
        "ours": whole["p95_ms"],
        "peer": None,
        "ratio": None,
        "unit": "ms, p95",
        "settings": {
            "series": SERIES,
            "steps": STEPS,
            "buckets": BUCKETS,
            "calls": calls,
            "returns": "min, max, mean, last, counts a bucket",
            **machine(),
        },
        "also": {"whole run": whole, "11,000 steps from raw points": zoom, "40,000 tokens": tokens},
    }
    print(json.dumps(record))
    return record


def measure(client: httpx.Client, path: str, parameters: dict, calls: int) -> dict:
    """Call one after the other; the first call, which opens connections, is not counted."""
    took = []
    for _ in range(calls + 1):
        began = time.perf_counter()
        answer = client.get(path, params=parameters)
        took.append(time.perf_counter() - began)
        answer.raise_for_status()
    p50, p95 = np.percentile(took[1:], [50, 95]) * 1000
    return {"p50_ms": round(p50, 1), "p95_ms": round(p95, 1), "bytes": len(answer.content)}


def fill() -> tuple:
    """A run with its points, an episode with its tokens, and an API token that may read them."""
    from django.db import connection

    from controlplane.accounts.choices import Role
    from controlplane.accounts.services import add_member, create_token, create_user
    from controlplane.runs.models import Attempt

    attempt = Attempt.objects.select_related("run__project__team").get(pk=make_attempt(SERIES).pk)
    fill_points(attempt)
    user = create_user("bench")
    add_member(attempt.run.project.team, user, Role.MEMBER)
    token, _ = create_token(user, attempt.run.project.team, "bench", ["read"])
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")
    return attempt.run_id, fill_tokens(attempt), token


def fill_points(attempt) -> None:
    """Through the ingest service, so that the rollups are those a run gets."""
    from controlplane.telemetry.services import accept_batch
    from runner.contract.events import Batch, Points

    names, random, size = [f"metric/{index}" for index in range(SERIES)], np.random.default_rng(0), 5_000
    for first in range(0, STEPS, size):
        step = np.repeat(np.arange(first, first + size), SERIES)
        points = Points(names, np.tile(np.arange(SERIES, dtype="int32"), size), step, random.normal(size=len(step)), step.astype("float64"))
        accept_batch(attempt, Batch("fill", first, points))


def fill_tokens(attempt) -> uuid.UUID:
    """An episode with all its channels."""
    from controlplane import storage
    from controlplane.episodes.services import record_events
    from runner.contract.episode import SAMPLED_COLUMNS, TRAINED_COLUMNS, write_trace

    random, id = np.random.default_rng(0), uuid.uuid4()
    sampled, trained = (
        storage.put(
            write_trace(
                {name: random.normal(size=TOKENS) if kind == "float32" else random.integers(0, 2, TOKENS) for name, kind in columns.items()}
            )
        )
        for columns in (SAMPLED_COLUMNS, TRAINED_COLUMNS)
    )
    texts = storage.put(zstandard.ZstdCompressor().compress(msgpack.packb([f" piece{index % 997}" for index in range(TOKENS)])))
    finished = {"termination": "finished", "sampled": sampled, "token_texts": texts}
    events = [("started", {"task": "t"}), ("finished", finished), ("trained", {"step": 1, "trained": trained})]
    record_events(attempt, [{"episode": str(id), "kind": kind, "ordinal": 0, "t": 1.0, "data": data} for kind, data in events])
    return id


if __name__ == "__main__":
    main()
