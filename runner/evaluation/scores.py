"""From results per task to means, each over a named population."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Sequence


@dataclass(frozen=True)
class Result:
    """One held-out task. None means not graded, and enters no mean."""

    task: str
    domain: str
    level: str
    score: float | None
    forced: float | None
    parsed: bool | None
    episode: str
    without_question: float | None = None

    def row(self) -> dict[str, Any]:
        """As the `evaluation` event carries it."""
        return {key: value for key, value in vars(self).items() if key != "without_question"}


def mean(values: Sequence[float | bool | None]) -> float | None:
    """Over the values there are; None when there is none."""
    present = [float(value) for value in values if value is not None]
    return sum(present) / len(present) if present else None


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """Means with their counts, over all tasks, by domain and by level."""
    return {
        **_means(results),
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


def _by(results: Sequence[Result], attribute: str) -> dict[str, dict[str, Any]]:
    groups = defaultdict(list)
    for result in results:
        groups[getattr(result, attribute)].append(result)
    return {name: _means(members) for name, members in sorted(groups.items()) if name}


def metrics(summary: dict[str, Any]) -> dict[str, float]:
    """`val/…` points of a summary; what is undefined is absent."""
    points = {f"val/{name}": summary[name] for name in ("accuracy", "forced_choice", "parsed_fraction", "without_question")}
    for domain, means in summary["by_domain"].items():
        path = domain.replace("/", "_")
        points |= {f"val/{name}/{path}": means[name] for name in ("accuracy", "forced_choice")}
    return {name: value for name, value in points.items() if value is not None}
