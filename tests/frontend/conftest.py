"""A filled database, the real web process before it, and a Chromium: no Ray, no worker."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from controlplane.env import CHECKOUT
from controlplane.services.front import http_probe
from controlplane.services.house import NotReady
from controlplane.services.ports import free_ports
from tests import system
from tests.e2e.browsing import FLAGS, WIDE, Album

PATIENCE_S = 120


@dataclass(frozen=True)
class Site:
    """Where the web process answers, and what there is to see."""

    url: str
    world: SimpleNamespace


@pytest.fixture(scope="session")
def site(services):
    """In the test server's own database, which no other test touches: they work in one beside it."""
    port = free_ports(1)[0]
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "controlplane.settings",
        "ASSAY_DEBUG": "0",
        "ASSAY_URL": f"http://127.0.0.1:{port}",
    }
    run = partial(subprocess.run, cwd=CHECKOUT, env=environment, check=True, text=True, stdout=subprocess.PIPE)
    world = json.loads(run([sys.executable, "-m", "tests.frontend.world"]).stdout)
    run([sys.executable, "manage.py", "collectstatic", "--noinput", "--verbosity", "0"])
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.frontend.web", str(port), str(os.getpid())], cwd=CHECKOUT, env={**environment, "ASSAY_DB_POOL": "4"}
    )
    try:
        _wait(http_probe(f"http://127.0.0.1:{port}/healthz"))
        yield Site(f"http://127.0.0.1:{port}", SimpleNamespace(**world))
    finally:
        process.terminate()
        process.wait(30)


def _wait(probe) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return probe()
        except NotReady:
            assert time.monotonic() < deadline, "the web process does not answer"
            time.sleep(0.1)


@pytest.fixture(scope="module")
def chromium(site):
    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=system.chromium(), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def contexts(chromium, site):
    """contexts(username or None) → that person's browser context, one for the module."""
    made = {}

    def of(username: str | None):
        if username not in made:
            context = chromium.new_context(base_url=site.url, viewport=WIDE, color_scheme="light")
            context.set_default_timeout(PATIENCE_S * 1000)
            if username:
                context.add_cookies([{"name": "sessionid", "value": site.world.sessions[username], "url": site.url}])
            made[username] = context
        return made[username]

    yield of
    for context in made.values():
        context.close()


@pytest.fixture
def open_as(contexts):
    """open_as(username or None) → a fresh page of theirs, closed after the test."""
    pages: list[Page] = []

    def open_page(username: str | None) -> Page:
        pages.append(contexts(username).new_page())
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()


@pytest.fixture(scope="module")
def album():
    return Album()
