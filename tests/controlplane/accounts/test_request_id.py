"""X-Request-ID comes in, goes out, and is in audit rows and log records."""

import logging

import pytest

from controlplane.accounts import services
from controlplane.accounts.request_id import RequestIdFilter, _current, current_request_id


def test_an_answer_carries_the_identifier_it_was_asked_with(client, db):
    assert client.get("/healthz", headers={"X-Request-ID": "deploy-42"})["X-Request-ID"] == "deploy-42"


@pytest.mark.parametrize("given", ["", "two words", "a" * 41, "x\ny", "<script>"])
def test_an_ill_formed_identifier_is_replaced(client, db, given):
    answer = client.get("/healthz", headers={"X-Request-ID": given})
    assert answer["X-Request-ID"] != given
    assert len(answer["X-Request-ID"]) == 32


def test_nothing_of_a_request_is_left_after_it(client, db):
    client.get("/healthz", headers={"X-Request-ID": "deploy-42"})
    assert current_request_id() == ""


def test_async_views_are_served_with_it_too(async_client, db):
    from asgiref.sync import async_to_sync

    answer = async_to_sync(async_client.get)("/healthz", headers={"X-Request-ID": "deploy-43"})
    assert answer["X-Request-ID"] == "deploy-43"


def test_audit_rows_and_log_records_name_the_request(team, owner):
    token = _current.set("deploy-44")
    try:
        entry = services.record(owner, "team.rename", team)
        line = logging.makeLogRecord({})
        RequestIdFilter().filter(line)
    finally:
        _current.reset(token)
    assert entry.request_id == "deploy-44"
    assert line.request_id == "deploy-44"
