"""The command line against the real API, in this process: its HTTP goes straight into Django."""

import logging

import httpx
import pytest
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections

from controlplane.accounts import services as accounts
from controlplane.cli import commands, main
from controlplane.cli.client import Client

URL = "http://127.0.0.1:8000"


@pytest.fixture
def assay(team, owner, fresh_buckets, monkeypatch, capsys):
    """assay("runs", "--json") → (exit code, stdout, stderr) as Olga, with a token that may do everything."""
    secret, _ = accounts.create_token(owner, team, "cli", ["read", "submit", "admin"])
    # As Django's own test client does: a request must not close the connection that holds this test's transaction.
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    transport = httpx.WSGITransport(get_wsgi_application())
    monkeypatch.setattr(commands, "connect", lambda: Client(URL, secret, transport))
    monkeypatch.setattr(commands, "POLL_S", 0.01)

    def run(*argv):
        code = main(list(argv))
        out, err = capsys.readouterr()
        return code, out, err

    # The server's log lines would otherwise stand among the client's: both are this process.
    logging.disable(logging.CRITICAL)
    yield run
    logging.disable(logging.NOTSET)
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)
