"""Cookies and headers: what every answer carries, whoever asked, and what only https adds."""

import os
import subprocess
import sys

import pytest
from django.contrib.staticfiles import finders
from django.test import Client

from controlplane.accounts.services import create_login_link
from controlplane.env import CHECKOUT
from tests.controlplane.callers import Caller
from tests.strangers.test_pages import signed_in

pytestmark = pytest.mark.django_db
ANSWERS = (
    "/",
    "/login",
    "/login/link/wrong",
    "/runs",
    "/nowhere",
    "/healthz",
    "/api/v1/me",
    "/api/v1/nowhere",
    "/api/v1/openapi.json",
    "/api/ingest/1/bank",
)
POLICY = {
    "default-src": {"'self'"},
    "object-src": {"'none'"},
    "base-uri": {"'none'"},
    "form-action": {"'self'"},
    "frame-ancestors": {"'none'"},
}
HTTPS = """
import django; django.setup()
from django.conf import settings
from django.test import Client
names = ("SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SESSION_COOKIE_HTTPONLY", "SESSION_COOKIE_SAMESITE", "CSRF_COOKIE_SAMESITE", "DEBUG")
print([getattr(settings, name) for name in names], settings.SECURE_HSTS_SECONDS)
"""


def directives(answer) -> dict[str, set[str]]:
    return {words[0]: set(words[1:]) for part in answer["Content-Security-Policy"].split(";") if (words := part.split())}


@pytest.mark.parametrize("path", ANSWERS)
def test_every_answer_carries_them(path, owner):
    for client in (Client(), signed_in(owner)):
        answer = client.get(path)
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["X-Frame-Options"] == "DENY"
        assert answer["Referrer-Policy"] in ("same-origin", "strict-origin")
        assert answer["Cross-Origin-Opener-Policy"] == "same-origin"
        assert answer["X-Request-ID"]
        policy = directives(answer)
        assert {name: policy[name] for name in POLICY} == POLICY
        # Neither inline code nor another host's: 'self' and the nonce of this answer.
        for kind in ("script-src", "style-src"):
            assert all(source == "'self'" or source.startswith("'nonce-") for source in policy[kind]), policy[kind]
        assert "Strict-Transport-Security" not in answer, "over http it would lock a browser out"
        assert "Access-Control-Allow-Origin" not in answer


def test_static_files_are_not_sniffed_either():
    path = finders.find("js/app.js")
    assert path
    assert Client().get("/static/js/app.js")["X-Content-Type-Options"] == "nosniff"


def test_each_answer_has_a_nonce_of_its_own(owner):
    client = signed_in(owner)
    nonces = [next(iter(directives(client.get("/runs"))["script-src"] - {"'self'"}), "none") for _ in range(2)]
    assert nonces[0] != nonces[1] or nonces == ["none", "none"]


def test_the_session_cookie_is_out_of_reach_of_scripts_and_other_sites(owner):
    answer = Client().post("/login" + create_login_link(owner).partition("/login")[2])
    cookie = answer.cookies["sessionid"]
    assert cookie["httponly"] and cookie["samesite"] == "Lax" and not cookie["secure"], "over http a secure cookie would never come back"


def test_a_request_id_of_a_stranger_is_not_written_into_the_log():
    answer = Client().get("/healthz", headers={"X-Request-ID": "a\nERROR forged"})
    assert "forged" not in answer["X-Request-ID"]


def test_another_host_is_refused():
    assert Caller().get("/login", headers={"host": "evil.example"}).status_code == 400


def test_only_https_turns_on_secure_cookies_and_hsts(tmp_path):
    """In a process of its own, as a server for a team reads its settings."""
    production = {
        "ASSAY_MODE": "production",
        "ASSAY_STORAGE": str(tmp_path),
        "SECRET_KEY": "x" * 50,
        "RAY_ADDRESS": "http://ray:8265",
        "DATABASE_URL": "postgresql://a:b@127.0.0.1:1/a",
        "REDIS_URL": "redis://127.0.0.1:1/0",
        "ASSAY_HOME": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "PATH": os.environ["PATH"],
    }
    said = {}
    for scheme in ("https", "http"):
        environment = {**production, "ASSAY_URL": f"{scheme}://assay.example.org"}
        done = subprocess.run([sys.executable, "-c", HTTPS], cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True)
        said[scheme] = done.stdout.strip()
    assert said == {
        "https": "[True, True, True, 'Lax', 'Lax', False] 31536000",
        "http": "[False, False, True, 'Lax', 'Lax', False] 0",
    }
