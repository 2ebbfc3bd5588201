"""Which complete checkpoints are kept, and why: a pure function, tested on random histories."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Hashable

from runner.contract.metrics import EFFECTIVE, MIN_EFFECTIVE, is_tracked, lookup

# However few a run asks for while it may go on: the newest may turn out to be damaged.
ALWAYS_KEPT = 2
# A best is replaced only by what is better by more than this; of equals the earlier stays.
MIN_DELTA = 1e-9
TOP = 3


@dataclass(frozen=True)
class Item:
    """A complete checkpoint as retention sees it. `adapter`: its weights are a low-rank adapter alone."""

    key: Hashable
    step: int
    completed_at: datetime
    metrics: dict[str, float] = field(default_factory=dict)
    pinned: bool = False
    adapter: bool = False


@dataclass(frozen=True)
class Rules:
    """What a run asks to keep (`RunConfig.checkpoints`). `over`: it has ended, in whatever way; `succeeded`: it will not go on."""

    keep_last: int = ALWAYS_KEPT
    keep_best: bool = True
    prune: dict[str, Any] = field(default_factory=lambda: {"type": "pinned"})
    over: bool = False
    succeeded: bool = False


def plan(items: Iterable[Item], rules: Rules, in_use: Collection[Hashable] = ()) -> dict[Hashable, list[str]]:
    """Key → the reasons to keep it, newest first; an empty list means it may be deleted."""
    newest_first = sorted(items, key=lambda item: (item.completed_at, item.step, str(item.key)), reverse=True)
    reasons: dict[Hashable, list[str]] = {item.key: [] for item in newest_first}
    for item in newest_first[:1] if rules.succeeded else ():
        reasons[item.key].append("final")
    for item in newest_first[: rules.keep_last if rules.succeeded else max(rules.keep_last, ALWAYS_KEPT)]:
        reasons[item.key].append("last")
    for name in tracked_names(newest_first) if rules.keep_best else ():
        if best := best_by(name, newest_first):
            reasons[best.key].append(f"best:{name}")
    for item in newest_first:
        reasons[item.key] += ["user"] * item.pinned + ["in use"] * (item.key in in_use)
    for key, reason in _spared(newest_first, rules):
        if not reasons[key]:
            reasons[key].append(reason)
    return reasons


def _spared(newest_first: list[Item], rules: Rules) -> Iterable[tuple[Hashable, str]]:
    """What the run's policy keeps beyond the pins."""
    kind = rules.prune["type"]
    if kind == "auto":
        yield from ((item.key, "until the run ends") for item in newest_first if item.adapter and not rules.over)
    if kind == "all":
        yield from ((item.key, "all are kept") for item in newest_first)
    if kind == "every":
        yield from ((item.key, f"every {rules.prune['steps']}") for item in newest_first if item.step % rules.prune["steps"] == 0)
    if kind in ("top", "auto"):
        able = newest_first if kind == "top" else [item for item in newest_first if item.adapter]
        count = rules.prune.get("n", TOP)
        for name in tracked_names(able):
            yield from ((item.key, f"top {count}:{name}") for item in ranked(name, able)[:count])


def tracked_names(items: Iterable[Item]) -> list[str]:
    """The tracked metrics that any of `items` has."""
    return sorted({name for item in items for name in item.metrics if is_tracked(name)})


def best_by(name: str, items: Iterable[Item]) -> Item | None:
    """The best by one metric, in the dictionary's direction; a later one must be better by more than MIN_DELTA."""
    best = None
    for item in _able(name, items):
        if best is None or worth(name, item.metrics) > worth(name, best.metrics) + MIN_DELTA:
            best = item
    return best


def ranked(name: str, items: Iterable[Item]) -> list[Item]:
    """Those that may win by one metric, best first; of equals the earlier first."""
    return sorted(_able(name, items), key=lambda item: -worth(name, item.metrics))


def _able(name: str, items: Iterable[Item]) -> list[Item]:
    """Those that may win, earliest first."""
    return sorted((item for item in items if may_win(name, item.metrics)), key=lambda item: (item.completed_at, item.step, str(item.key)))


def worth(name: str, metrics: dict[str, float]) -> float:
    """A metric's value, turned so that more is better."""
    return -metrics[name] if lookup(name).good == "down" else metrics[name]


def may_win(name: str, metrics: dict[str, float]) -> bool:
    """Whether a value counts: it is a finite number, and not of a held-out pass that lost more than a few of its episodes."""
    value = metrics.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return False
    return not name.startswith("val/") or metrics.get(EFFECTIVE, 1.0) >= MIN_EFFECTIVE
