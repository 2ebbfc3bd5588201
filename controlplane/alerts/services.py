"""The evaluator: opens an incident when a rule is broken, closes it when the rule holds again."""

import logging
import math

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from controlplane.accounts.models import Project
from controlplane.accounts.roles import require
from controlplane.accounts.services import record
from controlplane.alerts.conditions import MOVABLE, WATCHED, conditions
from controlplane.alerts.models import Incident
from controlplane.alerts.rules import RULED, TAIL, examine, rule_name, sentence, severity, with_limit
from controlplane.runs.changes import append_event, lock_run
from controlplane.runs.models import Run
from controlplane.telemetry.selectors import tail
from runner.contract.states import RunState

logger = logging.getLogger(__name__)


def evaluate_all() -> None:
    """Every active run, and those that ended with an incident open. One that fails does not keep the others waiting."""
    has_open = Exists(Incident.objects.filter(run=OuterRef("pk"), closed_at=None))
    for run in Run.objects.filter(Q(state=RunState.ACTIVE) | Q(has_open)).select_related("project"):
        try:
            evaluate_run(run)
        except Exception:
            logger.exception("the rules of run %s could not be evaluated", run.pk)


def evaluate_run(run: Run) -> None:
    """Hold the run to every rule. An ended run's incidents close without a step: they stand as they were at its end."""
    opened = {incident.rule: incident for incident in Incident.objects.filter(run=run, closed_at=None)}
    if run.state != RunState.ACTIVE:
        for incident in opened.values():
            close(incident, None)
        return
    tails, limits = tail(run, [*RULED, *WATCHED], TAIL), run.project.alert_limits
    for name, metric in RULED.items():
        for rule in (with_limit(metric, rule, limits) for rule in metric.rules):
            key = rule_name(metric, rule)
            finding = examine(rule, tails[name].step, tails[name].value, opened[key].limit if key in opened else None)
            if finding.broken and key not in opened:
                told = {"message": sentence(metric, rule, finding), "advice": rule.advice, "severity": severity(rule, finding)}
                open_incident(run, key, name, finding.value, finding.limit, finding.step, **told)
            elif key in opened and finding.critical and opened[key].severity != "critical":
                escalate(opened[key], sentence(metric, rule, finding), finding.step)
            elif key in opened and not finding.broken:
                close(opened[key], int(tails[name].step[-1]) if len(tails[name].step) else None)
    hold_to_conditions(run, opened, tails)


def hold_to_conditions(run: Run, opened: dict[str, Incident], tails) -> None:
    for condition in conditions(run, run.attempts.last(), tails, run.project.alert_limits):
        if condition.broken and condition.rule not in opened:
            told = {"message": condition.message, "advice": condition.advice, "severity": condition.status}
            open_incident(run, condition.rule, "", condition.value, condition.limit, run.step, **told)
        elif condition.rule in opened and not condition.broken:
            close(opened[condition.rule], run.step)


@transaction.atomic
def open_incident(run: Run, rule: str, metric: str, value, limit, step, *, message: str, advice: str, severity: str) -> Incident | None:
    """One open incident a run and rule; None when another evaluator opened it."""
    run = lock_run(run.pk)
    if Incident.objects.filter(run=run, rule=rule, closed_at=None).exists():
        return None
    words = {"message": message, "advice": advice, "severity": severity}
    incident = Incident.objects.create(run=run, rule=rule, metric=metric, value=value, limit=limit, opened_step=step, **words)
    append_event(run, "incident_opened", step=step, incident=incident.pk, rule=rule, severity=severity, message=message)
    return incident


@transaction.atomic
def escalate(incident: Incident, message: str, step: int | None) -> None:
    """What was a warning became critical while it was open."""
    run = lock_run(incident.run_id)
    if Incident.objects.filter(pk=incident.pk, closed_at=None).update(severity="critical", message=message):
        append_event(run, "incident_opened", step=step, incident=incident.pk, rule=incident.rule, severity="critical", message=message)


@transaction.atomic
def set_limit(user, project, rule: str, limit: float | None) -> dict[str, float]:
    """A limit of the project's own for one rule; None goes back to the dictionary's. Returns all of the project's own.

    Raises ValidationError, PermissionDenied.
    """
    require(user, project.team, "alert.limit")
    known = {rule_name(metric, item) for metric in RULED.values() for item in metric.rules if item.kind != "non_finite"} | {*MOVABLE}
    if rule not in known:
        raise ValidationError({"rule": f"{rule!r} is no rule with a limit; known are {', '.join(sorted(known))}"})
    if limit is not None and not math.isfinite(limit):
        raise ValidationError({"limit": f"{limit} is not finite"})
    project = Project.objects.select_for_update().get(pk=project.pk)
    kept = {name: value for name, value in project.alert_limits.items() if name != rule}
    project.alert_limits = kept if limit is None else {**kept, rule: limit}
    project.save(update_fields=["alert_limits"])
    record(user, "alert.limit", project, {"rule": rule, "limit": limit})
    return project.alert_limits


@transaction.atomic
def close(incident: Incident, step: int | None) -> bool:
    run = lock_run(incident.run_id)
    if not Incident.objects.filter(pk=incident.pk, closed_at=None).update(closed_at=timezone.now(), closed_step=step):
        return False
    append_event(run, "incident_closed", step=step, incident=incident.pk, rule=incident.rule)
    return True
