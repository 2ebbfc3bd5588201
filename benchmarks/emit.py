"""What reporting costs the training thread, as a share of a real step of the sample run.

1. The sample run trains for some steps on this machine's Ray; each step says how long it took, how long telling of the step before held it
   up, and how long it told of episodes while the learner learned.
2. The beginnings of a step's episodes, told while the workers sample, are timed alone with a step of the same shape.
3. Beside it, metrics alone: one call of 80 values here, in trackio and in MLflow's client, synchronous and asynchronous.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import peers, real_run
from benchmarks.ingest import make_attempt
from benchmarks.record import medians, publish, record
from benchmarks.server import Server, serving
from runner.policies.base import Purpose
from runner.reporting.emitter import Emitter
from runner.reporting.episodes import EpisodeReporter
from runner.rollouts.episodes import EpisodeOrder

WARM_START, STEPS, SETTLING = 20, 25, 5
EPISODES, METRICS, CALLS, REPETITIONS = 512, 80, 60, 5
CALLS_A_SECOND = 10
RUN_SECONDS = 900


def main() -> None:
    publish(measure())


def measure(warm_start: int = WARM_START, steps: int = STEPS, calls: int = CALLS, repetitions: int = REPETITIONS) -> dict:
    """Target: at most 1 % of a step."""
    if reason := real_run.available():
        raise SystemExit(f"assay: {reason}")
    with serving(background=True, ray=True) as server:
        real = real_steps(server, warm_start, steps)
        alone = medians([metrics_alone(server, calls) for _ in range(repetitions)])
    beginnings = beginnings_alone(repetitions)
    share = 100 * real["report_s"] / real["step_s"]
    settings = {
        "run": f"sample preset, {steps} GRPO steps of {EPISODES} episodes, the first {SETTLING} left out",
        "metrics_a_call": METRICS,
        "calls": calls,
        "calls_a_second": CALLS_A_SECOND,
        "repetitions": f"{real['steps']} steps, {repetitions} rounds of calls",
        "peer": "none reports episodes with their tokens; the calls of both sides for metrics alone are in `also`",
        "target": "at most 1 % of a step",
    }
    also = {"real step": {**real, "started_while_the_workers_sample_s": beginnings}, "one call of 80 metrics, ms": alone}
    return record("emit", round(share, 3), None, "% of a step", settings, also, lower_is_better=True)


def real_steps(server: Server, warm_start: int, steps: int) -> dict:
    """Medians over the settled GRPO steps of a real run; `share_p95` is the reporting of each step over that step."""
    run = real_run.launch_sample(server, warm_start, steps)
    real_run.wait_until_ended(run, RUN_SECONDS)
    aside = np.array(real_run.series(run, "timing_s/report_aside")[SETTLING:])  # GRPO's steps alone have it
    report, step = (np.array(real_run.series(run, f"timing_s/{name}")[-len(aside) :]) for name in ("report", "step"))
    return {
        "steps": len(aside),
        "report_while_the_learner_learns_s": round(float(np.median(aside)), 5),
        "step_s": round(float(np.median(step)), 4),
        "report_s": round(float(np.median(report)), 5),
        "share_p95": round(float(np.percentile(100 * report / step, 95)), 3),
    }


def beginnings_alone(repetitions: int) -> float:
    """Seconds a step for `started` of every episode, into a spool without a courier."""
    took = []
    for step in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            emitter = Emitter(Path(folder) / "spool", "driver")
            reporter = EpisodeReporter(emitter, {})
            orders = [order_of(step, index) for index in range(EPISODES)]
            began = time.perf_counter()
            with emitter.together():
                for order in orders:
                    reporter.started(order, "worker-0", step)
            took.append(time.perf_counter() - began)
            emitter.close()
    return round(statistics.median(took), 5)


def order_of(step: int, index: int) -> EpisodeOrder:
    return EpisodeOrder(f"{step}-{index}", "task", 1, step, index // 8, index % 8, Purpose.TRAIN, (0, 0, step, index), index)


def metrics_alone(server: Server, calls: int) -> dict:
    """Milliseconds that one call takes from its caller, at a pace that lets delivery keep up."""
    seconds = calls / CALLS_A_SECOND
    with tempfile.TemporaryDirectory() as folder, peers.mlflow_server(f"sqlite:///{folder}/mlflow.db", Path(folder)) as mlflow:
        arguments = (str(mlflow.base_url), str(METRICS), str(calls), str(seconds))
        theirs = peers.run_script("mlflow", "mlflow_calls.py", *arguments)
    trackio = peers.run_script("trackio", "trackio_points.py", str(METRICS), str(2 * seconds), str(calls))
    return {"assay": own_calls(server, calls), "trackio": trackio["call_ms"], "mlflow": theirs}


def own_calls(server: Server, calls: int) -> float:
    attempt, took = make_attempt("calls"), []
    with tempfile.TemporaryDirectory() as folder:
        emitter = Emitter(Path(folder), "driver", url=f"{server.url}/api/ingest/{attempt.pk}/batches", token=attempt.token)
        for step in range(calls):
            values = {f"metric/{number}": float(step) for number in range(METRICS)}
            began = time.perf_counter()
            emitter.emit_points(step, values)
            took.append(time.perf_counter() - began)
            time.sleep(1 / CALLS_A_SECOND)
        emitter.close()
    return round(1000 * statistics.median(took), 3)


if __name__ == "__main__":
    main()
