"""What reporting costs the driver in one step of 256 episodes: spooling alone, no network. Prints one JSON line."""

import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from runner.contract.episode import write_trace
from runner.contract.termination import Termination
from runner.policies.base import Purpose
from runner.reporting.emitter import Emitter
from runner.reporting.episodes import EpisodeReporter
from runner.rollouts.episodes import EpisodeOrder, Outcome, Turn
from runner.rollouts.types import Sample, TrainedSample

EPISODES, TOKENS, STEPS = 256, 60, 20


def outcome_of(step: int, index: int) -> Outcome:
    order = EpisodeOrder(f"{step}-{index}", "task", 1, step, index // 8, index % 8, Purpose.TRAIN, (0, 0, step, index), index)
    author = np.full(TOKENS, 0, np.uint8)
    author[-4:] = 2
    generator = np.random.default_rng([step, index])
    sample = Sample(
        order.episode, "task", order.group, order.index, generator.integers(0, 4096, TOKENS).astype(np.int32), author, author == 2,
        generator.random(TOKENS).astype(np.float32), 1.0, Termination.FINISHED, step,
    )
    turns = [Turn(0, "user", "environment", "x" * 200), Turn(1, "assistant", "student", "B", 4)]
    outcome = Outcome(order, sample, turns, graded=True, started=1.0, finished=2.0)
    outcome.sampled, outcome.token_texts = write_trace(sample.sampled_columns()), generator.bytes(150)
    return outcome


def trained_of(outcome: Outcome) -> TrainedSample:
    column = outcome.sample.logprobs
    return TrainedSample(outcome.order.episode, 0.5, [], None, column, outcome.sample.loss_mask, column, column)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        emitter = Emitter(Path(folder) / "spool", "driver")
        reporter, seconds = EpisodeReporter(emitter, {}), []
        for step in range(STEPS):
            outcomes = [outcome_of(step, index) for index in range(EPISODES)]
            begin = time.perf_counter()
            emitter.emit_points(step, {f"metric/{number}": 1.0 for number in range(80)})
            for outcome in outcomes:
                reporter.started(outcome.order, "worker-0", step)
                reporter.ended(outcome)
                reporter.trained(trained_of(outcome), step)
            seconds.append(time.perf_counter() - begin)
        size = sum(path.stat().st_size for path in emitter.folder.iterdir())
    result = {
        "benchmark": "emitter",
        "episodes_per_step": EPISODES,
        "seconds_per_step": round(statistics.median(seconds), 5),
        "microseconds_per_record": round(1e6 * statistics.median(seconds) / (EPISODES * 9 + 1), 1),
        "spool_bytes_per_step": size // STEPS,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
