"""The evaluator: opens an incident when a rule is broken, closes it when the rule holds again."""

import logging

from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from controlplane.alerts.conditions import STEP_TIME, conditions
from controlplane.alerts.models import Incident
from controlplane.alerts.rules import RULED, TAIL, examine, rule_name, sentence
from controlplane.runs.changes import append_event, lock_run
from controlplane.runs.models import Run
from controlplane.telemetry.selectors import tail
from runner.contract.states import RunState

logger = logging.getLogger(__name__)


def evaluate_all() -> None:
    """Every active run, and those that ended with an incident open. One that fails does not keep the others waiting."""
    has_open = Exists(Incident.objects.filter(run=OuterRef("pk"), closed_at=None))
    for run in Run.objects.filter(Q(state=RunState.ACTIVE) | Q(has_open)):
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
    tails = tail(run, [*RULED, STEP_TIME], TAIL)
    for name, metric in RULED.items():
        for rule in metric.rules:
            key = rule_name(metric, rule)
            finding = examine(rule, tails[name].step, tails[name].value, opened[key].limit if key in opened else None)
            if finding.broken and key not in opened:
                told = {"message": sentence(metric, rule, finding), "advice": rule.advice, "severity": rule.severity}
                open_incident(run, key, name, finding.value, finding.limit, finding.step, **told)
            elif key in opened and not finding.broken:
                close(opened[key], int(tails[name].step[-1]) if len(tails[name].step) else None)
    hold_to_conditions(run, opened, tails[STEP_TIME])


def hold_to_conditions(run: Run, opened: dict[str, Incident], step_times) -> None:
    for condition in conditions(run, run.attempts.last(), step_times):
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
def close(incident: Incident, step: int | None) -> bool:
    run = lock_run(incident.run_id)
    if not Incident.objects.filter(pk=incident.pk, closed_at=None).update(closed_at=timezone.now(), closed_step=step):
        return False
    append_event(run, "incident_closed", step=step, incident=incident.pk, rule=incident.rule)
    return True
