"""Reads over rules and incidents."""

import math
from dataclasses import dataclass

from django.db.models import Q

from controlplane.alerts.conditions import IN_CONTAINERS, WATCHED, Condition, conditions
from controlplane.alerts.models import Incident
from controlplane.alerts.rules import RULED, TAIL, Finding, examine, is_beyond, limit_text, rule_name, severity, with_limit
from controlplane.runs.models import Run
from controlplane.telemetry.selectors import tail
from runner.contract.metrics import Metric, Rule

SEVERITY = {"unknown": 0, "ok": 1, "warning": 2, "critical": 3}


@dataclass(frozen=True)
class Tile:
    """One tile of the health strip. `value` is a number, a spelled non-finite, or None; `limit` is the healthy side in short.

    `status` is ok, pending (beyond the limit, but not for long enough to be told), warning, critical or unknown.
    """

    title: str
    metric: str
    value: float | str | None
    limit: str
    status: str
    help: str


def incidents(user):
    """Incidents of the user's teams, newest first."""
    return Incident.objects.for_user(user).select_related("run").order_by("-opened_at", "-id")


def standing(run: Run) -> dict[str, Incident]:
    """Rule name → the incident that is open, or was when the run ended."""
    unended = Q(closed_at=None) if run.ended_at is None else Q(closed_at=None) | Q(closed_at__gte=run.ended_at, closed_step=None)
    return {incident.rule: incident for incident in Incident.objects.filter(unended, run=run)}


def health_tiles(run: Run) -> list[Tile]:
    """One tile a metric with rules, then contact, progress and disk. A fixed number of queries."""
    tails = tail(run, [*RULED, *WATCHED], TAIL)
    opened, limits = standing(run), run.project.alert_limits
    tiles = [metric_tile(metric, tails[name], opened, limits) for name, metric in ruled(run).items()]
    attempt = run.attempts.last()
    return tiles + [condition_tile(condition) for condition in conditions(run, attempt, tails, limits)]


def ruled(run: Run) -> dict[str, Metric]:
    """The metrics whose rules can say something of this run: those of containers only where there are some."""
    inside = run.environment == IN_CONTAINERS
    return {name: metric for name, metric in RULED.items() if inside or metric.population != "container episodes"}


def metric_tile(metric: Metric, found, opened: dict[str, Incident], limits: dict[str, float]) -> Tile:
    """The worst of the metric's rules decides the status and the limit that is shown."""
    rules = [with_limit(metric, rule, limits) for rule in metric.rules]
    judged = [(_status(metric, rule, found, opened), rule) for rule in rules]
    (status, finding), rule = max(judged, key=lambda item: SEVERITY[item[0][0]])
    shown = [finding_rule for finding_rule in rules if finding_rule.kind != "non_finite"] or [rule]
    rule = rule if status in ("warning", "critical") else shown[0]
    finding = next(one for (_, one), judged_rule in judged if judged_rule is rule)
    # A value beyond its limit for too few steps is no warning yet, and no tick stands beside it either.
    status = "pending" if status == "ok" and is_beyond(rule, finding) else status
    return Tile(metric.title, metric.name, _plain(finding.value), limit_text(rule, finding.limit), status, _help(metric, rule))


def _status(metric: Metric, rule: Rule, found, opened: dict[str, Incident]) -> tuple[str, Finding]:
    incident = opened.get(rule_name(metric, rule))
    finding = examine(rule, found.step, found.value, incident.limit if incident else None)
    if finding.value is None:
        return "unknown", finding
    if not (finding.broken or incident):
        return "ok", finding
    return max(severity(rule, finding), incident.severity if incident else rule.severity, key=SEVERITY.get), finding


def condition_tile(condition: Condition) -> Tile:
    return Tile(condition.title, "", condition.value, condition.limit_text, condition.status, condition.message or condition.advice)


def _plain(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _help(metric: Metric, rule: Rule) -> str:
    population = f" over {metric.population}" if metric.population else ""
    return f"{metric.formula}{population}. {rule.advice}"
