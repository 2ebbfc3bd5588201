"""Runs, their attempts and the append-only log from which their states fold."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from controlplane.querysets import TeamQuerySet, choices
from runner.contract.evaluation_config import KIND
from runner.contract.states import AttemptState, RunState

OPEN_ATTEMPT = [AttemptState.GRANTED, AttemptState.STARTING, AttemptState.RUNNING, AttemptState.STOPPING]


class RunQuerySet(TeamQuerySet):
    team_path = "project__team"


class Run(models.Model):
    """One run. `config` holds the resolved document's canonical bytes; `seq` is its live cursor. An evaluation is one that trains nothing.

    The columns after `config` repeat fields of it, because lists filter and sort by them.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    project = models.ForeignKey("accounts.Project", models.CASCADE, related_name="runs")
    owner = models.ForeignKey("accounts.User", models.SET_NULL, null=True, related_name="runs")
    parent = models.ForeignKey("self", models.SET_NULL, null=True, blank=True, related_name="children")
    kind = models.CharField(max_length=12, default="training", db_default="training")
    state = models.CharField(max_length=10, choices=choices(RunState), default=RunState.DRAFT)
    reason = models.TextField(blank=True)
    waiting = models.TextField(blank=True)
    stop_requested_at = models.DateTimeField(null=True, blank=True)

    document = models.JSONField()
    config = models.BinaryField()
    config_hash = models.CharField(max_length=64)
    bank_version = models.ForeignKey("banks.BankVersion", models.PROTECT, null=True, related_name="runs")
    name = models.CharField(max_length=120)
    experiment = models.CharField(max_length=120, blank=True)
    tags = ArrayField(models.CharField(max_length=60), default=list)
    method = models.CharField(max_length=80)
    model = models.CharField(max_length=200)
    environment = models.CharField(max_length=80)
    seed = models.BigIntegerField(default=0)
    # Digest of what is trained, the seed left out: runs that share it are one point with an error bar.
    recipe = models.CharField(max_length=64, blank=True, db_default="")
    priority = models.IntegerField(default=0)
    total_steps = models.PositiveIntegerField(default=0)

    seq = models.BigIntegerField(default=0)
    step = models.PositiveBigIntegerField(default=0)
    latest = models.JSONField(default=dict)
    next_check_at = models.DateTimeField(null=True, blank=True)
    check_failures = models.PositiveSmallIntegerField(default=0)
    created_at = models.DateTimeField(auto_now_add=True)
    queued_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    objects = RunQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["project", "-created_at", "-id"], name="run_newest_first"),
            models.Index(fields=["-created_at", "-id"], name="run_listed", condition=Q(archived_at=None)),
            # Read alone by the facets of the list (controlplane.runs.listing).
            models.Index(
                fields=["project", "state", "method", "environment", "model", "experiment", "owner"],
                name="run_facets",
                condition=Q(archived_at=None),
            ),
            models.Index(fields=["recipe"], name="run_recipe"),
            # Scanned by the reconciler at every tick.
            models.Index(fields=["next_check_at"], name="run_due", condition=Q(state__in=[RunState.QUEUED, RunState.ACTIVE])),
        ]

    def __str__(self):
        return self.name

    @property
    def is_evaluation(self) -> bool:
        return self.kind == KIND


class Attempt(models.Model):
    """One execution of a run on the cluster, fenced by its own token."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="attempts")
    number = models.PositiveSmallIntegerField()
    state = models.CharField(max_length=10, choices=choices(AttemptState), default=AttemptState.GRANTED)
    reason = models.TextField(blank=True)
    submission_id = models.CharField(max_length=80, unique=True)
    submitted_at = models.DateTimeField(null=True, blank=True)
    claim_hash = models.CharField(max_length=64)
    claimed_at = models.DateTimeField(null=True, blank=True)
    token_hash = models.CharField(max_length=64, blank=True, db_index=True)
    first_step = models.PositiveBigIntegerField(null=True, blank=True)
    resumed_from = models.ForeignKey("checkpoints.Checkpoint", models.SET_NULL, null=True, blank=True, related_name="+")

    last_heartbeat_at = models.DateTimeField(null=True, blank=True)
    contact_lost_at = models.DateTimeField(null=True, blank=True)
    components = models.JSONField(default=dict)
    # Every process the attempt ever registered, {component, host, pid, started}: its grant is free when all are gone.
    host = models.CharField(max_length=120, blank=True)
    processes = models.JSONField(default=list)
    devices = models.JSONField(default=list)
    phase = models.CharField(max_length=40, blank=True)
    ray_status = models.CharField(max_length=20, blank=True)
    exit_record = models.JSONField(null=True, blank=True)

    points_accepted = models.BigIntegerField(default=0)
    points_repeated = models.BigIntegerField(default=0)
    points_conflicting = models.BigIntegerField(default=0)
    batches_refused = models.BigIntegerField(default=0)
    writes_fenced = models.BigIntegerField(default=0)

    created_at = models.DateTimeField(auto_now_add=True)
    running_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["number"]
        constraints = [
            models.UniqueConstraint(fields=["run", "number"], name="attempt_number"),
            models.UniqueConstraint(fields=["run"], condition=Q(state__in=OPEN_ATTEMPT), name="one_open_attempt"),
        ]


class SavedView(models.Model):
    """A query of the runs page under a name. With a team every member sees it, without one only its owner."""

    owner = models.ForeignKey("accounts.User", models.CASCADE, related_name="saved_views")
    team = models.ForeignKey("accounts.Team", models.CASCADE, null=True, blank=True, related_name="saved_views")
    name = models.CharField(max_length=80)
    query = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["owner", "name"], name="view_name_per_owner")]

    def __str__(self):
        return self.name


class RunEvent(models.Model):
    """Append-only: the run's and its attempts' states are the fold of these rows."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="events")
    attempt = models.PositiveSmallIntegerField(null=True)
    kind = models.CharField(max_length=40)
    step = models.PositiveBigIntegerField(null=True)
    data = models.JSONField(default=dict)
    actor = models.ForeignKey("accounts.User", models.SET_NULL, null=True, related_name="+")
    at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["run", "id"], name="run_event_order")]
