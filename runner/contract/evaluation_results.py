"""What an evaluation selects and what it says: the tasks, one record a trial (`results.jsonl`), and their summary (`summary.json`).

Names and meaning of the fields are those of the published harness. Where it counted a trial without a reward as 0, `mean_score` here is
over graded trials alone, with their number; the published figure stands beside it as `mean_score_all_trials`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from runner.contract.evaluation_config import EvaluationConfig
from runner.contract.repair import BLOCKED
from runner.contract.taxonomy import is_overflow

Record = dict[str, Any]
Intervals = Callable[[Sequence[Record]], dict[str, Any]]
FLOOR_TOLERANCE = 1e-6
T = TypeVar("T")


# ---------------------------------------------------------------- tasks
def select(tasks: Sequence[T], config: EvaluationConfig) -> list[T]:
    """The tasks of a bank that `config` evaluates, by name. `tasks` have key, split, domain, level, family and payload.

    Raises ValueError saying after which filter nothing was left.
    """
    left = [task for task in tasks if task.split != BLOCKED]
    for name, keeps in _filters(config):
        before, left = left, [task for task in left if keeps(task)]
        if before and not left:
            raise ValueError(f"no task is left after {name}; {len(before)} were before it")
    left = sorted(left, key=lambda task: task.key)
    if config.selection.per_family:
        left = _first_of_each(left, config.selection.per_family)
    left = left[: config.selection.limit]
    if not config.selection.gpu_tasks:
        left = [task for task in left if not task.payload.get("gpus")]
    if not left:
        raise ValueError("no task is left; loosen the filters, or take GPU tasks in")
    return left


def _filters(config: EvaluationConfig) -> list[tuple[str, Callable[[Any], bool]]]:
    chosen, environment = config.selection, config.environment
    by_menu = config.agent == "model" and environment.agent.type == "menu"
    filters = [
        ("selection.splits", chosen.splits, lambda task: task.split in chosen.splits),
        ("environment.domains", environment.domains, lambda task: task.domain in environment.domains),
        ("environment.levels", environment.levels, lambda task: task.level in environment.levels),
        ("selection.categories", chosen.categories, lambda task: task.payload.get("category", "") in chosen.categories),
        ("environment.families", environment.families, lambda task: task.family in environment.families),
        ("selection.task_glob", chosen.task_glob, lambda task: fnmatchcase(task.key, chosen.task_glob)),
        ("environment.agent: a menu of edits is needed", by_menu, lambda task: len(task.payload.get("menu") or ()) >= 2),
    ]
    return [(name, keeps) for name, wanted, keeps in filters if wanted]


def stratum(task: Any) -> tuple[str, str, str]:
    """(category, family, tree)."""
    return task.payload.get("category", ""), task.family, task.payload.get("tree", "")


def _first_of_each(tasks: Sequence[T], count: int) -> list[T]:
    seen: Counter = Counter()
    kept = []
    for task in tasks:
        seen[stratum(task)] += 1
        if seen[stratum(task)] <= count:
            kept.append(task)
    return kept


# ---------------------------------------------------------------- records
def error_class(exception: str, termination: str, graded: bool) -> str:
    """ok, prompt_overflow, timeout, no_reward or other."""
    if termination == "max_response_length_exceeded" or is_overflow(exception):
        return "prompt_overflow"
    if "timeout" in termination or "timed out" in exception.lower():
        return "timeout"
    if graded:
        return "ok"
    return "other" if exception else "no_reward"


def floor_mismatch(records: Sequence[Record]) -> list[Record]:
    """Trials whose verifier reported another floor than the bank has."""
    return [
        {"task_name": record["task_name"], "reported": record["floor_reported"], "expected": record["floor_expected"]}
        for record in records
        if None not in (record["floor_reported"], record["floor_expected"])
        and abs(record["floor_reported"] - record["floor_expected"]) > FLOOR_TOLERANCE
    ]


# ---------------------------------------------------------------- summary
def summarise(records: Sequence[Record], config: dict[str, Any], intervals: Intervals = lambda records: {}) -> dict[str, Any]:
    """`summary.json`: overall, by category, by family ("category/family/tree"), errors, floors that differ, and the config.

    `intervals` adds to each block what it knows of its uncertainty.
    """
    by_category, by_family = defaultdict(list), defaultdict(list)
    for record in records:
        by_category[record["category"]].append(record)
        by_family["/".join((record["category"], record["family"], record["tree"]))].append(record)
    return {
        "overall": block(records, intervals),
        "by_category": {name: block(rows, intervals) for name, rows in sorted(by_category.items())},
        "by_family": {name: block(rows, intervals) for name, rows in sorted(by_family.items())},
        "errors": dict(Counter(record["error_class"] for record in records if record["error_class"] != "ok")),
        "floor_mismatch": floor_mismatch(records),
        "config": config,
    }


MEANS = {
    "mean_turns": "n_turns",
    "mean_total_tokens": "n_total_tokens",
    "mean_output_tokens": "n_output_tokens",
    "mean_traj_chars": "traj_chars",
    "mean_prompt_chars": "prompt_chars",
    "mean_agent_chars": "agent_chars",
    "mean_env_chars": "env_chars",
    "mean_agent_seconds": "agent_seconds",
    "mean_total_seconds": "total_seconds",
}


def block(records: Sequence[Record], intervals: Intervals = lambda records: {}) -> dict[str, Any]:
    """Means over the trials that have a value; None when none has."""
    graded = [record for record in records if record["score"] is not None]
    tasks = {record["task_name"] for record in records}
    scores = [record["score"] for record in graded]
    return {
        "n_trials": len(records),
        "n_tasks": len(tasks),
        "n_graded": len(graded),
        "mean_score": mean(scores),
        "mean_score_all_trials": sum(scores) / len(records) if records else None,
        "mean_raw_reward": mean([record["raw_reward"] for record in graded if record["raw_reward"] is not None]),
        "pass_rate": mean([float(record["success"]) for record in graded]),
        "pass_any_rate": len({record["task_name"] for record in graded if record["success"]}) / len(tasks) if tasks else None,
        "n_success": sum(record["success"] for record in graded),
        "n_errors": sum(record["error_class"] != "ok" for record in records),
        "n_regraded": sum(record["regraded"] for record in records),
        "n_unmeasured": sum(not record["rewards"] for record in records),
        **{name: mean([record[key] for record in records if record[key] is not None]) for name, key in MEANS.items()},
        **intervals(records),
    }


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
