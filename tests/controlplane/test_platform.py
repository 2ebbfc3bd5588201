"""What every page and every deployment rests on: migrations that match the models, headers, health."""

import pytest
from django.core.management import call_command
from django.db import DatabaseError


@pytest.mark.django_db
def test_no_model_differs_from_its_migrations():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)  # exits non-zero on drift


@pytest.mark.django_db
def test_every_answer_forbids_inline_code_framing_and_sniffing(client):
    headers = client.get("/healthz").headers
    policy = dict(directive.strip().split(" ", 1) for directive in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'self'" and policy["object-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Frame-Options"] == "DENY" and headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"


@pytest.mark.django_db
def test_health_follows_the_database(client, monkeypatch):
    assert client.get("/healthz").json() == {"status": "ok"}

    def refuse():
        raise DatabaseError("the server closed the connection")

    monkeypatch.setattr("controlplane.health.connection.cursor", refuse)
    answer = client.get("/healthz")
    assert answer.status_code == 503 and "the server closed the connection" in answer.json()["reason"]
