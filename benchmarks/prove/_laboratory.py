"""What the proof of learning in the laboratory reads from a run's spool, and held-out passes over other tasks than the run's own."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.assignment import open_bank
from runner.contract.parse import load_text, parse
from runner.contract.run_config import RunConfig
from runner.evaluation.scores import summarise
from runner.policies.base import SamplingParams
from runner.reporting.batches import read_batches
from runner.rollouts.episodes import Job
from runner.rollouts.groups import evaluation_orders

# What is kept of a run, step by step.
CURVES = ("val/", "sft/", "episode/", "critic/score/", "gigpo/", "actor/", "env/", "timing_s/")


@dataclass
class Told:
    """A run as its spool tells it: evaluations by label, and curves as {name: {step: value}}."""

    evaluations: dict[str, dict]
    curves: dict[str, dict[int, float]]


def read(run: Path, kept: tuple[str, ...] = CURVES) -> Told:
    """Everything that the attempts of `run` told, of its curves those whose names begin with `kept`; a later attempt's word stands."""
    evaluations, curves = {}, {}
    for attempt in sorted((run / "attempts").iterdir(), key=lambda path: int(path.name)):
        for batch in read_batches(attempt / "spool"):
            evaluations |= {event["data"]["label"]: event["data"] for event in batch.events if event["kind"] == "evaluation"}
            for name, step, value in _points(batch.points):
                if name.startswith(kept):
                    curves.setdefault(name, {})[step] = value
    return Told(evaluations, curves)


def _points(points) -> Iterator[tuple[str, int, float]]:
    for series, step, value in zip(points.series, points.step, points.value, strict=True):
        yield points.names[series], int(step), float(value)


def success(evaluation: dict) -> dict[str, float | None]:
    """{task: 1 solved, 0 not, None not graded}."""
    return {result["task"]: result["score"] for result in evaluation["results"]}


# ---------------------------------------------------------------- a pass of its own
def main() -> None:
    """Greedy over the fixed dev episodes of all thirty kinds, with the cap and the prompts of the run: prints nothing, writes `--to`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prove._laboratory", description=main.__doc__)
    for name in ("run", "bank", "weights", "to"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    config = parse(load_text(options.run.read_text(), "json"))
    found = fixed_dev(config, options.bank.read_bytes(), options.weights)
    options.to.write_text(json.dumps(found))


def fixed_dev(config: RunConfig, bank: bytes, weights: Path) -> dict:
    """Summary and results of the 140 fixed dev episodes, by the model folder `weights`."""
    from runner.environments.scienceworld.pool import Pool
    from runner.evaluation.evaluator import to_result
    from runner.rollouts.worker import RolloutWorker

    environment = config.environment.model_copy(update={"levels": [], "eval_tasks": "dev140"})
    config = config.model_copy(update={"environment": environment})
    tasks = open_bank(bank, config).held_out
    worker = RolloutWorker("laboratory", config, tasks, Pool(environment))
    worker.load_policy(weights, "cuda" if config.resources.gpus else "cpu")
    about = {"attempt": "fixed-dev", "evaluation": str(weights), "stage": 0, "step": 0, "run_seed": config.seed}
    orders = evaluation_orders([task.key for task in tasks], **about)
    sampling = SamplingParams(config.evaluation.temperature, 1.0, config.sampling.max_new_tokens)
    outcomes = worker.run_episodes(Job(tuple(orders), sampling)).outcomes
    results = [to_result(task, outcome, None, None) for task, outcome in zip(tasks, outcomes, strict=True)]
    return {"summary": summarise(results), "results": [asdict(result) for result in results]}


if __name__ == "__main__":
    main()
