"""The trio of every permission test: Olga owns, Tim is her teammate, Uma is an outsider; and a viewer."""

import pytest
from django.test import Client

from controlplane.accounts import services as accounts
from controlplane.accounts.choices import Role
from controlplane.api import rate_limit
from tests.controlplane.callers import Caller


@pytest.fixture
def team(db):
    return accounts.create_team("physics", "Physics")


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
    return accounts.create_team("chemistry", "Chemistry")


@pytest.fixture
def outsider(other_team):
    return _member(other_team, "uma", Role.ADMIN)


def _member(team, username, role):
    user = accounts.create_user(username)
    accounts.add_member(team, user, role)
    return user


@pytest.fixture
def fresh_buckets(services):
    """Rate limits without memories of earlier tests."""
    rate_limit._client.cache_clear()
    client = rate_limit._client()
    for key in client.scan_iter("assay:limit:*"):
        client.delete(key)


@pytest.fixture
def as_token(team, fresh_buckets):
    """as_token(user, *scopes) → a caller with a token of `user` in `team`."""

    def make(user, *scopes, team=team):
        return Caller(accounts.create_token(user, team, "test", list(scopes))[0])

    return make


@pytest.fixture
def as_session(fresh_buckets):
    """as_session(user) → a signed-in browser whose CSRF check is on."""

    def make(user):
        client = Client(enforce_csrf_checks=True)
        client.force_login(user)
        return client

    return make
