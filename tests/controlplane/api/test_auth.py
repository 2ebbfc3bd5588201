"""Sessions, tokens, scopes and CSRF at the door of the API."""

import json

import pytest

from controlplane.accounts import services
from controlplane.accounts.models import ApiToken, User
from tests.controlplane.callers import Caller

BODY = json.dumps({"slug": "optics", "name": "Optics"})


def test_a_stranger_is_told_how_to_come_in(db):
    answer = Caller().send("GET", "/me")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert "Bearer" in answer.json()["detail"]


@pytest.mark.parametrize("header", ["Bearer nonsense", "Bearer ", "Bearer", "Basic dXNlcjpwYXNz", "assay_x"])
def test_a_bad_authorization_is_refused_even_with_a_session(as_session, owner, header):
    assert as_session(owner).get("/api/v1/me", headers={"Authorization": header}).status_code == 401


def test_me_tells_the_role_that_the_token_may_exercise(as_token, owner):
    assert as_token(owner, "read").send("GET", "/me").json() == {
        "username": "olga",
        "teams": [{"team": "physics", "role": "viewer"}],
        "scopes": ["read"],
    }


def test_me_of_a_session_names_every_team(as_session, owner, other_team):
    services.add_member(other_team, owner, "viewer")
    me = as_session(owner).get("/api/v1/me").json()
    assert me["teams"] == [{"team": "chemistry", "role": "viewer"}, {"team": "physics", "role": "admin"}]
    assert me["scopes"] is None


def test_a_reading_token_cannot_write(as_token, owner):
    answer = as_token(owner, "read").send("POST", "/projects", {"slug": "optics", "name": "Optics"})
    assert answer.status_code == 403
    assert "scope submit" in answer.json()["detail"]


def test_a_submitting_token_writes_as_a_member_and_not_as_an_admin(as_token, owner):
    caller = as_token(owner, "submit")
    assert caller.send("POST", "/projects", {"slug": "optics", "name": "Optics"}).status_code == 201
    assert caller.send("POST", "/teams/physics/members", {"username": "zoe"}).status_code == 403
    assert not User.objects.filter(username="zoe").exists()


def test_a_session_needs_the_csrf_token_to_write(as_session, owner):
    client = as_session(owner)
    answer = client.post("/api/v1/projects", BODY, content_type="application/json")
    assert answer.status_code == 403
    assert "CSRF" in answer.json()["detail"]
    client.cookies["csrftoken"] = "a" * 32
    answer = client.post("/api/v1/projects", BODY, content_type="application/json", headers={"X-CSRFToken": "a" * 32})
    assert answer.status_code == 201, answer.content


def test_a_token_needs_no_csrf_token(as_token, owner):
    assert as_token(owner, "submit").send("POST", "/projects", {"slug": "optics", "name": "Optics"}).status_code == 201


def test_a_revoked_token_stops_at_once(as_token, owner):
    caller = as_token(owner, "read")
    assert caller.send("GET", "/me").status_code == 200
    services.revoke_token(owner, ApiToken.objects.get())
    assert caller.send("GET", "/me").status_code == 401


def test_a_disabled_user_stops_at_once(as_token, as_session, owner):
    callers = [as_token(owner, "read"), as_session(owner)]
    User.objects.filter(pk=owner.pk).update(is_active=False)
    assert [caller.get("/api/v1/me").status_code for caller in callers] == [401, 401]


def test_the_schema_is_openapi_3_1_and_knows_problems_and_both_ways_in(client, db):
    schema = client.get("/api/v1/openapi.json").json()
    assert schema["openapi"] == "3.1.0"
    assert set(schema["components"]["securitySchemes"]) == {"Bearer", "Session"}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            for status in ("4XX", "503"):
                assert "application/problem+json" in operation["responses"][status]["content"], (path, method)
            assert operation["security"], (path, method)
    identifiers = [operation["operationId"] for methods in schema["paths"].values() for operation in methods.values()]
    assert len(identifiers) == len(set(identifiers))
