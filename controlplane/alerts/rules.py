"""The rules of the metrics dictionary over the last values of a series: pure functions of arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from runner.contract.metrics import METRICS, Metric, Rule

# Below this a baseline is noise: three times nothing is still nothing.
SMALLEST_BASELINE = 1e-6
FEWEST_FOR_BASELINE = 5
# Replies that shrank by more, over so many steps, against the median of the window before them.
COLLAPSE_FALL, COLLAPSE_STEPS, COLLAPSE_WINDOW = 0.4, 3, 20
COMPARES = {"above": "above", "ratio_above": "above", "below": "below", "ratio_below": "below"}
RULED: dict[str, Metric] = {metric.name: metric for metric in METRICS if metric.rules and "{" not in metric.name}
TAIL = max(rule.window + rule.for_steps for metric in RULED.values() for rule in metric.rules)


@dataclass(frozen=True)
class Finding:
    """What a rule says now. `limit` is the absolute bound the values were held to, None when there is none yet; `critical` says that the
    newest values all lie beyond the rule's critical bound."""

    broken: bool
    value: float | None
    limit: float | None
    step: int | None = None
    critical: bool = False


def rule_name(metric: Metric, rule: Rule) -> str:
    return f"{metric.name} {rule.kind}"


def with_limit(metric: Metric, rule: Rule, limits: Mapping[str, float]) -> Rule:
    """The rule with its project's own limit, where the project has one. The critical bound moves with it."""
    own = limits.get(rule_name(metric, rule))
    if own is None:
        return rule
    critical = None if rule.critical is None or not rule.limit else rule.critical * own / rule.limit
    return replace(rule, limit=float(own), critical=critical)


def severity(rule: Rule, finding: Finding) -> str:
    return "critical" if finding.critical else rule.severity


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
    return Finding(broken, last, limit, _first(steps[-rule.for_steps :], beyond), broken and _is_critical(rule, newest))


def _is_critical(rule: Rule, newest: np.ndarray) -> bool:
    if rule.critical is None:
        return False
    return bool((newest > rule.critical if COMPARES[rule.kind] == "above" else newest < rule.critical).all())


def collapse(tokens_per_turn: np.ndarray, at_turn_limit: np.ndarray, most_fall: float = COLLAPSE_FALL) -> Finding:
    """The pattern of a run that unmasked truncation ruins: replies shrink while the turn limit is reached more often.

    Both series are held by medians: the newest COLLAPSE_STEPS against the COLLAPSE_WINDOW before them. `value` is the fall of tokens a turn.
    """
    if min(len(tokens_per_turn), len(at_turn_limit)) < COLLAPSE_STEPS + FEWEST_FOR_BASELINE:
        return Finding(False, None, most_fall)
    before, now = ([float(np.nanmedian(part)) for part in _halves(series)] for series in (tokens_per_turn, at_turn_limit))
    (tokens_before, tokens_now), (limit_before, limit_now) = before, now
    fall = 1 - tokens_now / max(tokens_before, SMALLEST_BASELINE)
    return Finding(fall > most_fall and limit_now > limit_before, fall, most_fall)


def _halves(series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return series[:-COLLAPSE_STEPS][-COLLAPSE_WINDOW:], series[-COLLAPSE_STEPS:]


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


def is_beyond(rule: Rule, finding: Finding) -> bool:
    """Whether the newest value lies beyond the limit, be it for long enough to break the rule or not."""
    if finding.value is None or finding.limit is None:
        return False
    return finding.value > finding.limit if COMPARES[rule.kind] == "above" else finding.value < finding.limit


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
