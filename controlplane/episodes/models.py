"""Episodes down to their tokens."""

import uuid

from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchVector
from django.db import models
from django.db.models.functions import Left

from controlplane.querysets import TeamQuerySet, choices
from runner.contract.episode import EventKind
from runner.contract.states import EpisodeState
from runner.contract.termination import Termination


SEARCHED = 150_000
"""Characters of a turn that a search looks through. Postgres takes a megabyte of distinct words; a longer text could not be stored at all."""


def searched() -> SearchVector:
    """The words of a turn; index and query must say the same."""
    return SearchVector(Left("text", SEARCHED), config="simple")


class EpisodeQuerySet(TeamQuerySet):
    team_path = "run__project__team"


class Episode(models.Model):
    """One episode. The five event kinds each fill their own columns; a null reward means it was never graded."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    run = models.ForeignKey("runs.Run", models.CASCADE, related_name="episodes")
    attempt = models.SmallIntegerField()
    state = models.CharField(max_length=10, choices=choices(EpisodeState), default=EpisodeState.QUEUED)

    stage = models.PositiveSmallIntegerField(default=0)
    step = models.BigIntegerField(default=0)
    group = models.IntegerField(default=0)
    sample = models.IntegerField(default=0)
    purpose = models.CharField(max_length=8, default="train", choices=[("train", "train"), ("eval", "eval")])
    evaluation = models.UUIDField(null=True, blank=True)
    task = models.CharField(max_length=200)
    domain = models.CharField(max_length=80, blank=True)
    worker = models.CharField(max_length=60, blank=True)
    policy_version = models.BigIntegerField(null=True)
    seed = models.BigIntegerField(null=True)
    started_at = models.DateTimeField(null=True)

    # `termination` and `score` are what the five events add up to; the three columns below are what was told, so that order does not matter.
    termination = models.CharField(max_length=32, choices=choices(Termination), blank=True)
    told_termination = models.CharField(max_length=32, choices=choices(Termination), blank=True)
    graded_termination = models.CharField(max_length=32, choices=choices(Termination), blank=True)
    graded_score = models.FloatField(null=True)
    policy_version_end = models.BigIntegerField(null=True)
    prompt_tokens = models.IntegerField(null=True)
    response_tokens = models.IntegerField(null=True)
    turns = models.IntegerField(null=True)
    seconds = models.FloatField(null=True)
    error = models.TextField(blank=True)
    sampled = models.CharField(max_length=64, blank=True)
    token_texts = models.CharField(max_length=64, blank=True)
    finished_at = models.DateTimeField(null=True)
    # What the environment tells of how the episode went: seconds by phase, the node, the folder, what was delivered.
    facts = models.JSONField(default=dict, db_default={})

    score = models.FloatField(null=True)
    grade_reason = models.CharField(max_length=200, blank=True)
    parsed = models.BooleanField(null=True)
    checks = models.JSONField(default=dict)
    evidence = models.JSONField(default=dict)
    grader = models.CharField(max_length=60, blank=True)
    grade_ordinal = models.SmallIntegerField(null=True)

    advantage = models.FloatField(null=True)
    trained_step = models.BigIntegerField(null=True)
    trained_tokens = models.IntegerField(null=True)
    masked = models.BooleanField(null=True)
    filters = ArrayField(models.CharField(max_length=40), default=list)
    trained = models.CharField(max_length=64, blank=True)
    # Credit of each turn, where the method gives one (runner.contract.events, `trained`).
    turn_credit = models.JSONField(default=list, db_default=[])

    objects = EpisodeQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(fields=["run", "-step", "group", "sample", "id"], name="episode_order"),
            models.Index(fields=["run", "termination"], name="episode_termination"),
            models.Index(fields=["evaluation"], name="episode_evaluation"),
        ]

    @property
    def reward(self) -> float | None:
        """The trusted score; None means missing, never 0."""
        return self.score


class EpisodeEvent(models.Model):
    """The idempotency record of a delivered event."""

    pk = models.CompositePrimaryKey("episode_id", "kind", "ordinal")
    episode_id = models.UUIDField()
    kind = models.CharField(max_length=8, choices=choices(EventKind))
    ordinal = models.IntegerField()
    at = models.DateTimeField()


class Turn(models.Model):
    episode = models.ForeignKey(Episode, models.CASCADE, related_name="turn_rows")
    index = models.IntegerField()
    role = models.CharField(max_length=12)
    author = models.CharField(max_length=12)
    text = models.TextField()
    tokens = models.IntegerField(null=True)
    reward = models.FloatField(null=True)
    facts = models.JSONField(default=dict, db_default={})

    class Meta:
        constraints = [models.UniqueConstraint(fields=["episode", "index"], name="turn_index")]
        indexes = [GinIndex(searched(), name="turn_text")]


class Label(models.Model):
    """A person's word on an episode."""

    episode = models.ForeignKey(Episode, models.CASCADE, related_name="labels")
    user = models.ForeignKey("accounts.User", models.SET_NULL, null=True)
    name = models.CharField(max_length=60, blank=True)
    comment = models.TextField(blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
