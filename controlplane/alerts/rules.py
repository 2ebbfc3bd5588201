"""The rules of the metrics dictionary over the last values of a series: pure functions of arrays."""

from dataclasses import dataclass

import numpy as np

from runner.contract.metrics import METRICS, Metric, Rule

# Below this a baseline is noise: three times nothing is still nothing.
SMALLEST_BASELINE = 1e-6
FEWEST_FOR_BASELINE = 5
COMPARES = {"above": "above", "ratio_above": "above", "below": "below", "ratio_below": "below"}
RULED: dict[str, Metric] = {metric.name: metric for metric in METRICS if metric.rules and "{" not in metric.name}
TAIL = max(rule.window + rule.for_steps for metric in RULED.values() for rule in metric.rules)


@dataclass(frozen=True)
class Finding:
    """What a rule says now. `limit` is the absolute bound the values were held to, None when there is none yet."""

    broken: bool
    value: float | None
    limit: float | None
    step: int | None = None


def rule_name(metric: Metric, rule: Rule) -> str:
    return f"{metric.name} {rule.kind}"


def examine(rule: Rule, steps: np.ndarray, values: np.ndarray, open_limit: float | None = None) -> Finding:
    """Hold the newest `for_steps` values to the rule; `steps` and `values` are of equal length, oldest first.

    `open_limit` is the bound of an incident that is open already. It is kept until all of the newest values are back inside: else
    a curve that stays collapsed would become its own baseline, and the incident would close over it.
    """
    if not len(values):
        return Finding(False, None, None)
    newest = values[-rule.for_steps :]
    last = float(values[-1])
    if rule.kind == "non_finite":
        bad = ~np.isfinite(newest)
        return Finding(bool(bad.any()), last, None, _first(steps[-rule.for_steps :], bad))
    limit = open_limit if open_limit is not None else bound(rule, values)
    if limit is None or (open_limit is None and len(newest) < rule.for_steps):
        return Finding(False, last, limit)
    beyond = newest > limit if COMPARES[rule.kind] == "above" else newest < limit
    broken = bool(beyond.any() if open_limit is not None else beyond.all())
    return Finding(broken, last, limit, _first(steps[-rule.for_steps :], beyond))


def bound(rule: Rule, values: np.ndarray) -> float | None:
    """The absolute limit: fixed, or a multiple of the median of the `window` finite values before the newest ones."""
    if rule.kind in ("above", "below"):
        return rule.limit
    before = values[: -rule.for_steps][-rule.window :]
    before = before[np.isfinite(before)]
    if len(before) < min(FEWEST_FOR_BASELINE, rule.window):
        return None
    return rule.limit * max(float(np.median(before)), SMALLEST_BASELINE)


def _first(steps: np.ndarray, beyond: np.ndarray) -> int | None:
    return int(steps[np.argmax(beyond)]) if beyond.any() else None


def sentence(metric: Metric, rule: Rule, finding: Finding) -> str:
    """What is wrong, with the numbers."""
    if rule.kind == "non_finite":
        return f"{metric.title} is {finding.value:g} at step {finding.step}" if finding.step is not None else f"{metric.title} is not finite"
    times = f", {rule.limit:g} times its median," if rule.kind.startswith("ratio") else ""
    span = f"for {rule.for_steps} steps" if rule.for_steps > 1 else f"at step {finding.step}"
    return f"{metric.title} is {finding.value:.4g}, {COMPARES[rule.kind]} {finding.limit:.4g}{times} {span}"


def limit_text(rule: Rule, limit: float | None) -> str:
    """The healthy side, as a tile shows it."""
    if rule.kind == "non_finite":
        return "finite"
    sign = "≤" if COMPARES[rule.kind] == "above" else "≥"
    if limit is None and rule.kind.startswith("ratio"):
        return f"{sign} {rule.limit:g} × median"
    return f"{sign} {rule.limit if limit is None else limit:.3g}"
