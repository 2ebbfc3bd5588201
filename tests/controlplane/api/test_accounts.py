"""Tokens, members, projects and the audit trail over REST."""

import pytest

from controlplane.accounts import services
from controlplane.accounts.models import ApiToken, AuditEntry, LoginLink, Membership, Project, User


def test_a_token_is_created_listed_and_revoked(as_token, owner):
    caller = as_token(owner, "admin")
    answer = caller.send("POST", "/tokens", {"name": "laptop", "scopes": ["submit", "read"]})
    assert answer.status_code == 201
    fresh = answer.json()
    row = ApiToken.objects.get(pk=fresh["token"]["id"])
    assert (row.user, row.scopes, row.prefix) == (owner, ["read", "submit"], fresh["secret"][:12])
    assert services.authenticate_token(fresh["secret"]) == owner
    listed = caller.send("GET", "/tokens").json()["items"]
    assert [item["id"] for item in listed][0] == row.pk
    assert fresh["secret"] not in str(listed)
    assert caller.send("DELETE", f"/tokens/{row.pk}").status_code == 204
    assert services.authenticate_token(fresh["secret"]) is None
    assert list(AuditEntry.objects.filter(object_id=str(row.pk)).order_by("id").values_list("verb", flat=True)) == [
        "token.create",
        "token.revoke",
    ]


def test_a_token_without_the_admin_scope_makes_no_tokens(as_token, teammate):
    answer = as_token(teammate, "submit").send("POST", "/tokens", {"name": "child", "scopes": ["read"]})
    assert answer.status_code == 403
    assert ApiToken.objects.count() == 1


@pytest.mark.parametrize(
    "change, pointer",
    [
        ({"name": ""}, "/name"),
        ({"name": "x" * 81}, "/name"),
        ({"scopes": []}, "/scopes"),
        ({"scopes": ["root"]}, "/scopes/0"),
        ({"expires": "2001-01-01T00:00:00Z"}, "/expires"),
        ({"expires": "soon"}, "/expires"),
        ({"expires": "2999-01-01T00:00:00"}, "/expires"),
    ],
)
def test_bad_input_for_a_token_is_named(as_token, owner, change, pointer):
    answer = as_token(owner, "admin").send("POST", "/tokens", {"name": "x", "scopes": ["read"], **change})
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
    assert ApiToken.objects.count() == 1


def test_anothers_token_cannot_be_seen_or_revoked_from_outside(as_token, owner, outsider, other_team):
    caller = as_token(outsider, "admin", team=other_team)
    _, row = services.create_token(owner, Membership.objects.get(user=owner).team, "mine", ["read"])
    assert caller.send("DELETE", f"/tokens/{row.pk}").status_code == 404
    assert row.pk not in [item["id"] for item in caller.send("GET", "/tokens").json()["items"]]


def test_a_member_is_invited_promoted_and_removed(as_token, owner):
    caller = as_token(owner, "admin")
    answer = caller.send("POST", "/teams/physics/members", {"username": "zoe", "role": "viewer"})
    assert answer.status_code == 201
    member = answer.json()["member"]
    assert LoginLink.objects.get().user.username == "zoe"
    assert caller.send("PATCH", f"/teams/physics/members/{member['id']}", {"role": "member"}).json()["role"] == "member"
    assert caller.send("DELETE", f"/teams/physics/members/{member['id']}").status_code == 204
    assert not Membership.objects.filter(user__username="zoe").exists()
    assert [item["username"] for item in caller.send("GET", "/teams/physics/members").json()["items"]] == ["olga"]
    zoe = User.objects.get(username="zoe")
    assert list(AuditEntry.objects.filter(kind="user", object_id=zoe.pk).order_by("id").values_list("verb", flat=True)) == [
        *("member.add", "member.change", "member.remove")
    ]


def test_the_last_admin_stays(as_token, owner):
    member = Membership.objects.get(user=owner)
    caller = as_token(owner, "admin")
    for answer in (
        caller.send("PATCH", f"/teams/physics/members/{member.pk}", {"role": "viewer"}),
        caller.send("DELETE", f"/teams/physics/members/{member.pk}"),
    ):
        assert answer.status_code == 422
        assert "only admin" in answer.json()["detail"]
    member.refresh_from_db()
    assert member.role == "admin"


def test_a_team_one_is_not_in_is_not_found(as_token, outsider, other_team, team):
    assert as_token(outsider, "admin", team=other_team).send("GET", "/teams/physics/members").status_code == 404


def test_a_session_in_two_teams_must_name_one(as_session, owner, other_team):
    services.add_member(other_team, owner, "member")
    client = as_session(owner)
    client.cookies["csrftoken"] = "a" * 32

    def create(**body):
        options = {"content_type": "application/json", "headers": {"X-CSRFToken": "a" * 32}}
        return client.post("/api/v1/projects", {"slug": "optics", "name": "Optics", **body}, **options)

    assert create().json()["errors"] == [{"pointer": "/team", "message": "you are in several teams; name one", "value": None}]
    assert create(team="chemistry").status_code == 201
    assert Project.objects.get(slug="optics").team == other_team


def test_a_taken_project_slug_is_refused(as_token, owner):
    answer = as_token(owner, "submit").send("POST", "/projects", {"slug": "default", "name": "Again"})
    assert answer.status_code == 422
    assert "already exists" in answer.json()["detail"]


def test_the_audit_trail_is_the_teams_own(as_token, owner, outsider, other_team, team):
    entry = services.record(owner, "run.launch", Project.objects.get(team=team))
    items = as_token(owner, "read").send("GET", "/audit?verb=run.launch").json()["items"]
    assert [(item["id"], item["actor"], item["kind"]) for item in items] == [(entry.pk, "olga", "project")]
    assert as_token(outsider, "read", team=other_team).send("GET", "/audit?verb=run.launch").json()["items"] == []
