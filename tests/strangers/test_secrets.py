"""Secrets are handed out once and then nowhere: not in the log, an address, an export, a page, or a column of the database."""

import io
import json
import logging
import re

import pytest
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client

from controlplane.accounts import services as accounts
from controlplane.accounts.models import User
from controlplane.accounts.tokens import new_token, redact
from controlplane.logs import LineFormatter
from controlplane.runs import scheduling
from controlplane.runs.models import Attempt
from tests.controlplane.callers import Caller
from tests.controlplane.factories import deliver, make_attempt, make_batch, make_run
from tests.strangers.test_pages import signed_in

pytestmark = pytest.mark.django_db
TOKEN = re.compile(r"assay_[\w-]{43}")


@pytest.fixture
def log():
    """What the house's own formatter makes of every record, down to debug."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("%(name)s: %(message)s"))
    root, level = logging.getLogger(), logging.getLogger().level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


class Recorder(Client):
    """Remembers the address of each request and everything that was answered, but for what a caller takes out by hand."""

    def __init__(self, **defaults):
        super().__init__(**defaults)
        self.addresses, self.answers = [], []

    def request(self, **request):
        answer = super().request(**request)
        self.addresses.append(f"{request['PATH_INFO']}?{request.get('QUERY_STRING', '')} {answer.get('Location', '')}")
        self.answers.append(answer)
        return answer

    def told(self) -> str:
        bodies = (
            b"".join(answer.streaming_content) if answer.streaming and not answer.is_async else getattr(answer, "content", b"")
            for answer in self.answers
        )
        return "\n".join(body.decode("utf-8", "replace") for body in bodies)


def database() -> str:
    """Every row of every table as text, sessions decoded."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace")
        rows = []
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT t::text FROM "{table}" AS t')
            rows += [row for (row,) in cursor.fetchall()]
    return "\n".join([*rows, *(json.dumps(session.get_decoded(), default=str) for session in Session.objects.all())])


@pytest.fixture
def secrets(team, owner, world, fresh_buckets):
    """Each secret of the house by name, made as people and runners make them."""
    browser = signed_in(owner)
    made = {}
    page = browser.post("/settings/tokens", {"team": team.pk, "name": "by form", "scopes": ["read"]})
    made["token of a form"] = TOKEN.search(page.content.decode()).group()
    made["token of the API"], _ = accounts.create_token(owner, team, "by API", ["admin"])
    page = browser.post(f"/settings/teams/{team.pk}/members", {"username": "nina", "role": "viewer"})
    made["link of an invitation"] = TOKEN.search(page.content.decode()).group()
    made["link of the command line"] = TOKEN.search(accounts.create_login_link(owner)).group()
    attempt = make_attempt(make_run(team, owner=owner))
    made["token of a run"] = attempt.token
    made["claim code"] = scheduling.claim_code(attempt)
    made["session"] = browser.cookies[settings.SESSION_COOKIE_NAME].value
    made["password"] = "a long passphrase nobody knows"
    nina = User.objects.get(username="nina")
    nina.set_password(made["password"])
    nina.save()
    return {**made, "attempt": attempt, "browser": browser}


def use(secrets: dict, world: dict, owner) -> list[Recorder]:
    """Everybody does what they do, rightly and wrongly."""
    attempt = secrets.pop("attempt")
    secrets.pop("browser")
    api = Recorder(headers={"Authorization": f"Bearer {secrets['token of the API']}"})
    for path in (
        "me",
        "tokens",
        "audit",
        "runs",
        f"runs/{world['run_id']}",
        f"runs/{world['run_id']}/events",
        f"episodes/{world['episode_id']}/export",
    ):
        api.get(f"/api/v1/{path}")
    for scheme in ("Basic", "Token", "bearer"):
        Recorder(headers={"Authorization": f"{scheme} {secrets['token of a form']}"}).post(
            "/api/v1/projects", "{", content_type="application/json"
        )
    runner = Recorder()
    deliver(runner, attempt, make_batch(0, {"loss": [(1, 1.0)]}))
    deliver(runner, attempt, b"not a batch")
    runner.post(f"/api/ingest/{attempt.pk}/claim", json.dumps({"code": secrets["claim code"]}), content_type="application/json")
    page = Recorder()
    page.force_login(owner)
    for path in ("/settings", "/runs", f"/runs/{world['run_id']}/audit", f"/runs/{world['run_id']}/config", "/cluster"):
        page.get(path)
    return [api, runner, page]


def test_what_was_handed_out_once_is_nowhere_again(secrets, world, owner, log):
    callers = use(secrets, world, owner)
    kept, written = database(), log.getvalue()
    assert len(kept) > 10_000 and written, "the test must have something to look through"
    # Django keeps a session under its key; that row is what the cookie opens, and nothing else shows it.
    in_rows = {name: secret for name, secret in secrets.items() if name != "session"}
    assert [name for name, secret in in_rows.items() if secret in kept] == []
    assert [name for name, secret in secrets.items() if secret in written] == []
    for caller in callers:
        addresses, told = "\n".join(caller.addresses), caller.told()
        assert [name for name, secret in secrets.items() if secret in addresses or secret in told] == []
    assert not Attempt.objects.filter(token_hash__startswith="assay_").exists()


def test_a_login_link_in_a_path_is_cut_in_the_log(log, owner):
    """Its path is the one address with a secret; refused requests write their path into the log."""
    path = "/login" + accounts.create_login_link(owner).partition("/login")[2]
    strict = Client(enforce_csrf_checks=True)
    assert [strict.put(path).status_code, strict.post(path).status_code] == [403, 403]
    written = log.getvalue()
    assert "/login/link/assay_" in written and not TOKEN.search(written)


def test_the_answer_that_signs_in_keeps_the_link_to_itself(owner):
    path = "/login" + accounts.create_login_link(owner).partition("/login")[2]
    client = Client()
    shown = client.get(path)
    assert "no-store" in shown["Cache-Control"] and shown["Referrer-Policy"] == "strict-origin"
    assert TOKEN.search(client.post(path)["Location"]) is None


def test_what_a_log_shows_of_a_secret_is_what_lists_show():
    secret, hashed = new_token()
    assert redact(f"x{secret}y {hashed}") == f"x{secret[:12]}…y {hashed}"


def test_tracebacks_are_cut_too(log):
    secret, _ = new_token()
    try:
        raise ValueError(secret)
    except ValueError:
        logging.getLogger("assay").exception("failed")
    assert secret not in log.getvalue() and "ValueError" in log.getvalue()


def test_a_token_in_the_query_opens_nothing(secrets):
    for name in ("token", "access_token", "api_key"):
        assert Caller().send("GET", f"/me?{name}={secrets['token of the API']}").status_code == 401
