"""People, teams, projects, tokens and the audit trail."""

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models

from controlplane.accounts.choices import Role, Scope
from controlplane.querysets import TeamQuerySet


class User(AbstractUser):
    """A person. The theme is stored with the account so that it follows them between browsers.

    `token` is the ApiToken that the current request came with, None for a session: it narrows `for_user` and roles.
    """

    token = None

    theme = models.CharField(max_length=8, default="system", choices=[("system", "system"), ("light", "light"), ("dark", "dark")])


class Team(models.Model):
    slug = models.SlugField(unique=True)
    name = models.CharField(max_length=120)
    created_at = models.DateTimeField(auto_now_add=True)

    def __str__(self):
        return self.name


class Membership(models.Model):
    team = models.ForeignKey(Team, models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=8, choices=Role.choices, default=Role.MEMBER)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "user"], name="one_role_per_team")]


class Project(models.Model):
    """`alert_limits` holds the limits of alert rules that this project sets for itself, by rule."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="projects")
    slug = models.SlugField()
    name = models.CharField(max_length=120)
    alert_limits = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    objects = TeamQuerySet.as_manager()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "slug"], name="project_slug_per_team")]

    def __str__(self):
        return self.slug


class ApiToken(models.Model):
    """A bearer token: shown once, kept as a hash, limited by scope and by its owner's role."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="tokens")
    user = models.ForeignKey(User, models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12)
    hash = models.CharField(max_length=64, unique=True)
    scopes = ArrayField(models.CharField(max_length=16, choices=Scope.choices))
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    objects = TeamQuerySet.as_manager()


class LoginLink(models.Model):
    """A link that signs its user in once; kept as a hash."""

    user = models.ForeignKey(User, models.CASCADE, related_name="login_links")
    hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)


class IdempotencyKey(models.Model):
    """The stored answer to a POST that spends something, so that a repeat gets the same answer.

    `team` is that of the caller's API token; null for a session. A token never gets the answer of another team's.
    """

    user = models.ForeignKey(User, models.CASCADE, related_name="+")
    team = models.ForeignKey(Team, models.CASCADE, null=True, related_name="+")
    key = models.CharField(max_length=120)
    path = models.CharField(max_length=200)
    request_hash = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    response = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True, db_index=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "team", "path", "key"], nulls_distinct=False, name="one_answer_per_key")]


class AuditEntry(models.Model):
    """Who did what to which object. `actor` is null for the house itself."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="audit")
    actor = models.ForeignKey(User, models.SET_NULL, null=True, related_name="+")
    verb = models.CharField(max_length=60)
    kind = models.CharField(max_length=40)
    object_id = models.CharField(max_length=80)
    data = models.JSONField(default=dict)
    request_id = models.CharField(max_length=40, blank=True)
    at = models.DateTimeField(auto_now_add=True)

    objects = TeamQuerySet.as_manager()

    class Meta:
        indexes = [models.Index(fields=["kind", "object_id", "-id"], name="audit_by_object")]
