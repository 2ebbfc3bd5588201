"""A caller for every kind of credential, and a Redis without memories of earlier tests."""

import json

import pytest
from django.test import Client

from controlplane.accounts import services
from controlplane.api import rate_limit


class Caller(Client):
    """A client that sends JSON and a bearer token."""

    def __init__(self, token=None):
        super().__init__(headers={"Authorization": f"Bearer {token}"} if token else {})

    def send(self, method, path, body=None, **options):
        options.setdefault("content_type", "application/json")
        return self.generic(method, f"/api/v1{path}", "" if body is None else json.dumps(body), **options)


@pytest.fixture
def as_token(team):
    """as_token(user, *scopes) → a caller with a token of `user` in `team`."""

    def make(user, *scopes, team=team):
        return Caller(services.create_token(user, team, "test", list(scopes))[0])

    return make


@pytest.fixture
def as_session():
    """as_session(user) → a signed-in browser whose CSRF check is on."""

    def make(user):
        client = Client(enforce_csrf_checks=True)
        client.force_login(user)
        return client

    return make


@pytest.fixture(autouse=True)
def fresh_buckets(services):
    rate_limit._client.cache_clear()
    client = rate_limit._client()
    for key in client.scan_iter("assay:limit:*"):
        client.delete(key)
