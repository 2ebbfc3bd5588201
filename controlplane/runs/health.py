from dataclasses import dataclass

from controlplane.alerts.models import Incident
from controlplane.telemetry.selectors import tail
from runner.contract.metrics import METRICS


@dataclass(frozen=True)
class Tile:
    title: str
    metric: str
    value: float | None
    limit: str
    status: str
    help: str


def health_tiles(run):
    watched = [metric for metric in METRICS if metric.rules and "{" not in metric.name]
    last = tail(run, [metric.name for metric in watched], 1)
    opened = {incident.metric: incident for incident in Incident.objects.filter(run=run, closed_at=None)}
    tiles = []
    for metric in watched:
        rule = next((rule for rule in metric.rules if rule.kind != "non_finite"), metric.rules[0])
        value = float(last[metric.name].value[-1]) if len(last[metric.name].value) else None
        limit = {"above": f"≤ {rule.limit:g}", "below": f"≥ {rule.limit:g}", "ratio_above": f"≤ {rule.limit:g}× median", "ratio_below": f"≥ {rule.limit:g}× median", "non_finite": "finite"}[rule.kind]
        incident = opened.get(metric.name)
        tiles.append(Tile(metric.title, metric.name, value, limit, incident.severity if incident else "unknown" if value is None else "ok", rule.advice))
    return tiles
