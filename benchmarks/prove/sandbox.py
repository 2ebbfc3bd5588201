"""Two hundred container episodes, eight at a time, while containers, workers and the engine are killed at random moments.

./assay prove sandbox [EPISODES]

Needs root and dockerd: the engine is one of its own. The figures go to `records/sandbox-kills.json`; anything left behind, unexplained or
invented ends the proof with status 1.
"""

import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.record import publish, record
from tests.docker_engine import PrivateEngine, why_cannot_start
from tests.runner.sandbox.conftest import load_scratch
from tests.runner.sandbox.storm import PER_WORKER, WORKERS, Storm

EPISODES, SECONDS_EACH = 200, 30.0


def main(arguments: list[str]) -> None:
    if reason := why_cannot_start():
        sys.exit(f"assay: {reason}")
    episodes = int(arguments[0]) if arguments else EPISODES
    with tempfile.TemporaryDirectory(prefix="assay-storm-", dir="/tmp") as place:
        folder = Path(place) / "engine"
        folder.mkdir()
        engine = PrivateEngine(folder, "--bip", "10.212.0.1/24")
        try:
            engine.start()
            load_scratch(engine.host)
            outcome = Storm(engine, Path(place) / "storm", episodes).run(episodes * SECONDS_EACH)
        finally:
            engine.remove()
    settings = {"episodes": episodes, "concurrency": WORKERS * PER_WORKER}
    publish(record("sandbox-kills", len(outcome.broken), None, "broken promises", settings, asdict(outcome), lower_is_better=True))
    if outcome.broken:
        sys.exit("\n".join(outcome.broken))
