"""Task banks: named, with immutable versions identified by the digest of their content."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.db import models

from controlplane.querysets import TeamQuerySet
from runner.contract.anchors import ANCHOR_AGENTS
from runner.contract.warming import why_cold


class Bank(models.Model):
    team = models.ForeignKey("accounts.Team", models.CASCADE, related_name="banks")
    slug = models.CharField(max_length=80)
    name = models.CharField(max_length=120)
    environment = models.CharField(max_length=40)
    created_at = models.DateTimeField(auto_now_add=True)
    archived_at = models.DateTimeField(null=True, blank=True)

    objects = TeamQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "slug"], name="bank_slug_per_team")]

    def __str__(self):
        return self.slug


class BankVersionQuerySet(TeamQuerySet):
    team_path = "bank__team"


class BankVersion(models.Model):
    """Immutable once written. `counts` and `report` are computed at import; the file is a blob named by `blob`.

    `is_new` is set on the instance that an import has just made.
    """

    is_new = False

    bank = models.ForeignKey(Bank, models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)
    blob = models.CharField(max_length=64)
    size = models.BigIntegerField()
    counts = models.JSONField(default=dict)
    report = models.JSONField(default=dict)
    created_by = models.ForeignKey("accounts.User", models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    # Set while oracle and nop run over it; what they found is in its tasks' anchor checks.
    proving_since = models.DateTimeField(null=True, blank=True)

    objects = BankVersionQuerySet.as_manager()

    class Meta:
        ordering = ["-number"]
        constraints = [
            models.UniqueConstraint(fields=["bank", "number"], name="bank_version_number"),
            models.UniqueConstraint(fields=["bank", "digest"], name="bank_version_digest"),
        ]

    def __str__(self):
        return f"{self.bank.slug}@{self.number}"


class BankFile(models.Model):
    """A blob that the tasks of a version name: a file, or the listing of a task's files."""

    version = models.ForeignKey(BankVersion, models.CASCADE, related_name="files")
    digest = models.CharField(max_length=64, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["version", "digest"], name="bank_file_per_version")]


class Task(models.Model):
    """Immutable but for the quarantine: a team's word that the task is not to be drawn or counted for now."""

    version = models.ForeignKey(BankVersion, models.CASCADE, related_name="tasks")
    key = models.CharField(max_length=200)
    split = models.CharField(max_length=40)
    domain = models.CharField(max_length=80, blank=True)
    level = models.CharField(max_length=40, blank=True)
    family = models.CharField(max_length=120, blank=True)
    payload = models.JSONField()
    flags = ArrayField(models.CharField(max_length=60), default=list)
    quarantined_at = models.DateTimeField(null=True, blank=True)
    quarantined_by = models.ForeignKey("accounts.User", models.SET_NULL, null=True, related_name="+")
    quarantine_reason = models.TextField(blank=True, db_default="", default="")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["version", "key"], name="task_key_per_version")]
        indexes = [models.Index(fields=["version", "split", "domain"], name="task_by_split")]


class AnchorCheck(models.Model):
    """What an anchor agent earned on a task. The newest of each (files, agent) counts within a bank; older ones stay.

    It holds for every version of the bank that has the same files: only what changed is proven again. `problems` is the gate's verdict
    against `expected_floor`, empty when the result passes.
    """

    task = models.ForeignKey(Task, models.CASCADE, related_name="anchors")
    task_digest = models.CharField(max_length=64)
    agent = models.CharField(max_length=10, choices=[(agent, agent) for agent in ANCHOR_AGENTS])
    score = models.FloatField(null=True)
    raw_reward = models.FloatField(null=True)
    floor = models.FloatField(null=True)
    expected_floor = models.FloatField(null=True)
    problems = models.JSONField(default=list)
    reason = models.TextField(blank=True)
    node = models.CharField(max_length=120, blank=True)
    node_class = models.CharField(max_length=60, blank=True)
    backend = models.CharField(max_length=20, blank=True)
    timings = models.JSONField(default=dict)
    recorded_by = models.ForeignKey("accounts.User", models.SET_NULL, null=True, related_name="+")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes = [models.Index(fields=["task_digest", "agent", "-id"], name="anchor_newest")]


class WarmedTask(models.Model):
    """A task's last episode in a run that warms a node; seconds. `score` is null when nothing was graded, `passes` counts how often it ran."""

    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="warmed")
    task = models.ForeignKey(Task, models.CASCADE, related_name="+")
    env_setup_seconds = models.FloatField()
    verifier_seconds = models.FloatField()
    termination = models.CharField(max_length=40)
    reason = models.TextField(blank=True)
    score = models.FloatField(null=True)
    passes = models.PositiveSmallIntegerField()
    at = models.DateTimeField(auto_now=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "task"], name="warmed_once_a_run")]

    @property
    def why_cold(self) -> str:
        """Why later episodes would wait or fail on the node; empty when they would not."""
        return why_cold(self.termination, self.score, self.env_setup_seconds, self.reason)


class ImportState(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class ImportSource(models.TextChoices):
    """Where the tasks come from: our own generator, an uploaded file, a path of the server, one of its checkouts, the Hugging Face hub."""

    BUNDLED = "bundled"
    UPLOAD = "upload"
    PATH = "path"
    HUB = "hub"
    GIT = "git"


class BankImport(models.Model):
    """One importer process: what it reads, what it says while it works, what it dropped and why.

    `touched_at` moves while the process lives; an import that stopped moving was lost with its worker.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    team = models.ForeignKey("accounts.Team", models.CASCADE, related_name="bank_imports")
    bank = models.CharField(max_length=80)
    environment = models.CharField(max_length=40)
    source = models.CharField(max_length=10, choices=ImportSource.choices)
    location = models.TextField(blank=True)
    options = models.JSONField(default=dict)
    state = models.CharField(max_length=10, choices=ImportState.choices, default=ImportState.QUEUED)
    log = models.TextField(blank=True)
    report = models.JSONField(default=dict)
    reason = models.TextField(blank=True)
    version = models.ForeignKey(BankVersion, models.SET_NULL, null=True, related_name="imports")
    created_by = models.ForeignKey("accounts.User", models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    touched_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    objects = TeamQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at"]
