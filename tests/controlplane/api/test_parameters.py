"""Parameters of an address: what is wrong with them is told by name, value and remedy, all at once."""

import pytest

from controlplane.api.problems import CONTENT_TYPE

pytestmark = pytest.mark.django_db


@pytest.fixture
def caller(as_token, owner):
    return as_token(owner, "read")


@pytest.mark.parametrize(
    "query, pointer, message, value",
    [
        ("limit=x", "/limit", "must be a whole number, got 'x'", "x"),
        ("limit=0", "/limit", "must be at least 1, got '0'", "0"),
        ("limit=201", "/limit", "must be at most 200, got '201'", "201"),
        ("archived=maybe", "/archived", "must be true or false, got 'maybe'", "maybe"),
        ("state=active&state=dead", "/state/1", "must be one of 'draft', 'queued', 'active', 'succeeded', 'failed', 'stopped', 'lost', got 'dead'", "dead"),
        ("search=" + "x" * 201, "/search", "may have at most 200 characters, got 201", "x" * 201),
        ("&".join(["owner=x"] * 51), "/owner", "may have at most 50 entries, got 51", None),
    ],
)  # fmt: skip
def test_a_wrong_parameter_is_told_in_our_words(caller, query, pointer, message, value):
    answer = caller.send("GET", f"/runs?{query}")
    assert (answer.status_code, answer["Content-Type"]) == (422, CONTENT_TYPE)
    assert answer.json()["errors"] == [{"pointer": pointer, "message": message, "value": value}]


def test_every_wrong_parameter_is_told_at_once(caller):
    problem = caller.send("GET", "/runs/differences?ids=7&limit=x").json()
    assert problem["errors"][0]["pointer"] == "/ids/0"
    assert problem["detail"] == f"/ids/0: {problem['errors'][0]['message']}"
    assert "must be an identifier" in problem["detail"] and problem["detail"].endswith("got '7'")
