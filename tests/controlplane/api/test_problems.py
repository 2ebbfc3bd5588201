"""Every error is a problem document that names the field, the value and the remedy, and nothing of our insides."""

import json

import pytest

from controlplane.api.problems import CONTENT_TYPE

pytestmark = [pytest.mark.urls("tests.controlplane.api.urls"), pytest.mark.django_db]


@pytest.fixture
def caller(as_token, owner):
    return as_token(owner, "admin")


@pytest.mark.parametrize(
    "how, status, words",
    [
        ("missing", 404, "no such object"),
        ("no-row", 404, "no such object"),
        ("forbidden", 403, "needs the role admin"),
        ("conflict", 409, "the run is queued"),
        ("transition", 409, "not in the table"),
        ("document", 422, "2 fields"),
        ("bank", 422, "nothing was imported"),
        ("invalid", 422, "taken"),
        ("database", 503, "try again"),
        ("bug", 500, "identifier"),
    ],
)
def test_an_error_is_answered_as(caller, how, status, words):
    answer = caller.send("GET", f"/fail/{how}", headers={"X-Request-ID": "trace-1"})
    assert (answer.status_code, answer["Content-Type"]) == (status, CONTENT_TYPE)
    problem = answer.json()
    assert set(problem) == {"type", "title", "status", "detail", "errors", "request"}
    assert (problem["status"], problem["request"]) == (status, "trace-1")
    assert words in problem["detail"]
    assert not any(secret in answer.content.decode() for secret in ("password", "10.0.0.1", "secret", "Traceback"))


def test_an_invalid_document_names_pointers_and_values(caller):
    assert caller.send("GET", "/fail/document").json()["errors"] == [
        {"pointer": "/stages/0/group_size", "message": "try 8", "value": 7},
        {"pointer": "/seed", "message": "not finite", "value": "nan"},
    ]


def test_a_broken_bank_names_its_lines(caller):
    errors = caller.send("GET", "/fail/bank").json()["errors"]
    assert [error["message"] for error in errors] == ["line 3: duplicate key", "holds no task"]


def test_unavailable_says_when_to_come_back(caller):
    assert caller.send("GET", "/fail/database")["Retry-After"] == "5"


@pytest.mark.parametrize(
    "body, pointer",
    [({}, "/slug"), ({"slug": 3}, "/slug"), ({"slug": "a", "colour": 1}, "/colour"), ([], ""), ("text", ""), (None, "")],
)
def test_a_wrong_body_is_named_by_pointer(caller, body, pointer):
    answer = caller.send("POST", "/things", body)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "is required and has no default; give it"),
        ({"slug": "a", "colour": 1}, "is unknown; remove it or correct its spelling"),
        ({"slug": 3}, "must be a text, got 3"),
        ([], "must be an object"),
    ],
)
def test_a_wrong_body_is_told_in_our_words(caller, body, message):
    assert [error["message"] for error in caller.send("POST", "/things", body).json()["errors"]] == [message]


@pytest.mark.parametrize(
    "body", [b"{", b"\xff", b'{"slug": NaN}', b'{"slug": 1e999}', b'{"slug": "\\u0000"}', b'{"slug": "\\uD800"}', b"[" * 100_000]
)
def test_a_body_that_is_no_json_is_a_400(caller, body):
    answer = caller.post("/api/v1/things", body, content_type="application/json")
    assert (answer.status_code, answer["Content-Type"]) == (400, CONTENT_TYPE)
    assert "not JSON" in answer.json()["detail"]


def test_unknown_routes_and_wrong_methods_are_problems_too(caller):
    assert (caller.send("GET", "/nowhere").status_code, caller.send("GET", "/nowhere")["Content-Type"]) == (404, CONTENT_TYPE)
    answer = caller.send("PUT", "/things", {})
    assert (answer.status_code, answer["Content-Type"]) == (405, CONTENT_TYPE)
    assert "POST" in answer["Allow"]


@pytest.mark.parametrize("address", ["/things%00", "/things?cursor=%00"])
def test_a_null_character_in_the_address_is_a_400(caller, address):
    answer = caller.send("GET", address)
    assert (answer.status_code, answer["Content-Type"]) == (400, CONTENT_TYPE)


def test_a_body_over_the_limit_is_a_problem(caller, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    answer = caller.post("/api/v1/things", json.dumps({"slug": "x" * 200}), content_type="application/json")
    assert (answer.status_code, answer["Content-Type"]) == (413, CONTENT_TYPE)
