"""How the tests call the API."""

import json

from django.test import Client


class Caller(Client):
    """A client that sends JSON and, if it has one, a bearer token."""

    def __init__(self, token=None):
        super().__init__(headers={"Authorization": f"Bearer {token}"} if token else {})

    def send(self, method, path, body=None, **options):
        """Any method on a path under /api/v1 with a JSON body."""
        options.setdefault("content_type", "application/json")
        return self.generic(method, f"/api/v1{path}", "" if body is None else json.dumps(body), **options)
