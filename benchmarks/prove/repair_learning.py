"""GRPO with the menu agent in real containers repairs more of the tasks that it trains on; held-out defects stand beside them as they are.

    ./assay prove repair_learning --out DIR [--seed 0] [--minutes M] [--drill] [--settings FILE]
    ./assay prove repair_learning --out DIR --read     the record, from passes that are played

The run is the preset `repair-menu-tiny`: reading lessons, then GRPO. The weights before and after GRPO then play the same episodes,
the same options under the same seeds, on the easy tasks that were trained and on those held out, at least 64 of each. A gain is paired by
task: the mean over a task's episodes after, less that before. `--drill` trains once more under the same seeds with a tenth of the verifiers
made to fail, and pairs its last weights with those of the run without. `--minutes` ends training in time; the same command goes on.
It needs a container engine and the base image (docker/sandbox-base.sh).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from itertools import product
from pathlib import Path

from benchmarks.prove import _laboratory as laboratory
from benchmarks.prove._repair import CACHE, prepare
from benchmarks.prove.sciknoweval_learning import end
from benchmarks.prove.scienceworld_learning import CHECKOUT, cluster, described, interval, laid_over, outcome_of, start, step_folder
from benchmarks.record import publish, record
from controlplane.evals.statistics import bootstrap_mean, paired_difference
from runner.contract import presets

PRESET = "repair-menu-tiny"
RUN, DRILL = "run", "drill"
# Episodes of each task: 14 trained and 4 held-out ones make at least 64 of each side.
SAMPLES = {"trained": 5, "held_out": 16}
EPISODES = 64
FAULT_RATE, TOLERANCE = 0.10, 0.10
KEPT = ("critic/score/mean", "termination/", "episode/", "sft/loss", "actor/entropy", "timing_s/step")


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    if not options.read and not play(options):
        return print("not finished: the same command goes on")
    found = publish(summary(options.out))
    if broken := found["also"]["broken"]:
        raise SystemExit(f"assay: the claim does not hold: {'; '.join(broken)}")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="assay prove repair_learning")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs; the same one goes on with them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=45.0, help="training stops after so long; the same command goes on")
    parser.add_argument("--drill", action="store_true", help="also a run in which a tenth of the verifiers fail")
    parser.add_argument("--settings", type=Path, help="JSON that is laid over the run's document, such as a smaller stage")
    parser.add_argument("--read", action="store_true", help="train and play nothing")
    return parser.parse_args(arguments)


def document(options: argparse.Namespace, name: str) -> dict:
    """The preset without evaluations of its own: the passes play more episodes, and the trained tasks too."""
    run = presets.find(PRESET).start() | {"seed": options.seed, "evaluation": {"type": "none"}}
    told = {"unproven_reason": "run without a control plane, which is what proves anchors"}
    run["environment"] |= told | ({"verifier_fault_rate": FAULT_RATE} if name == DRILL else {})
    return laid_over(run, json.loads(options.settings.read_text())) if options.settings else run


# ---------------------------------------------------------------- runs and passes
def play(options: argparse.Namespace) -> bool:
    """Whether every run succeeded and every pass was played."""
    options.out.mkdir(parents=True, exist_ok=True)
    bank = prepare(options.out.resolve())
    os.environ["ASSAY_CACHE"] = str(options.out.resolve() / CACHE)
    deadline = time.monotonic() + 60 * options.minutes
    names = (RUN, DRILL) if options.drill else (RUN,)
    with cluster(1, 0):
        ended = [train(options.out / name, document(options, name), bank, deadline) for name in names]
    return all(ended) and all([played(options.out, name, moment, side, bank) for name in names for moment, side in passes(name)])


def train(folder: Path, run: dict, bank: Path, deadline: float) -> bool:
    """Whether the run has succeeded before the deadline; one that did is not run again."""
    if outcome_of(folder) == "succeeded":
        return True
    process = start(folder, run, bank)
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.terminate()
    finally:
        end(process)
    return outcome_of(folder) == "succeeded"


def passes(name: str) -> list[tuple[str, str]]:
    """(moment, side) of each pass. The drill begins from the same warm start, bit for bit, so that its beginning is played once."""
    moments = ("before", "after") if name == RUN else ("after",)
    return [(moment, side) for moment in moments for side in SAMPLES]


def weights_of(folder: Path, moment: str) -> Path:
    """Before GRPO, or after its last step."""
    stages = json.loads((folder / "run.json").read_text())["stages"]
    step = sum(stage["steps"] for stage in (stages[:-1] if moment == "before" else stages))
    return step_folder(folder, step) / "model"


def played(out: Path, name: str, moment: str, side: str, bank: Path) -> bool:
    """A pass in a process of its own, unless that was played."""
    to = pass_file(out, name, moment, side)
    if not to.exists():
        told = {"run": out / name / "run.json", "bank": bank, "cache": out / CACHE, "weights": weights_of(out / name, moment), "to": to}
        told |= {"side": side, "samples": SAMPLES[side]}
        command = [f"--{key}={value}" for key, value in told.items()]
        subprocess.run([sys.executable, "-m", "benchmarks.prove._repair", *command], cwd=CHECKOUT, check=True)
    return to.exists()


def pass_file(out: Path, name: str, moment: str, side: str) -> Path:
    return out.resolve() / f"{name}-{moment}-{side}.json"


# ---------------------------------------------------------------- the record
def summary(out: Path) -> dict:
    """Ours is the mean score of finished episodes on trained tasks after GRPO, the peer's figure that before."""
    found = {key: json.loads(pass_file(out, RUN, *key).read_text()) for key in passes(RUN)}
    also = {side: compared(found["before", side], found["after", side]) for side in SAMPLES}
    also["curves"] = curves(out / RUN)
    if pass_file(out, DRILL, "after", "trained").exists():
        also["drill"] = drilled(out, {side: found["after", side] for side in SAMPLES})
    also["broken"] = faults(also)
    settings = {"document": json.loads((out / RUN / "run.json").read_text()), "samples": SAMPLES}
    after, before = (also["trained"][moment]["interval"][0] for moment in ("after", "before"))
    unit = "termination/finished/score_mean on trained tasks; the peer is the model before GRPO"
    return record("repair_learning", after, before, unit, settings, also)


