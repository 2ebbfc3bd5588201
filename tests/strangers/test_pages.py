"""Every address outside the REST API × every kind of caller. A route that is not listed here or in test_permissions fails the build."""

import re
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, get_resolver

from controlplane.accounts import services as accounts
from controlplane.accounts.models import ApiToken, AuditEntry
from controlplane.runs.models import Run
from controlplane.runs.saved_views import save
from tests.controlplane.callers import Caller

API = "api/v1/"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
RANKS = ("viewer", "member", "admin")
STRANGERS = ("anonymous", "run token", "revoked token", "API token", "disabled")


@dataclass(frozen=True)
class Rule:
    """The least role of a page, what to send, and what an outsider with an account gets.

    outside: "404" (the object is another team's) · "own" (it speaks of the caller's own teams or of nothing) · "403".
    fine: statuses of an allowed call; a form that ends in a redirect says 302.
    """

    role: str = "viewer"
    body: dict[str, Any] = field(default_factory=dict)
    query: str = ""
    outside: str = "404"
    fine: tuple[int, ...] = (200,)


DONE = (302,)
ONCE = {"token": "0" * 32}
OWN = Rule(outside="own")
FORM = {"/name": "x", "/stages/0/type": "sft"}
PUBLIC = {
    "GET ": 302,
    "GET login": 200,
    "GET login/link/{token}": 410,
    "POST login/link/{token}": 410,
    "GET healthz": 200,
    "POST logout": 302,
}
PAGES: dict[str, Rule] = {
    "GET house": OWN,
    # accounts
    "GET settings": OWN,
    "POST settings/theme": Rule(body={"theme": "dark"}, outside="own", fine=(204,)),
    "GET settings/tokens": Rule(outside="own", fine=DONE),
    "POST settings/tokens": Rule(body={"team": "{teams/team}", "name": "x", "scopes": "read"}),
    "POST settings/tokens/{token_id}/revoke": Rule("admin", fine=DONE),
    "GET settings/teams/{teams/team}/members": Rule(outside="own", fine=DONE),
    "POST settings/teams/{teams/team}/members": Rule("admin", {"username": "zoe", "role": "viewer"}),
    "POST settings/members/{member_id}/role": Rule("admin", {"role": "viewer"}, fine=DONE),
    "POST settings/members/{member_id}/remove": Rule("admin", fine=DONE),
    # runs
    "GET runs": OWN,
    "GET runs/rows": Rule(query="ids={run_id}", outside="own"),
    "POST runs/bulk": Rule("member", {"action": "stop", "ids": "{run_id}"}, outside="own", fine=DONE),
    "POST runs/views": Rule("member", {"name": "mine", "query": "state=active", "team": "{teams/team}"}, fine=DONE),
    "POST runs/views/{view_id}/delete": Rule("admin", fine=DONE),
    "GET compare": Rule(query="runs={run_id},{second_run}", outside="own"),
    "GET launch": Rule("member", outside="own"),
    "POST launch": Rule("member", {**FORM, **ONCE}, outside="own", fine=(302, 422)),
    "POST launch/check": Rule(body=FORM, outside="own"),
    "POST launch/union": Rule(body={**FORM, "/model/source/type": "path"}, query="pointer=/model/source", outside="own"),
    "POST launch/stages": Rule(body=FORM, query="act=add&type=grpo", outside="own"),
    "POST launch/fields": Rule(body=FORM, outside="own"),
    "POST launch/text": Rule(body=FORM, query="door=yaml", outside="own"),
    **{
        f"GET runs/{{run_id}}{tab}": Rule()
        for tab in ("", "/header", "/metrics", "/config", "/audit", "/logs", "/checkpoints", "/episodes", "/evaluation")
    },
    **{f"POST runs/{{run_id}}/{verb}": Rule("member", fine=DONE) for verb in ("stop", "archive")},
    **{f"POST runs/{{run_id}}/{verb}": Rule("member", ONCE, fine=DONE) for verb in ("resume", "retry")},
    "POST checkpoints/{checkpoint_id}/pin": Rule("member", {"pinned": "1"}, fine=DONE),
    # banks
    "GET banks": OWN,
    "POST banks": Rule("member", {**ONCE, "source": "hub", "location": "not a hub id"}, outside="own", fine=(422,)),
    "GET banks/imports/{import_id}": Rule(),
    "GET banks/{slug}": Rule(),
    "GET banks/{slug}/{number}": Rule(),
    "GET banks/{bank}/{number}/anchors": Rule(),
    "POST banks/{bank}/{number}/prove": Rule("member", ONCE, fine=(*DONE, 422)),
    "POST banks/{bank}/{number}/stop": Rule("member", fine=DONE),
    "GET banks/{bank}/{number}/warmth": Rule(),
    "POST banks/{bank}/{number}/warm": Rule("member", ONCE, fine=(*DONE, 422)),
    "POST banks/{bank}/{number}/warm/stop": Rule("member", fine=DONE),
    "POST banks/{bank}/{number}/quarantine": Rule("member", {"task": "demo/a", "reason": "odd"}, fine=DONE),
    # evaluations in containers
    "GET evaluate": OWN,
    **{f"POST episodes/{{episode_id}}/{verb}": Rule("member", ONCE, fine=DONE) for verb in ("regrade", "again")},
    "POST evaluate/check": Rule(body={"agent": "oracle", "bank": "none"}, outside="own"),
    "POST evaluate": Rule("member", {"agent": "oracle", "bank": "none", **ONCE}, outside="own", fine=(422,)),
    # episodes
    "GET episodes/{episode_id}": Rule(),
    "GET episodes/{episode_id}/turns": Rule(query="after=0"),
    "POST episodes/{episode_id}/label": Rule("member", {"name": "odd"}, fine=DONE),
    "GET episodes/{episode_id}/compare/{episodes/other_id}": Rule(),
    # the cluster is everybody's; only an admin of some team changes it
    "GET cluster": OWN,
    "POST cluster/nodes/{node_id}/cordon": Rule("admin", {"cordoned": "1"}, outside="own", fine=DONE),
}
# Runner-facing: the attempt's own token and nothing else opens them. The claim takes a one-time code instead.
RUNNER: dict[str, Any] = {
    "POST api/ingest/{attempt_id}/batches": b"not a batch",
    "POST api/ingest/{attempt_id}/heartbeat": {},
    "POST api/ingest/{attempt_id}/state": {"state": "running", "first_step": 0},
    "POST api/ingest/{attempt_id}/exit": {"outcome": "dancing"},
    "POST api/ingest/{attempt_id}/checkpoints": {"checkpoint": "no uuid"},
    "POST api/ingest/{attempt_id}/anchors": {"results": "none"},
    "POST api/ingest/{attempt_id}/warmed": {"results": "none"},
    "POST api/ingest/{attempt_id}/regrades": {"results": "none"},
    "GET api/ingest/{attempt_id}/bank": None,
    "GET api/ingest/{attempt_id}/tasks/{digest}": None,
}
CLAIM = "POST api/ingest/{attempt_id}/claim"
# A path parameter's name in the URL conf, where the world calls it otherwise.
NAMES = {
    "runs": {"pk": "run_id"},
    "episodes": {"pk": "episode_id", "other": "episodes/other_id"},
    "settings/tokens": {"pk": "token_id"},
    "settings/members": {"pk": "member_id"},
    "settings/teams": {"team": "teams/team"},
    "runs/views": {"pk": "view_id"},
    "checkpoints": {"pk": "checkpoint_id"},
    "banks": {"pk": "import_id"},
    "cluster": {"pk": "node_id"},
}


