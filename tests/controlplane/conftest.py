"""The trio of every permission test: Olga owns, Tim is her teammate, Uma is an outsider; and a viewer."""

import pytest

from controlplane.accounts import services
from controlplane.accounts.choices import Role


@pytest.fixture
def team(db):
    return services.create_team("physics", "Physics")


@pytest.fixture
def owner(team):
    return _member(team, "olga", Role.ADMIN)


@pytest.fixture
def teammate(team):
    return _member(team, "tim", Role.MEMBER)


@pytest.fixture
def viewer(team):
    return _member(team, "vera", Role.VIEWER)


@pytest.fixture
def other_team(db):
    return services.create_team("chemistry", "Chemistry")


@pytest.fixture
def outsider(other_team):
    return _member(other_team, "uma", Role.ADMIN)


def _member(team, username, role):
    user = services.create_user(username)
    services.add_member(team, user, role)
    return user
