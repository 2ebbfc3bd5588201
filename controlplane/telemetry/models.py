"""Metric points and their rollup, wall-clock samples, log lines, and the record of each delivered batch."""

from django.db import models


class Axis(models.TextChoices):
    """What a series runs over: training steps (Point), or wall seconds (WallSample)."""

    STEP = "step"
    WALL = "wall"


class Series(models.Model):
    """A metric name of a run."""

    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="series")
    name = models.CharField(max_length=200)
    axis = models.CharField(max_length=4, choices=Axis.choices, default=Axis.STEP)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "axis", "name"], name="series_name_per_run")]


class Point(models.Model):
    """One value at one step. Never updated: the first value of a step wins inside an attempt.

    Series and attempts are referred to without constraints, because each would cost an index look-up per point.
    """

    pk = models.CompositePrimaryKey("series_id", "attempt", "step")
    series_id = models.BigIntegerField()
    attempt = models.SmallIntegerField()
    step = models.BigIntegerField()
    value = models.FloatField()
    wall = models.FloatField()


ROLLUP_STEPS = 100


class Rollup(models.Model):
    """Aggregate of one series over ROLLUP_STEPS steps of one attempt, kept in the transaction of its points.

    minimum, maximum, total and last_value are over finite values and null when there are none; last_wall is over all values.
    """

    pk = models.CompositePrimaryKey("series_id", "attempt", "bucket")
    series_id = models.BigIntegerField()
    attempt = models.SmallIntegerField()
    bucket = models.BigIntegerField()
    count = models.IntegerField()
    nan = models.IntegerField()
    positive_infinite = models.IntegerField()
    negative_infinite = models.IntegerField()
    minimum = models.FloatField(null=True)
    maximum = models.FloatField(null=True)
    total = models.FloatField(null=True)
    last_step = models.BigIntegerField(null=True)
    last_value = models.FloatField(null=True)
    last_wall = models.FloatField(default=0)


class WallSample(models.Model):
    """Hardware and waiting series over Unix seconds."""

    pk = models.CompositePrimaryKey("series_id", "wall")
    series_id = models.BigIntegerField()
    wall = models.FloatField()
    value = models.FloatField()


class IngestBatch(models.Model):
    """A delivered batch: its idempotency key, the run cursor it got, and what it touched.

    A reconnecting page asks for everything after its cursor; the touched ranges of the batches after it say
    which points, episodes and log lines to read again. `touched` has steps [first, last], names [new series],
    logs [first id, last id], episodes [ids], events (how many), and counts [accepted, repeated, conflicting].
    """

    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="+")
    attempt = models.SmallIntegerField()
    emitter = models.CharField(max_length=80)
    sequence = models.BigIntegerField()
    seq = models.BigIntegerField()
    touched = models.JSONField(default=dict)
    received_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "attempt", "emitter", "sequence"], name="batch_once")]
        indexes = [models.Index(fields=["run", "seq"], name="batch_by_cursor")]


class Pack(models.Model):
    """A stored file that holds the small blobs of one batch. It lives as long as its run."""

    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="+")
    name = models.CharField(max_length=64, db_index=True)


class PackedBlob(models.Model):
    """Where a blob of a run lies: bytes [first, first + length) of a pack. `digest` is the SHA-256 of its content.

    Without foreign keys in the database, because each would cost a look-up per blob.
    """

    pk = models.CompositePrimaryKey("run_id", "digest")
    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="+", db_index=False, db_constraint=False)
    digest = models.BinaryField(max_length=32)
    pack = models.ForeignKey(Pack, models.CASCADE, related_name="blobs", db_index=False, db_constraint=False)
    first = models.IntegerField()
    length = models.IntegerField()


class LogLine(models.Model):
    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="+")
    attempt = models.SmallIntegerField()
    t = models.FloatField()
    component = models.CharField(max_length=60)
    level = models.CharField(max_length=8)
    message = models.TextField()

    class Meta:
        indexes = [models.Index(fields=["run", "id"], name="log_order")]
