"""Every route of the API × every kind of caller. A route that is not listed here fails the build; `tests/strangers/test_pages` has the others."""

import re
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import URLResolver, get_resolver

from controlplane import storage
from controlplane.accounts import services as accounts
from controlplane.accounts.models import ApiToken, AuditEntry
from controlplane.banks import tasks
from controlplane.runs.saved_views import save
from tests.controlplane.banks.conftest import bank_file
from tests.controlplane.callers import Caller
from tests.strangers.world import DOCUMENT, make_world

PREFIX = "api/v1/"
PUBLIC = {"GET openapi.json", "GET "}
RANKS = ["viewer", "member", "admin"]


@dataclass(frozen=True)
class Rule:
    """The least role of a route, what to send, and what an outsider with an account sees.

    outside: "404" (the object is of another team) · "own" (the route speaks of the caller's own team or of nothing).
    """

    role: str = "viewer"
    body: Any = None
    query: str = ""
    outside: str = "404"
    files: bool = False


LIST = Rule(outside="own")
EVALUATION = {"kind": "evaluation", "name": "how good", "agent": "oracle"}
RULES: dict[str, Rule] = {
    # accounts
    "GET me": LIST,
    "GET tokens": LIST,
    "POST tokens": Rule("admin", {"name": "x", "scopes": ["read"]}, outside="own"),
    "DELETE tokens/{token_id}": Rule("admin"),
    "GET teams/{team}/members": Rule(),
    "POST teams/{team}/members": Rule("admin", {"username": "zoe"}),
    "PATCH teams/{team}/members/{member_id}": Rule("admin", {"role": "viewer"}),
    "DELETE teams/{team}/members/{member_id}": Rule("admin"),
    "GET projects": LIST,
    "POST projects": Rule("member", {"slug": "optics", "name": "Optics"}, outside="own"),
    "GET audit": LIST,
    # banks
    "GET banks": LIST,
    "GET banks/imports": LIST,
    "POST banks/imports": Rule("member", {"environment": "quiz", "source": "bundled"}, outside="own"),
    "POST banks/imports/upload": Rule("member", {"bank": "ske"}, outside="own", files=True),
    "GET banks/imports/{import_id}": Rule(),
    "GET banks/{slug}": Rule(),
    "PATCH banks/{slug}": Rule("member", {"archived": True}),
    "GET banks/{slug}/versions": Rule(),
    "POST banks/{slug}/versions": Rule("member", {"environment": "quiz"}, outside="own", files=True),
    "GET banks/{slug}/versions/{number}": Rule(),
    "GET banks/{slug}/versions/{number}/tasks": Rule(),
    "GET banks/{slug}/versions/{number}/file": Rule(),
    "GET banks/{slug}/diff": Rule(query="before=1&after=1"),
    # repair banks
    "POST bank-files/missing": Rule("member", {"digests": []}, outside="own"),
    "POST bank-files": Rule("member", {}, outside="own", files=True),
    "GET banks/{bank}/versions/{number}/task-files": Rule(query="task=demo/a"),
    "GET banks/{bank}/versions/{number}/findings": Rule(),
    "GET banks/{bank}/versions/{number}/anchors": Rule(),
    "POST banks/{bank}/versions/{number}/anchors": Rule("member", {"results": []}),
    "POST banks/{bank}/versions/{number}/anchors/start": Rule("member"),
    "GET banks/{bank}/versions/{number}/warmth": Rule(),
    "POST banks/{bank}/versions/{number}/warmth/start": Rule("member"),
    "POST banks/{bank}/versions/{number}/quarantine": Rule("member", {"task": "demo/a", "reason": "odd"}),
    "POST banks/{bank}/versions/{number}/release": Rule("member", {"task": "demo/a"}),
    # runs
    "GET runs": LIST,
    "POST runs": Rule("member", DOCUMENT, outside="own"),
    "POST runs/check": Rule("member", DOCUMENT, outside="own"),
    "POST runs/adopt": Rule("member", {"document": DOCUMENT, "exit": {"outcome": "succeeded", "reason": ""}}, outside="own"),
    "GET runs/seeds": LIST,
    "GET runs/views": LIST,
    "POST runs/views": Rule("member", {"name": "mine", "query": "state=active"}, outside="own"),
    "DELETE runs/views/{view_id}": Rule("admin"),
    "GET runs/differences": Rule(query="ids={run_id}&ids={second_run}"),
    "GET runs/{run_id}": Rule(),
    "PATCH runs/{run_id}": Rule("member", {"priority": 3}),
    "GET runs/{run_id}/config": Rule(),
    "GET runs/{run_id}/events": Rule(),
    "POST runs/{run_id}/stop": Rule("member"),
    "POST runs/{run_id}/resume": Rule("member", {"checkpoint": None}),
    "POST runs/{run_id}/retry": Rule("member"),
    "POST runs/{run_id}/delivery": Rule("member"),
    "POST runs/{run_id}/clone": Rule("member", {"changes": {"/seed": 3}}),
    # telemetry
    "GET runs/{run_id}/series": Rule(),
    "GET runs/{run_id}/points": Rule(query="names=critic/score/mean"),
    "GET runs/{run_id}/points.csv": Rule(query="names=critic/score/mean"),
    "GET runs/{run_id}/samples": Rule(query="names=cpu/driver/percent"),
    "GET runs/{run_id}/logs": Rule(),
    # episodes
    "GET runs/{run_id}/episodes": Rule(),
    "GET runs/{run_id}/episodes/facets": Rule(),
    "GET episodes/{episode_id}": Rule(),
    "GET episodes/{episode_id}/turns": Rule(),
    "GET episodes/{episode_id}/tokens": Rule(),
    "GET episodes/{episode_id}/siblings": Rule(),
    "GET episodes/{episode_id}/compare/{other_id}": Rule(),
    "GET episodes/{episode_id}/export": Rule(),
    "GET episodes/{episode_id}/labels": Rule(),
    "POST episodes/{episode_id}/labels": Rule("member", {"name": "odd"}),
    "POST episodes/{episode_id}/regrade": Rule("member"),
    "POST episodes/{episode_id}/again": Rule("member"),
    # evaluations
    "GET runs/{run_id}/evaluations": Rule(),
    "POST evaluations": Rule("member", EVALUATION, outside="own"),
    "POST evaluations/check": Rule("member", EVALUATION, outside="own"),
    "GET evaluations/{evaluation_id}": Rule(),
    "GET evaluations/{evaluation_id}/results.jsonl": Rule(),
    "GET evaluations/{evaluation_id}/summary.json": Rule(),
    "GET evaluations/{evaluation_id}/results": Rule(),
    "GET evaluations/{evaluation_id}/compare/{other_id}": Rule(),
    "GET protocols": LIST,
    "GET protocols/{protocol}/leaderboard": Rule(),
    # checkpoints, cluster, alerts
    "GET runs/{run_id}/checkpoints": Rule(),
    "GET runs/{run_id}/lost-peaks": Rule(),
    "GET checkpoints/{checkpoint_id}": Rule(),
    "PATCH checkpoints/{checkpoint_id}": Rule("member", {"pinned": True}),
    "GET nodes": LIST,
    "GET queue": LIST,
    "GET runs/{run_id}/incidents": Rule(),
    "GET projects/{project_id}/alert-limits": Rule(),
    "PUT projects/{project_id}/alert-limits": Rule("admin", {"rule": "verifier_error/fraction above", "limit": 0.1}),
}


