"""The sample bank for runs without a control plane, and passes of the menu agent over its easy tasks in real containers."""

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path

from runner.assignment import open_bank
from runner.contract.bank import write_bank
from runner.contract.parse import load_text, parse
from runner.contract.run_config import RunConfig
from runner.environments.repair_bank import BANK
from runner.environments.site import Site, house_name
from runner.evaluation.evaluator import to_result
from runner.importers.harbor import opened
from runner.policies.base import SamplingParams
from runner.repair.cache import TaskCache
from runner.repair.compile import compile_bank
from runner.rollouts.episodes import Job
from runner.rollouts.groups import evaluation_orders
from runner.rollouts.worker import RolloutWorker

# Built models and task files of all runs and passes below a proof's folder.
CACHE = "cache"


def prepare(out: Path) -> Path:
    """Compile the sample bank, keep its task files where runs below `out` look for them, and return its bank file."""
    file, dense = out / "bank.zst", out / "dense"
    if file.exists():
        return file
    shutil.rmtree(dense, ignore_errors=True)
    compile_bank(BANK, dense)
    cache = TaskCache(out / CACHE / "tasks")
    with opened(str(dense)) as bank:
        for entry in bank.report.bank.entries:
            cache.adopt(entry.files.folder)
        file.write_bytes(write_bank([*bank.tasks, *bank.demonstrations])[0])
    return file


def main() -> None:
    """`--samples` episodes of each task of one side, by the model folder `--weights`: prints nothing, writes `--to`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prove._repair", description=main.__doc__)
    for name in ("run", "bank", "cache", "weights", "to"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--side", choices=("trained", "held_out"), required=True)
    parser.add_argument("--samples", type=int, required=True)
    options = parser.parse_args()
    config = parse(load_text(options.run.read_text(), "json"))
    options.to.write_text(json.dumps(played(config, options)))


def played(config: RunConfig, options: argparse.Namespace) -> dict:
    """Results in order, each with how its episode ended. No verifier is made to fail: what a pass measures is the model."""
    config = config.model_copy(update={"environment": config.environment.model_copy(update={"verifier_fault_rate": 0.0})})
    bank = open_bank(options.bank.read_bytes(), config)
    tasks = bank.train if options.side == "trained" else bank.held_out
    tasks = [task for task in tasks if len(task.payload["menu"]) > 1 for _ in range(options.samples)]
    folder = options.to.with_suffix("")
    site = Site(config.environment, TaskCache(options.cache / "tasks"), folder / "jobs", house_name(folder), "pass")
    worker = RolloutWorker("repair", config, tasks, site)
    worker.load_policy(options.weights)
    about = {"attempt": "pass", "evaluation": options.side, "stage": 0, "step": 0, "run_seed": config.seed}
    orders = evaluation_orders([task.key for task in tasks], **about)
    outcomes = worker.run_episodes(Job(tuple(orders), SamplingParams(1.0, 1.0, config.sampling.max_new_tokens))).outcomes
    results = [to_result(task, outcome, None, None) for task, outcome in zip(tasks, outcomes, strict=True)]
    rows = zip(results, outcomes, strict=True)
    return {"results": [asdict(result) | {"termination": outcome.termination.value} for result, outcome in rows]}


if __name__ == "__main__":
    main()
