from django.db import models


class Role(models.TextChoices):
    """What a member may do: look, work, or also manage people and tokens."""

    VIEWER = "viewer"
    MEMBER = "member"
    ADMIN = "admin"


class Scope(models.TextChoices):
    """What a token may do; a token never exceeds its owner's role."""

    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"