# The form field and the name of what is sent; without a name, its digest.
UPLOADED = {"POST banks/imports/upload": ("file", "questions.parquet"), "POST bank-files": ("files", "")}


def routes() -> list[str]:
    """`METHOD path` of everything the URL conf mounts below /api/v1, with the methods that each view allows."""
    (resolver,) = [entry for entry in _resolvers(get_resolver()) if str(entry.pattern) == PREFIX]
    found = []
    for entry in resolver.url_patterns:
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", str(entry.pattern))
        found += [f"{method} {path}" for method in _methods(entry.callback)]
    return sorted(found)


def _resolvers(resolver):
    for entry in resolver.url_patterns:
        if isinstance(entry, URLResolver):
            yield entry
            yield from _resolvers(entry)


def _methods(view) -> list[str]:
    closure = (
        dict(zip(view.__code__.co_freevars, (cell.cell_contents for cell in view.__closure__ or ()))) if hasattr(view, "__code__") else {}
    )
    path_view = closure.get("self")
    return [method for operation in path_view.operations for method in operation.methods] if path_view else ["GET"]


# ---------------------------------------------------------------- the world that the routes speak of
@pytest.fixture
def world(team, owner, teammate, viewer, outsider, other_team, settings, tmp_path, monkeypatch):
    """One object of each kind in team `physics`; the values are those of the paths' parameters."""
    settings.ASSAY_STORAGE = tmp_path
    monkeypatch.setattr(tasks.run_import, "apply_async", lambda *_, **__: None)
    return {**make_world(team, owner, viewer, tmp_path), "view_id": save(owner, "shared", "state=failed", team).pk}