def mounted(resolver=None, prefix: str = "") -> set[str]:
    """Paths of everything the URL conf mounts outside the REST API, parameters named as the world names them."""
    found = set()
    for entry in (resolver or get_resolver()).url_patterns:
        path = prefix + str(entry.pattern)
        if isinstance(entry, URLPattern):
            found.add(_named(path))
        elif path != API:
            found |= mounted(entry, path)
    return found


def _named(path: str) -> str:
    longest = max((start for start in NAMES if path.startswith(start)), key=len, default="")
    names = NAMES.get(longest, {})
    return re.sub(r"<(?:\w+:)?(\w+)>", lambda found: "{" + names.get(found[1], found[1]) + "}", path)


def path_of(route: str) -> str:
    return route.partition(" ")[2]


def test_every_mounted_address_is_listed_and_every_listed_one_is_mounted():
    assert mounted() == {path_of(route) for route in (*PUBLIC, *PAGES, *RUNNER, CLAIM)}


# ---------------------------------------------------------------- calling
@pytest.fixture
def world(world, owner, team):
    return {**world, "view_id": save(owner, "shared", "state=failed", team).pk, "token": "assay_" + "x" * 43}


@pytest.fixture
def callers(as_token, as_session, owner, teammate, viewer, outsider, team, other_team, world):
    revoked = as_token(owner, "admin")
    accounts.revoke_token(owner, ApiToken.objects.get(user=owner, name="test"))
    disabled = accounts.create_user("dora")
    accounts.add_member(team, disabled, "admin")
    gone = signed_in(disabled)
    root = accounts.create_user("root")
    root.is_superuser = True
    accounts.disable_user(root, disabled)
    people = {"viewer": viewer, "member": teammate, "admin": owner, "other team": outsider}
    return {
        "anonymous": Client(),
        "run token": Caller(world["attempt_token"]),
        "revoked token": revoked,
        "API token": as_token(owner, "admin"),
        "disabled": gone,
        **{name: signed_in(person) for name, person in people.items()},
    }


