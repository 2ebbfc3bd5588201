"""One house and one browser for the whole story; after a step that failed, the steps that build on it are not tried."""

import pytest
from playwright.sync_api import expect, sync_playwright

from tests import system
from tests.e2e.browsing import FLAGS, WIDE, Album, Watch
from tests.e2e.house import PATIENCE_S, House, served

FAILED = pytest.StashKey[str]()


def pytest_runtest_makereport(item, call):
    if call.excinfo and not call.excinfo.errisinstance(pytest.skip.Exception):
        item.parent.stash.setdefault(FAILED, item.name)


def pytest_runtest_setup(item):
    if before := item.parent.stash.get(FAILED, None):
        pytest.skip(f"builds on {before}, which failed")


@pytest.fixture(scope="module")
def house():
    with served(House) as house:
        yield house


@pytest.fixture(scope="module")
def context(house):
    """Opened after the house and closed before it, so that no page sees the house end."""
    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=system.chromium(), args=FLAGS)
        context = browser.new_context(base_url=house.url, viewport=WIDE, color_scheme="light")
        context.set_default_timeout(PATIENCE_S * 1000)
        yield context
        browser.close()


@pytest.fixture(scope="module")
def watch(context):
    return Watch(context)


@pytest.fixture(scope="module")
def page(context, watch):
    page = context.new_page()
    watch.follow(page)
    return page


@pytest.fixture(scope="module")
def album():
    return Album()
