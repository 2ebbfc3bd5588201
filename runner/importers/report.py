"""What an import read, kept and dropped: one JSON object that the bank's page shows."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Sequence

from runner.contract.bank import Task
from runner.contract.baselines import choice_baselines

EXAMPLES = 20


@dataclass
class Report:
    """Grows while rows are read; `document` is what is sent."""

    source: dict[str, Any]
    read: int = 0
    notes: list[str] = field(default_factory=list)
    broken: list[dict[str, Any]] = field(default_factory=list)
    _dropped: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def drop(self, reason: str, key: str) -> None:
        """Leave out the row `key`; `reason` is one of few, so that rows can be counted by it."""
        self._dropped[reason].append(key)

    def refuse(self, row: int, key: str, reason: str) -> None:
        """Leave out row number `row` (from 1), which is broken; each is listed."""
        self.broken.append({"row": row, "key": key, "reason": reason})

    def document(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """{source, read, kept, dropped: [{reason, count, examples}], broken: [{row, key, reason}], splits, notes}."""
        dropped = dict(self._dropped)
        if self.broken:
            dropped["broken row"] = [f"row {item['row']}: {item['reason']}" for item in self.broken]
        ordered = sorted(dropped.items(), key=lambda item: -len(item[1]))
        return {
            "source": self.source,
            "read": self.read,
            "kept": len(tasks),
            "dropped": [{"reason": reason, "count": len(keys), "examples": keys[:EXAMPLES]} for reason, keys in ordered],
            "broken": self.broken,
            "splits": {split: split_summary([task for task in tasks if task.split == split]) for split in sorted({task.split for task in tasks})},
            "notes": self.notes,
        }


def split_summary(tasks: Sequence[Task]) -> dict[str, Any]:
    """Counts by domain, level and family with what needs no model: chance, majority letter, longest option; over all and per domain."""
    domains = sorted({task.domain for task in tasks})
    return {
        "tasks": len(tasks),
        "domains": dict(sorted(Counter(task.domain for task in tasks).items())),
        "levels": dict(sorted(Counter(task.level for task in tasks).items())),
        "families": dict(sorted(Counter(task.family for task in tasks).items())),
        "baselines": choice_baselines(tasks),
        "baselines_by_domain": {domain: choice_baselines([task for task in tasks if task.domain == domain]) for domain in domains},
    }
