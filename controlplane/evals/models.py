"""Evaluations under a protocol, with one result a task so that methods can be compared in pairs."""

import uuid

from django.db import models

from controlplane.querysets import TeamQuerySet


class Protocol(models.Model):
    """How a score was made: split, tasks, sampling. Scores under different hashes are never mixed."""

    hash = models.CharField(max_length=64, unique=True)
    document = models.JSONField()
    created_at = models.DateTimeField(auto_now_add=True)


class EvaluationQuerySet(TeamQuerySet):
    team_path = "run__project__team"


class Evaluation(models.Model):
    """One pass over a task set. `label` says when: before, during or after a stage."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="evaluations")
    attempt = models.SmallIntegerField()
    protocol = models.ForeignKey(Protocol, models.PROTECT)
    checkpoint = models.ForeignKey("checkpoints.Checkpoint", models.SET_NULL, null=True, blank=True, related_name="evaluations")
    bank_version = models.ForeignKey("banks.BankVersion", models.PROTECT, null=True)
    label = models.CharField(max_length=60)
    stage = models.PositiveSmallIntegerField(default=0)
    step = models.BigIntegerField()
    policy_version = models.BigIntegerField(null=True)
    summary = models.JSONField(default=dict)
    baselines = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = EvaluationQuerySet.as_manager()

    class Meta:
        ordering = ["step", "created_at"]


class Result(models.Model):
    """One task of an evaluation. A null score was not graded and enters no mean.

    `records` are the lines of results.jsonl on it, one a sample, where the evaluation ran in containers.
    """

    evaluation = models.ForeignKey(Evaluation, models.CASCADE, related_name="results")
    task = models.CharField(max_length=200)
    domain = models.CharField(max_length=80, blank=True)
    level = models.CharField(max_length=40, blank=True)
    score = models.FloatField(null=True)
    forced = models.FloatField(null=True)
    parsed = models.BooleanField(null=True)
    episode = models.UUIDField(null=True)
    records = models.JSONField(default=list, db_default=[])

    class Meta:
        constraints = [models.UniqueConstraint(fields=["evaluation", "task"], name="result_per_task")]
