"""What every app's querysets share."""

from django.db import models


def choices(enum) -> list[tuple[str, str]]:
    """Django choices of a contract enum."""
    return [(member.value, member.value.replace("_", " ")) for member in enum]


class TeamQuerySet(models.QuerySet):
    """`for_user` is the only door to rows; subclasses name the path from their model to the team."""

    team_path = "team"

    def for_user(self, user):
        """Rows of the teams that `user` belongs to; none for anonymous visitors, one team's for an API token."""
        if not user.is_authenticated:
            return self.none()
        rows = self.filter(**{f"{self.team_path}__memberships__user": user})
        return rows if user.token is None else rows.filter(**{self.team_path: user.token.team_id})
