"""Nodes, and who holds what of them. Postgres decides; Ray only enforces."""

from django.db import models


class NodeState(models.TextChoices):
    READY = "ready"
    CORDONED = "cordoned"
    GONE = "gone"


class Node(models.Model):
    """A machine of the Ray cluster, with its capacity as Ray reports it."""

    name = models.CharField(max_length=120, unique=True)
    address = models.CharField(max_length=120)
    ray_id = models.CharField(max_length=80, blank=True)
    # The Ray resource that only this node has; a bundle that asks for a sliver of it lands here.
    resource = models.CharField(max_length=160, blank=True)
    state = models.CharField(max_length=10, choices=NodeState.choices, default=NodeState.READY)
    cpus = models.DecimalField(max_digits=10, decimal_places=3)
    gpus = models.PositiveIntegerField(default=0)
    memory = models.BigIntegerField(default=0)
    disk_total = models.BigIntegerField(null=True)
    disk_free = models.BigIntegerField(null=True)
    usage = models.JSONField(default=dict)
    last_seen_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["name"]

    def __str__(self):
        return self.name


class GrantState(models.TextChoices):
    HELD = "held"
    RELEASING = "releasing"
    RELEASED = "released"
    QUARANTINED = "quarantined"


class Grant(models.Model):
    """What one attempt may use, all of it or nothing. RELEASED only after its processes were seen gone."""

    attempt = models.OneToOneField("runs.Attempt", models.CASCADE, related_name="grant")
    state = models.CharField(max_length=12, choices=GrantState.choices, default=GrantState.HELD)
    reason = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    released_at = models.DateTimeField(null=True, blank=True)


class Share(models.Model):
    """The part of a grant on one node. `bundle` says what runs there: driver, learner or worker."""

    grant = models.ForeignKey(Grant, models.CASCADE, related_name="shares")
    node = models.ForeignKey(Node, models.PROTECT, related_name="shares")
    bundle = models.CharField(max_length=20)
    cpus = models.DecimalField(max_digits=10, decimal_places=3)
    gpus = models.PositiveIntegerField(default=0)


class Reservation(models.Model):
    """A waiting gang that has aged holds capacity back from younger, smaller ones."""

    run = models.OneToOneField("runs.Run", models.CASCADE, related_name="reservation")
    created_at = models.DateTimeField(auto_now_add=True)


class ReconcilerTick(models.Model):
    """The reconciler's last words; older than 30 s is a banner on every page.

    `answering_since` is when the control plane began to answer without a gap; null while it does not. A runner's
    silence before that moment says nothing about the runner.
    """

    id = models.SmallIntegerField(primary_key=True, default=1)
    at = models.DateTimeField()
    answering_since = models.DateTimeField(null=True)
    seconds = models.FloatField(default=0)
    error = models.TextField(blank=True)