def signed_in(person) -> Client:
    client = Client()
    client.force_login(person)
    return client


def call(client: Client, route: str, world: dict, rule: Rule = OWN):
    method = route.partition(" ")[0]
    path = "/" + path_of(route).format(**world)
    query = "?" + rule.query.format(**world) if rule.query else ""
    body = {name: value.format(**world) if isinstance(value, str) else value for name, value in rule.body.items()}
    return client.post(path + query, body) if method == "POST" else client.generic(method, path + query)


def to_login(answer) -> bool:
    return answer.status_code == 302 and answer["Location"].startswith("/login")


# ---------------------------------------------------------------- the matrix
@pytest.mark.parametrize("route", sorted(PUBLIC))
def test_what_is_public_tells_a_stranger_nothing(route, world, callers):
    for name in STRANGERS:
        answer = call(callers[name], route, world)
        assert answer.status_code == PUBLIC[route], name
        assert not told(answer, world)


@pytest.mark.parametrize("route", sorted(PAGES))
def test_page(route, world, callers):
    """From the caller who may least to the one who may most, so that each sees the objects as they were."""
    rule = PAGES[route]
    before = state()
    for name in STRANGERS:
        answer = call(callers[name], route, world, rule)
        assert to_login(answer), f"{name} got {answer.status_code}"
    assert_outside(call(callers["other team"], route, world, rule), rule, world)
    assert rule.outside == "own" or state() == before, "a refused call changed something"
    for role in RANKS:
        answer = call(callers[role], route, world, rule)
        if RANKS.index(role) < RANKS.index(rule.role):
            assert answer.status_code == 403, f"{role} got {answer.status_code}"
        else:
            assert answer.status_code in rule.fine and not to_login(answer), f"{role} got {answer.status_code}"


def assert_outside(answer, rule: Rule, world: dict) -> None:
    if rule.outside == "404":
        assert answer.status_code == 404, answer.status_code
    else:
        assert answer.status_code in (*rule.fine, 422), answer.status_code
    assert not told(answer, world)


def told(answer, world: dict) -> list[str]:
    """What of team physics an answer gives away, beyond the identifiers that the caller sent."""
    text = getattr(answer, "content", b"").decode()
    return [secret for secret in ("olga", "Physics", "elements", world["attempt_token"]) if secret in text]


def state() -> tuple:
    runs = Run.objects.order_by("pk").values_list("pk", "state", "stop_requested_at", "archived_at")
    return AuditEntry.objects.filter(team__slug="physics").count(), list(runs)


@pytest.mark.parametrize("path", sorted({path_of(route) for route in (*PAGES, *PUBLIC)} - {"healthz", "", "house"}))
def test_other_methods_are_refused(path, world, callers):
    allowed = {route.partition(" ")[0] for route in (*PAGES, *PUBLIC) if path_of(route) == path}
    answers = {method: call(callers["admin"], f"{method} {path}", world).status_code for method in METHODS if method not in allowed}
    assert set(answers.values()) <= {405}, answers


# ---------------------------------------------------------------- what runners use
def deliver(client: Client, route: str, world: dict, body):
    method, path = route.partition(" ")[0], "/" + path_of(route).format(**world)
    options = {} if body is None else {"data": body, "content_type": "application/json"}
    return client.get(path) if method == "GET" else client.post(path, **options)


@pytest.mark.parametrize("route", sorted(RUNNER))
def test_only_the_attempts_own_token_opens_what_runners_use(route, world, callers):
    for name in (*STRANGERS, *RANKS, "other team"):
        if name != "run token":
            assert deliver(callers[name], route, world, RUNNER[route]).status_code == 401, name
    answer = deliver(callers["run token"], route, world, RUNNER[route])
    assert answer.status_code in (200, 400, 404), answer.content


@pytest.mark.parametrize("route", sorted(RUNNER))
def test_the_token_of_one_attempt_does_not_open_another(route, world, team):
    from tests.controlplane.factories import make_attempt, make_run

    other = make_attempt(make_run(team))
    assert deliver(Caller(other.token), route, world, RUNNER[route]).status_code == 401


def test_a_claim_needs_its_code_whoever_asks(world, callers):
    for client in callers.values():
        for code in ("", "guessed", world["attempt_token"]):
            answer = deliver(client, CLAIM, world, {"code": code, "host": "h", "pid": 1, "started": 1.0})
            assert answer.status_code == 403


def test_a_run_token_opens_nothing_of_the_rest_api(world, callers):
    for path in ("/me", "/runs", f"/runs/{world['run_id']}", "/tokens"):
        assert callers["run token"].send("GET", path).status_code == 401
