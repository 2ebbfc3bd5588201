"""The page of last resort says whose fault it is, and when to come again."""

import pytest
from django.db import OperationalError
from django.test import AsyncClient, Client


@pytest.fixture
def failing(monkeypatch, settings):
    """failing(error): the front door raises it."""

    def fail(error):
        def raising(*_):
            raise error

        settings.DEBUG = False
        monkeypatch.setattr("controlplane.views.redirect", raising)

    return fail


@pytest.mark.parametrize(
    ("error", "status", "again", "told"),
    [(OperationalError("gone"), 503, "5", "database does not answer"), (ValueError("a defect"), 500, None, "failed to answer")],
)
def test_a_database_that_is_away_asks_to_come_again(db, failing, error, status, again, told):
    failing(error)
    answer = Client(raise_request_exception=False).get("/")
    assert (answer.status_code, answer.get("Retry-After")) == (status, again)
    assert told in answer.content.decode()


async def test_served_asynchronously_it_is_told_alike(failing):
    failing(OperationalError("gone"))
    answer = await AsyncClient(raise_request_exception=False).get("/")
    assert (answer.status_code, answer.get("Retry-After")) == (503, "5")
