"""Incidents: what the rules of the metrics dictionary found."""

from django.db import models
from django.db.models import Q

from controlplane.querysets import TeamQuerySet


class IncidentQuerySet(TeamQuerySet):
    team_path = "run__project__team"


class Incident(models.Model):
    """One rule broken by one run, from the step it began until the step it ended. One notice each."""

    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="incidents")
    rule = models.CharField(max_length=120)
    metric = models.CharField(max_length=200)
    severity = models.CharField(max_length=10)
    value = models.FloatField(null=True)
    limit = models.FloatField(null=True)
    message = models.TextField()
    advice = models.TextField(blank=True)
    opened_step = models.BigIntegerField(null=True)
    opened_at = models.DateTimeField(auto_now_add=True)
    closed_step = models.BigIntegerField(null=True)
    closed_at = models.DateTimeField(null=True, blank=True)

    objects = IncidentQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "rule"], condition=Q(closed_at=None), name="one_open_incident")]
