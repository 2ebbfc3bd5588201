"""Which complete checkpoints are kept, and why: a pure function, tested on random histories."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Hashable

from runner.contract.metrics import TRACKED, lookup

# However few a run asks for: the newest may turn out to be damaged.
ALWAYS_KEPT = 2


@dataclass(frozen=True)
class Item:
    """A complete checkpoint as retention sees it."""

    key: Hashable
    step: int
    completed_at: datetime
    metrics: dict[str, float] = field(default_factory=dict)
    pinned: bool = False


def plan(items: Iterable[Item], keep_last: int, keep_best: bool, in_use: Collection[Hashable] = ()) -> dict[Hashable, list[str]]:
    """Key → the reasons to keep it, newest first; an empty list means it may be deleted."""
    newest_first = sorted(items, key=lambda item: (item.completed_at, item.step, str(item.key)), reverse=True)
    reasons: dict[Hashable, list[str]] = {item.key: [] for item in newest_first}
    for item in newest_first[: max(keep_last, ALWAYS_KEPT)]:
        reasons[item.key].append("newest")
    for name in TRACKED if keep_best else ():
        if best := best_by(name, newest_first):
            reasons[best.key].append(f"best {name}")
    for item in newest_first:
        reasons[item.key] += ["pinned"] * item.pinned + ["in use"] * (item.key in in_use)
    return reasons


def best_by(name: str, newest_first: list[Item]) -> Item | None:
    """The best by one metric in the dictionary's direction; of equals the newest. A missing or non-finite value is no candidate."""
    able = [item for item in newest_first if _is_number(item.metrics.get(name))]
    sign = -1 if lookup(name).good == "down" else 1
    return max(able, key=lambda item: sign * item.metrics[name], default=None)


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
