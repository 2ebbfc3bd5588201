"""GRPO on SciKnowEval makes SmolLM2 answer more of the held-out questions; what each domain gained stands beside it with its interval.

    ./assay prove sciknoweval_learning --bank FILE --out DIR [--gpus 1] [--settings FILE]
    ./assay prove sciknoweval_learning --out DIR --read     the record, from a run that is finished

vLLM and the learner share one GPU. The model is evaluated on every held-out question, one answer each at temperature 1, before the first
step, on the way and at the end; gains are paired by question. `--minutes` ends the run in time: it saves, and the same command goes on.
The bank comes from `python -m runner.importers sciknoweval --out FILE`.
"""

import argparse
import json
import signal
import statistics
import subprocess
from pathlib import Path

from benchmarks.prove import _laboratory as laboratory
from benchmarks.prove.scienceworld_learning import STOP_SECONDS, cluster, described, interval, laid_over, outcome_of, start
from benchmarks.record import publish, record
from controlplane.evals.statistics import paired_difference, wilson

BEFORE, AFTER = "before stage 0", "after stage 0"
# Curves that the record keeps whole.
KEPT = (
    "critic/score/mean",
    "episode/parsed_fraction",
    "actor/grad_norm",
    "timing_s/step",
    "timing_s/generate",
    "timing_s/learn",
    "timing_s/sync",
)
DOCUMENT = {
    "name": "SciKnowEval, SmolLM2-135M, GRPO with vLLM",
    "experiment": "sciknoweval",
    "model": {"source": {"type": "builtin", "name": "smollm2-135m-instruct"}, "dtype": "bfloat16", "max_length": 4096},
    "environment": {"type": "sciknoweval"},
    "sampling": {"max_new_tokens": 16},
    "stages": [
        {
            "type": "grpo",
            "steps": 120,
            "batch_size": 512,
            "group_size": 8,
            "micro_batch_tokens": 32768,
            "optimizer": {"learning_rate": 2e-5, "warmup_steps": 5, "schedule": "linear"},
        }
    ],
    "evaluation": {"type": "held_out", "every_steps": 60},
    "engine": {"type": "vllm", "memory_fraction": 0.3, "max_sequences": 512},
    "resources": {"rollout_workers": 1, "worker_cpus": 1.0, "learner_cpus": 1.0, "worker_threads": 4, "learner_threads": 4},
}


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    if not options.read and not train(options):
        return print("not finished: the same command goes on")
    found = publish(summary(options.out))
    if broken := found["also"]["broken"]:
        raise SystemExit(f"assay: the claim does not hold: {'; '.join(broken)}")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="assay prove sciknoweval_learning")
    parser.add_argument("--bank", type=Path, help="bank file of SciKnowEval")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run; the same one goes on with it")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that engine and learner share")
    parser.add_argument("--settings", type=Path, help="JSON that is laid over the run's document, such as a smaller stage")
    parser.add_argument("--minutes", type=float, help="stop the run after so long; the same command goes on")
    parser.add_argument("--read", action="store_true", help="train nothing")
    options = parser.parse_args(arguments)
    if not options.read and not options.bank:
        parser.error("--bank FILE is needed to train")
    return options


def train(options: argparse.Namespace) -> bool:
    """Whether the run succeeded before its time was up."""
    if outcome_of(options.out) == "succeeded":
        return True
    with cluster(1, options.gpus):
        process = start(options.out, document(options), options.bank.resolve())
        try:
            process.wait(options.minutes and 60 * options.minutes)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
        finally:
            end(process)
    return outcome_of(options.out) == "succeeded"


def document(options: argparse.Namespace) -> dict:
    run = laid_over(DOCUMENT, {"resources": {"gpus": options.gpus}})
    return laid_over(run, json.loads(options.settings.read_text())) if options.settings else run


def end(process: subprocess.Popen) -> None:
    """It saves before it leaves."""
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# ---------------------------------------------------------------- the record
def summary(out: Path) -> dict:
    """Ours is the held-out accuracy after the last step, the peer's figure that before the first; each domain beside them."""
    told = laboratory.read(out)
    evaluations = {label: found["results"] for label, found in told.evaluations.items()}
    domains = sorted({row["domain"] for row in evaluations[BEFORE]})
    gains = {name: gain(evaluations, name) for name in (None, *domains)}
    also = {
        "gain": gains.pop(None),
        "gain_by_domain": gains,
        "accuracy": {label: accuracies(rows, domains) for label, rows in evaluations.items()},
        "parsed": {label: found["summary"]["parsed_fraction"] for label, found in told.evaluations.items()},
        "forced_choice": {label: found["summary"]["forced_choice"] for label, found in told.evaluations.items()},
        "baselines": told.evaluations[BEFORE]["baselines"],
        "seconds_of_a_step": seconds_of_a_step(told.curves),
        "curves": {name: curve for name, curve in told.curves.items() if name in KEPT},
    }
    also["broken"] = faults(also["gain"])
    settings = {"document": json.loads((out / "run.json").read_text()), "protocol": told.evaluations[BEFORE]["protocol"]}
    after, before = (also["accuracy"][label]["all"]["interval"][0] for label in (AFTER, BEFORE))
    return record(
        "sciknoweval_learning",
        after,
        before,
        "held-out accuracy, one answer at temperature 1; the peer is the model before",
        settings,
        also,
    )


def of_domain(rows: list[dict], domain: str | None) -> dict[str, float | None]:
    return {row["task"]: row["score"] for row in rows if domain in (None, row["domain"])}


def gain(evaluations: dict[str, list[dict]], domain: str | None) -> dict:
    return described(paired_difference(*(of_domain(evaluations[label], domain) for label in (BEFORE, AFTER))))


def accuracies(rows: list[dict], domains: list[str]) -> dict[str, dict]:
    """Wilson's interval of the accuracy over all graded questions, and over those of each domain."""
    found = {}
    for name in (None, *domains):
        graded = [score for score in of_domain(rows, name).values() if score is not None]
        of = wilson(int(sum(graded)), len(graded))
        found[name or "all"] = {"interval": interval(of), "n": of.n}
    return found


def seconds_of_a_step(curves: dict[str, dict[int, float]]) -> dict[str, float]:
    """Median of each phase over all steps but the first, which compiles."""
    phases = {name: curve for name, curve in curves.items() if name.startswith("timing_s/")}
    return {name: round(statistics.median(list(curve.values())[1:] or curve.values()), 4) for name, curve in phases.items()}


def faults(found: dict) -> list[str]:
    estimate, low, _ = found["interval"]
    if low is None or low <= 0:
        return [f"accuracy changes by {estimate}, with a lower bound of {low}; expected above 0"]
    return []