def compared(before: dict, after: dict) -> dict:
    return {"before": level(before), "after": level(after), "gain": described(paired_difference(by_task(before), by_task(after)))}


def finished(found: dict) -> list[dict]:
    """The population of termination/finished/score_mean."""
    return [row for row in found["results"] if row["termination"] == "finished" and row["score"] is not None]


def level(found: dict) -> dict:
    """Mean over finished episodes with its bootstrap interval, and over all graded ones; how episodes ended; the mean of each task."""
    scores = [row["score"] for row in finished(found)]
    graded = [row["score"] for row in found["results"] if row["score"] is not None]
    return {
        "interval": interval(bootstrap_mean(scores)),
        "n": len(scores),
        "graded": {"interval": interval(bootstrap_mean(graded)), "n": len(graded)},
        "terminations": dict(Counter(row["termination"] for row in found["results"])),
        "tasks": by_task(found),
    }


def by_task(found: dict) -> dict[str, float]:
    scores = defaultdict(list)
    for row in finished(found):
        scores[row["task"]].append(row["score"])
    return {task: round(sum(values) / len(values), 4) for task, values in sorted(scores.items())}


def drilled(out: Path, plain: dict[str, dict]) -> dict:
    """The drill's last weights less those of the run without, and how often its verifier failed in training."""
    after = {side: json.loads(pass_file(out, DRILL, "after", side).read_text()) for side in SAMPLES}
    told = {side: described(paired_difference(by_task(plain[side]), by_task(after[side]))) for side in SAMPLES}
    return {"difference": told, "curves": curves(out / DRILL)}


def curves(folder: Path) -> dict[str, dict[int, float]]:
    return laboratory.read(folder, KEPT).curves


def faults(also: dict) -> list[str]:
    """What does not hold, in words; the held-out gain is reported as it is."""
    told = []
    estimate, low, _ = also["trained"]["gain"]["interval"]
    if low is None or low <= 0:
        told.append(f"trained tasks gain {estimate}, with a lower bound of {low}; expected above 0")
    for side, moment in product(SAMPLES, ("before", "after")):
        if (n := also[side][moment]["graded"]["n"]) < EPISODES:
            told.append(f"{side}: {n} graded episodes {moment}, expected {EPISODES}")
    if "drill" in also:
        estimate, low, high = also["drill"]["difference"]["trained"]["interval"]
        if abs(estimate) > TOLERANCE:
            told.append(f"the drill changes the trained tasks' mean by {estimate} [{low}, {high}], expected at most {TOLERANCE}")
        failed = also["drill"]["curves"].get("termination/verifier_error/fraction", {})
        if not any(failed.values()):
            told.append("the drill shows no verifier error in training")
    return told
