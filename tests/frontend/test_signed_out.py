"""A tab whose person was signed out meanwhile: it says so, asks no more, and what a click asks for leads to the sign-in page."""

import pytest
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture
def page(chromium, site):
    context = chromium.new_context(base_url=site.url)
    context.set_default_timeout(60_000)
    context.add_cookies([{"name": "sessionid", "value": site.world.sessions["olga"], "url": site.url}])
    yield context.new_page()
    context.close()


def sign_out(page: Page) -> None:
    """As another tab does, or time."""
    page.context.clear_cookies()


def banner(page: Page):
    return page.locator("[data-signed-out]")


def test_the_socket_is_not_tried_for_ever(page):
    sockets = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    page.goto("/runs?q=a")
    expect(page.locator("[data-live-status]")).to_have_text("Live")
    page.clock.install()
    sign_out(page)
    page.evaluate("import('assay/live.js').then(({ live }) => live.retry())")
    expect(page.locator("[data-live-status]")).to_have_text("Signed out")
    expect(banner(page)).to_be_visible()
    expect(page.locator("[data-live-banner]")).to_be_hidden()
    assert banner(page).locator("a").get_attribute("href").endswith("/login?next=%2Fruns%3Fq%3Da")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(120_000)
    assert len(sockets) == 2 and asked == []


def test_what_the_page_asks_unasked_leaves_it_in_its_place(page):
    page.goto("/launch?preset=sample")
    expect(page.locator("#rail-verdict")).to_contain_text("Ready to launch")
    sign_out(page)
    page.locator('[name="/name"]').fill("kept")
    expect(banner(page)).to_be_visible()
    assert "Sign in to Assay" not in page.locator("#launch-rail").inner_text()
    assert page.locator('[name="/name"]').input_value() == "kept" and "/launch" in page.url


def test_a_click_leads_to_the_sign_in_page_and_back(page, site):
    page.goto("/runs?state=failed")
    sign_out(page)
    page.locator("[name=q]").press_sequentially("heat")
    page.wait_for_url("**/login?next=*")
    assert page.get_by_role("heading", name="Sign in to Assay").is_visible()
    page.context.add_cookies([{"name": "sessionid", "value": site.world.sessions["olga"], "url": site.url}])
    page.reload()
    page.wait_for_url("**/runs?state=failed*")
