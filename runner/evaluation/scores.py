"""From results per task to means, each over a named population."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Sequence

from runner.contract.metrics import EFFECTIVE

SCORES = ("success_rate_low", "success_rate_high", "score_mean", "score_mean_clip0", "score_best_mean", "test_score_rowweighted")


@dataclass(frozen=True)
class Result:
    """One held-out task. None means not graded, and enters no mean.

    Where the environment knows success from score, `score` is success as 0 or 1; `final` and `best` are the scores it ended with and
    reached at best, in tenths of the full one; `turns` is how many the episode took.
    """

    task: str
    domain: str
    level: str
    score: float | None
    forced: float | None
    parsed: bool | None
    episode: str
    without_question: float | None = None
    final: float | None = None
    best: float | None = None
    turns: int = 0

    def row(self) -> dict[str, Any]:
        """As the `evaluation` event carries it."""
        kept = ("task", "domain", "level", "score", "forced", "parsed", "episode")
        return {name: getattr(self, name) for name in kept}


def mean(values: Sequence[float | bool | None]) -> float | None:
    """Over the values there are; None when there is none."""
    present = [float(value) for value in values if value is not None]
    return sum(present) / len(present) if present else None


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """Means with their counts, over all tasks, by domain and by level."""
    return {
        **_means(results),
        **_scores([result for result in results if result.final is not None]),
        "by_domain": _by(results, "domain"),
        "by_level": _by(results, "level"),
    }


def _means(results: Sequence[Result]) -> dict[str, Any]:
    return {
        "tasks": len(results),
        "accuracy": mean([result.score for result in results]),
        "graded": sum(result.score is not None for result in results),
        "forced_choice": mean([result.forced for result in results]),
        "forced": sum(result.forced is not None for result in results),
        "parsed_fraction": sum(result.parsed is True for result in results) / len(results) if results else None,
        "without_question": mean([result.without_question for result in results]),
    }


def _scores(graded: Sequence[Result]) -> dict[str, Any]:
    """Of episodes whose success is known apart from their score; empty where none is.

    `score_mean` has one value an episode; `test_score_rowweighted` one a turn, as published, so that long episodes weigh more.
    """
    if not graded:
        return {}
    finals, turns = [result.final for result in graded], sum(result.turns for result in graded)
    low, high = wilson(sum(result.score or 0.0 for result in graded), len(graded))
    return {
        "success_rate": mean([result.score for result in graded]),
        "success_rate_low": low,
        "success_rate_high": high,
        "score_mean": mean(finals),
        "score_mean_clip0": mean([max(final, 0.0) for final in finals]),
        "score_best_mean": mean([result.best for result in graded]),
        "test_score_rowweighted": sum(result.final * result.turns for result in graded) / turns if turns else None,
    }


def wilson(successes: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's 95 % interval of a rate, n ≥ 1."""
    rate, spread = successes / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z / (1 + spread) * (rate * (1 - rate) / n + spread / (4 * n)) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


def _by(results: Sequence[Result], attribute: str) -> dict[str, dict[str, Any]]:
    groups = defaultdict(list)
    for result in results:
        groups[getattr(result, attribute)].append(result)
    return {name: _means(members) for name, members in sorted(groups.items()) if name}


def metrics(summary: dict[str, Any]) -> dict[str, float]:
    """`val/…` points of a summary; what is undefined is absent."""
    names = ("accuracy", "forced_choice", "parsed_fraction", "without_question")
    # Success is the accuracy of such episodes: one name is enough, or two best checkpoints would be kept for it.
    renamed = {"accuracy": "success_rate"} if "success_rate" in summary else {}
    points = {f"val/{renamed.get(name, name)}": summary[name] for name in names}
    points |= {f"val/{name}": summary[name] for name in SCORES if name in summary}
    points |= {"val/n_effective": float(summary["graded"])}
    if summary["tasks"]:
        points[EFFECTIVE] = summary["graded"] / summary["tasks"]
    for domain, means in summary["by_domain"].items():
        path = domain.replace("/", "_")
        points |= {f"val/{renamed.get(name, name)}/{path}": means[name] for name in ("accuracy", "forced_choice")}
    if renamed:
        points |= {f"val/success_rate_of/{level.replace('/', '_')}": means["accuracy"] for level, means in summary["by_level"].items()}
    return {name: value for name, value in points.items() if value is not None}