def address(route: str, world: dict, rule: Rule) -> str:
    path = route.partition(" ")[2]
    values = {**world, "other_id": world.get(f"{path.partition('/')[0]}/other_id")}
    return "/" + path.format(**values) + ("?" + rule.query.format(**values) if rule.query else "")


def call(caller, route: str, world: dict):
    rule, method = RULES[route], route.partition(" ")[0]
    if rule.files:
        content = bank_file()
        field, name = UPLOADED.get(route, ("file", "bank.zst"))
        file = SimpleUploadedFile(name or storage.digest(content), content)
        return caller.post(f"/api/v1{address(route, world, rule)}", {field: file, **rule.body})
    return caller.send(method, address(route, world, rule), rule.body)


@pytest.fixture
def callers(as_token, owner, teammate, viewer, outsider, other_team, world):
    revoked = as_token(owner, "admin")
    accounts.revoke_token(owner, ApiToken.objects.get(user=owner, name="test"))
    return {
        "anonymous": Caller(),
        "revoked token": revoked,
        "run token": Caller(world["attempt_token"]),
        "viewer": as_token(viewer, "read"),
        "member": as_token(teammate, "submit"),
        "admin": as_token(owner, "admin"),
        "reading token of an admin": as_token(owner, "read"),
        "other team": as_token(outsider, "admin", team=other_team),
    }


# ---------------------------------------------------------------- the matrix
def test_every_mounted_route_is_listed_and_every_listed_one_is_mounted():
    assert set(routes()) - PUBLIC == set(RULES)


@pytest.mark.parametrize("route", sorted(RULES))
def test_route(route, world, callers):
    """From the caller who may least to the one who may most, so that each sees the objects as they were."""
    audited = AuditEntry.objects.filter(team__slug="physics").count()
    strangers = ("anonymous", "revoked token", "run token")
    assert {name: call(callers[name], route, world).status_code for name in strangers} == dict.fromkeys(strangers, 401)
    assert_outside(call(callers["other team"], route, world), RULES[route], world)
    assert AuditEntry.objects.filter(team__slug="physics").count() == audited, "a refused call changed something"

    status = call(callers["reading token of an admin"], route, world).status_code
    assert status < 300 if route.startswith("GET ") else status == 403, f"reading token got {status}"
    for role in RANKS:
        status = call(callers[role], route, world).status_code
        if RANKS.index(role) < RANKS.index(RULES[route].role):
            assert status == 403, f"{role} got {status}"
        else:
            # 409 and 422: allowed, though this object is in no state for it (a running run cannot be resumed).
            assert status < 300 or (status in (409, 422) and not route.startswith("GET")), f"{role} got {status}"


def assert_outside(answer, rule: Rule, world: dict) -> None:
    if rule.outside == "404":
        assert answer.status_code == 404
        return
    assert answer.status_code < 300 or answer.status_code in (409, 422), answer.status_code
    secrets = ["olga", *(str(value) for name, value in world.items() if isinstance(value, uuid.UUID) or name == "protocol")]
    assert not [secret for secret in secrets if secret in answer.content.decode()]
