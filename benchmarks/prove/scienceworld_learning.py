"""GiGPO after a warm start on gold solves more of the text laboratory than the warm start alone; GRPO under the same budget stands beside it.

    ./assay prove scienceworld_learning --bank FILE --out DIR [--seeds 0 1 2] [--gpus 1] [--minutes M]
    ./assay prove scienceworld_learning --out DIR --read     the record, from runs that are finished

One run a seed goes from the warm start on to GiGPO; GRPO goes on from the same warm start. Each is evaluated greedily on every native dev
variation of three short kinds of task, after the warm start, on the way, and at the end; the claim is about GiGPO's gain, paired by
variation and pooled over the seeds. The 140 fixed dev episodes of all thirty kinds are played with the weights before and after.

`--minutes` ends the runs in time: each saves, and the same command goes on from there. With GPUs all runs share them. The bank comes from
`python -m runner.importers scienceworld --replays 50 --gold-tasks 4-2,7-1,7-2 --cap 20 --think empty --out FILE`.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path

from benchmarks.prove import _laboratory as laboratory
from benchmarks.record import publish, record
from controlplane.evals.statistics import Difference, Interval, paired_difference, pooled_difference
from runner.contract import presets

CHECKOUT = Path(__file__).resolve().parents[2]
WARM, AFTER = "after stage 0", "after stage 1"
METHODS = ("gigpo", "grpo")
# All runs' engines start on one GPU at the same time: none can measure what is free for it.
ENGINE = {"type": "vllm", "memory_fraction": 0.06, "cache_gib": 4.0, "max_sequences": 64}
LOOK_SECONDS = 1.0
# A run that is asked to stop finishes its step and saves.
STOP_SECONDS = 90.0


def main(arguments: list[str]) -> None:
    options = parse(arguments)
    if not options.read and not train(options):
        return print("not finished: the same command goes on")
    found = publish(summary(options.out, options.seeds))
    if broken := found["also"]["broken"]:
        raise SystemExit(f"assay: the claim does not hold: {'; '.join(broken)}")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="assay prove scienceworld_learning")
    parser.add_argument("--bank", type=Path, help="bank file with gold of the three kinds")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs; the same one goes on with them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="train these alone; GRPO waits for the warm start")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs that all runs share")
    parser.add_argument("--simulators", type=int, default=2, help="simulators of each run")
    parser.add_argument("--settings", type=Path, help="JSON that is laid over every run's document, such as smaller stages")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop the runs after so long; the same command goes on")
    parser.add_argument("--read", action="store_true", help="train nothing")
    options = parser.parse_args(arguments)
    if not options.read and not options.bank:
        parser.error("--bank FILE is needed to train")
    return options


# ---------------------------------------------------------------- the runs
def warm_then_gigpo(options: argparse.Namespace, seed: int) -> dict:
    """The document of the one run that is the claim's."""
    document = presets.find("scienceworld-short").start() | {"name": f"ScienceWorld, GiGPO, seed {seed}", "seed": seed}
    document["environment"]["max_concurrent_episodes"] = options.simulators
    document["resources"] |= {"gpus": options.gpus, "share_gpus": bool(options.gpus)}
    if options.gpus:
        document["engine"] = ENGINE
    return laid_over(document, json.loads(options.settings.read_text())) if options.settings else document


def grpo_from(document: dict, weights: Path) -> dict:
    """The same budget from the same warm start: what GiGPO's stage has and GRPO's knows stays as it is."""
    found = deepcopy(document)
    found["name"] = document["name"].replace("GiGPO", "GRPO")
    found["model"]["source"] = {"type": "path", "path": str(weights)}
    common = ("steps", "batch_size", "group_size", "micro_batch_tokens", "optimizer")
    stage = document["stages"][1]
    found["stages"] = [{"type": "grpo", "advantage": "mean_std", **{name: stage[name] for name in common if name in stage}}]
    if document["evaluation"]["every_steps"]:
        found["evaluation"]["every_steps"] -= document["stages"][0]["steps"]
    return found


def laid_over(document: dict, changes: dict) -> dict:
    """`changes` inside `document`: objects are merged, of lists the items at the same place."""
    merged = dict(document)
    for name, value in changes.items():
        old = merged.get(name)
        if isinstance(value, dict) and isinstance(old, dict):
            merged[name] = laid_over(old, value)
        elif isinstance(value, list) and isinstance(old, list):
            merged[name] = [laid_over(one, other) for one, other in zip(old, value, strict=True)]
        else:
            merged[name] = value
    return merged


def train(options: argparse.Namespace) -> bool:
    """All runs side by side, GRPO's as soon as its warm start is saved, then the fixed dev episodes. Whether all is there for the record."""
    deadline = time.monotonic() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    with cluster(len(options.methods) * len(options.seeds), options.gpus):
        finished = all_ended([Course(options, seed) for seed in options.seeds], deadline)
    if finished:
        play_fixed_dev(options, deadline)
    return finished and set(options.methods) == set(METHODS)


