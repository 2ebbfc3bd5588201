"""Checkpoints: offered for resume only once their manifest was verified."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models

from controlplane.querysets import TeamQuerySet, choices
from runner.contract.states import CheckpointState


class CheckpointQuerySet(TeamQuerySet):
    team_path = "run__project__team"


class Checkpoint(models.Model):
    """Weights and training state at a step. `kept_because` lists the retention rules that hold it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="checkpoints")
    attempt = models.SmallIntegerField()
    parent = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="children")
    state = models.CharField(max_length=10, choices=choices(CheckpointState), default=CheckpointState.WRITING)
    reason = models.TextField(blank=True)
    stage = models.PositiveSmallIntegerField(default=0)
    step = models.BigIntegerField()
    policy_version = models.BigIntegerField(null=True)
    path = models.TextField()
    size = models.BigIntegerField(null=True)
    manifest = models.JSONField(default=dict)
    manifest_hash = models.CharField(max_length=64, blank=True)
    metrics = models.JSONField(default=dict)
    # Tasks that its lineage trained on, as `<environment>/<key>` (runner.lineage).
    trained_on = models.JSONField(default=list, db_default=[])
    kept_because = ArrayField(models.CharField(max_length=120), default=list)
    pinned_by = models.ForeignKey("accounts.User", models.SET_NULL, null=True, blank=True, related_name="+")
    pinned_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    completed_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)

    objects = CheckpointQuerySet.as_manager()

    class Meta:
        ordering = ["step"]
        constraints = [models.UniqueConstraint(fields=["run", "attempt", "stage", "step"], name="checkpoint_once")]