class cluster:
    """A Ray of this machine's own, whose address the runs find; the GPUs count once for each run, since all of them share."""

    def __init__(self, runs: int, gpus: int):
        self.runs, self.gpus = runs, gpus

    def __enter__(self) -> None:
        import ray

        # Ray gives out the one GPU several times over.
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join([seen] * self.runs) if self.gpus else ""
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
        plenty = {"num_cpus": 4 * self.runs, "num_gpus": self.gpus * self.runs}
        ray.init(**plenty, include_dashboard=False, configure_logging=False, log_to_driver=False)
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        os.environ["CUDA_VISIBLE_DEVICES"] = seen

    def __exit__(self, *_) -> None:
        import ray

        ray.shutdown()


class Course:
    """One seed: the run from warm start to GiGPO, and GRPO's run from its warm start."""

    def __init__(self, options: argparse.Namespace, seed: int):
        self.options, self.document = options, warm_then_gigpo(options, seed)
        self.folders = {method: folder_of(options.out, method, seed) for method in METHODS}
        self.running: dict[str, subprocess.Popen] = {}

    def go_on(self) -> bool:
        """Start what can be started; whether the wanted runs have ended."""
        for method in self.options.methods:
            document = self._document(method)
            if document and method not in self.running and outcome_of(self.folders[method]) != "succeeded":
                self.running[method] = start(self.folders[method], document, self.options.bank)
        return all(self._ended(method) for method in self.options.methods)

    def _document(self, method: str) -> dict | None:
        """What `method` runs; None while its warm start is not there."""
        if method == "gigpo":
            return self.document
        warm = warm_weights(self.folders["gigpo"], self.document)
        return warm and grpo_from(self.document, warm)

    def _ended(self, method: str) -> bool:
        if method in self.running:
            return self.running[method].poll() is not None
        # Without its warm start it never begins.
        return outcome_of(self.folders[method]) == "succeeded" or ("gigpo" in self.running and self._ended("gigpo"))

    def stop(self) -> None:
        """Ask for an end that can be gone on from, and wait for it."""
        alive = [process for process in self.running.values() if process.poll() is None]
        for process in alive:
            process.send_signal(signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        for process in alive:
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


def all_ended(courses: list[Course], deadline: float) -> bool:
    """Whether every run succeeded before the deadline."""
    try:
        while sum(course.go_on() for course in courses) < len(courses) and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
    finally:
        for course in courses:
            course.stop()
    return all(outcome_of(course.folders[method]) == "succeeded" for course in courses for method in course.options.methods)


def folder_of(out: Path, method: str, seed: int) -> Path:
    return out / f"{method}-{seed}"


def start(folder: Path, document: dict, bank: Path) -> subprocess.Popen:
    """The runner, from the newest checkpoint where there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(document, indent=1))
    resume = newest_checkpoint(folder)
    command = [sys.executable, "-m", "runner.main", "--local", str(folder / "run.json"), "--bank", str(bank), "--out", str(folder)]
    with open(folder / "output.log", "ab") as log:
        return subprocess.Popen(
            [*command, *(["--resume", str(resume)] if resume else [])], cwd=CHECKOUT, stdout=log, stderr=subprocess.STDOUT
        )


def newest_checkpoint(folder: Path) -> Path | None:
    """A checkpoint is renamed into place when it is whole."""
    found = [path for path in folder.glob("checkpoints/attempt_*/step_*") if path.name[5:].isdigit()]
    return max(found, key=lambda path: int(path.name[5:]), default=None)


def step_folder(folder: Path, step: int) -> Path | None:
    return next(iter(folder.glob(f"checkpoints/attempt_*/step_{step}")), None)


def warm_weights(folder: Path, document: dict) -> Path | None:
    """The model folder that the warm start left."""
    found = step_folder(folder, document["stages"][0]["steps"])
    return found and found / "model"


def outcome_of(folder: Path) -> str:
    """The last attempt's, empty before there is one."""
    records = sorted(folder.glob("attempts/*/exit.json"), key=lambda path: int(path.parent.name))
    return json.loads(records[-1].read_text())["outcome"] if records else ""


def play_fixed_dev(options: argparse.Namespace, deadline: float) -> None:
    """The fixed dev episodes, a process each: of every seed the warm start, and where the methods left it."""
    names = [name for name, method in (("warm", "gigpo"), ("gigpo", "gigpo"), ("grpo", "grpo")) if method in options.methods]
    processes = [fixed_dev_pass(options, name, seed) for name in names for seed in options.seeds]
    for process in filter(None, processes):
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()


def fixed_dev_pass(options: argparse.Namespace, name: str, seed: int) -> subprocess.Popen | None:
    """A process that plays them with one model, unless that was done."""
    to = options.out / f"fixed-dev-{name}-{seed}.json"
    if to.exists():
        return None
    gigpo = folder_of(options.out, "gigpo", seed)
    run = gigpo / "run.json"
    if name == "warm":
        weights = warm_weights(gigpo, json.loads(run.read_text()))
    else:
        weights = newest_checkpoint(folder_of(options.out, name, seed)) / "model"
    told = ["--run", run, "--bank", options.bank, "--weights", weights, "--to", to]
    return subprocess.Popen([sys.executable, "-m", "benchmarks.prove._laboratory", *map(str, told)], cwd=CHECKOUT)


# ---------------------------------------------------------------- the record
def summary(out: Path, seeds: list[int]) -> dict:
    """Ours is GiGPO's pooled gain in greedy success, the peer's figure GRPO's."""
    told = {seed: {method: laboratory.read(folder_of(out, method, seed)) for method in METHODS} for seed in seeds}
    rows = [seed_row(seed, told[seed]) for seed in seeds]
    pooled = {method: interval(pooled_difference([changes(told[seed], method) for seed in seeds])) for method in METHODS}
    between = pooled_difference([difference_of_methods(told[seed]) for seed in seeds])
    also = {
        "pooled_gain": pooled,
        "gigpo_less_grpo": interval(between),
        "seeds": rows,
        "fixed_dev": {name: fixed_dev(out, name, seeds) for name in ("warm", *METHODS)},
        "broken": faults(pooled["gigpo"]),
    }
    document = json.loads((folder_of(out, "gigpo", seeds[0]) / "run.json").read_text())
    settings = {"seeds": seeds, "document": document, "protocol": told[seeds[0]]["gigpo"].evaluations[WARM]["protocol"]}
    estimates = [pooled[method][0] for method in METHODS]
    return record("scienceworld_learning", *estimates, "gain in greedy success, all native dev variations", settings, also)


def seed_row(seed: int, told: dict[str, laboratory.Told]) -> dict:
    warm = laboratory.success(told["gigpo"].evaluations[WARM])
    row = {"seed": seed, "after_warm_start": rate(told["gigpo"].evaluations[WARM])}
    for method in METHODS:
        last = final(told[method], method)
        row[method] = {"success": rate(last), "gain": described(paired_difference(warm, laboratory.success(last)))}
        row[method]["curves"] = told[method].curves
        row[method]["solved"] = {label: solved(evaluation) for label, evaluation in told[method].evaluations.items()}
    return row


def final(told: laboratory.Told, method: str) -> dict:
    """The evaluation after the last stage."""
    return told.evaluations[AFTER if method == "gigpo" else WARM]


def changes(told: dict[str, laboratory.Told], method: str) -> dict[str, float]:
    """After the method less after the warm start, of the variations that were graded both times."""
    return less(laboratory.success(final(told[method], method)), laboratory.success(told["gigpo"].evaluations[WARM]))


def difference_of_methods(told: dict[str, laboratory.Told]) -> dict[str, float]:
    return less(*(laboratory.success(final(told[method], method)) for method in METHODS))


def less(after: dict[str, float | None], before: dict[str, float | None]) -> dict[str, float]:
    return {task: after[task] - score for task, score in before.items() if score is not None and after.get(task) is not None}


def rate(evaluation: dict) -> dict:
    told = evaluation["summary"]
    kinds = {level: means["accuracy"] for level, means in told["by_level"].items()}
    return {name: told[name] for name in ("success_rate", "success_rate_low", "success_rate_high", "score_mean", "graded")} | {
        "by_kind": kinds
    }


def solved(evaluation: dict) -> dict:
    return {"step": evaluation["step"], "scores": laboratory.success(evaluation)}


def interval(found: Interval) -> list[float | None]:
    """[estimate, low, high] at 95 %."""
    return [value if value is None else round(value, 4) for value in (found.estimate, found.low, found.high)]


def described(found: Difference) -> dict:
    return {"interval": interval(found.interval), "n": found.interval.n, "better": found.better, "worse": found.worse, "p": found.p}


def fixed_dev(out: Path, name: str, seeds: list[int]) -> dict[int, dict]:
    """Success and mean score over the fixed episodes by seed; a pass that was not played is absent."""
    found = {}
    for seed in seeds:
        path = out / f"fixed-dev-{name}-{seed}.json"
        if path.exists():
            told = json.loads(path.read_text())["summary"]
            found[seed] = {key: told[key] for key in ("success_rate", "success_rate_low", "success_rate_high", "score_mean", "graded")}
    return found


def faults(gain: list[float | None]) -> list[str]:
    estimate, low, _ = gain
    if low is None or low <= 0:
        return [f"GiGPO gains {estimate}, with a lower bound of {low}; expected above 0"]
    return []
