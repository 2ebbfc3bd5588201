"""Every page, full and empty, in both themes: nothing serious for axe, nothing that scrolls sideways, nothing that jumps.

WCAG 2.2 AA and axe's own good practice. Set ASSAY_SCREENSHOTS to a folder to get a picture of each page, wide and narrow, light and dark.
"""

from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.e2e.browsing import NARROW, WIDE
from tests.frontend.views import VIEWS, View

pytestmark = [pytest.mark.slow, pytest.mark.browser]

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# A theme changes colours and nothing else.
OF_COLOUR = ["color-contrast", "link-in-text-block"]
MOST_SHIFT = 0.02
OBSERVE_SHIFT = """
window.shifted = 0;
new PerformanceObserver((list) => { for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value; })
  .observe({ type: "layout-shift", buffered: true });
"""
WIDER = """() => [...document.querySelectorAll("body *")]
  .filter((element) => element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".table-wrap, .rail, .tabs, pre, .tokens, [hidden], .visually-hidden, .command, .segments"))
  .map((element) => `${element.tagName}.${element.className} to ${Math.round(element.getBoundingClientRect().right)}`).slice(0, 5)"""


def findings(page: Page, only: dict) -> list[str]:
    """Serious and critical findings of axe on the page as it stands; `only` names tags or rules."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    result = page.evaluate("only => axe.run(document, { runOnly: only, resultTypes: ['violations'] })", only)
    return [
        f"{found['impact']} {found['id']}: {node['target']} {node['html'][:160]} {node['failureSummary']}"
        for found in result["violations"]
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"]
    ]


@pytest.mark.parametrize("view", VIEWS, ids=[view.name for view in VIEWS])
def test_a_page_is_open_to_everybody(view: View, open_as, site, album):
    """axe in both themes, no sideways scrolling on a screen or a phone, no script error and nothing that the content policy blocked."""
    page = open_as(view.who)
    wrong = complaints(page)
    # A row that changes while the theme is switched fades for a second from a colour of the other theme.
    page.emulate_media(reduced_motion="reduce")
    view.show(page, site.world)
    light = findings(page, {"type": "tag", "values": TAGS})
    page.emulate_media(color_scheme="dark")
    dark = findings(page, {"type": "rule", "values": OF_COLOUR})
    assert (light, dark) == ([], [])
    album.take(page, view.name)
    for size in (WIDE, NARROW):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], page.evaluate(WIDER)
    assert wrong == []


def complaints(page: Page) -> list[str]:
    """Filled while the page lives: uncaught errors, and what the content policy refused."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: "Content Security Policy" in message.text and found.append(message.text))
    return found


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", ["runs", "run", "run-active", "episodes", "episode", "launch-sample", "compare-ten", "cluster", "bank"])
def test_a_page_stays_where_it_was_drawn(name, size, open_as, site):
    view = next(view for view in VIEWS if view.name == name)
    page = open_as(view.who)
    page.set_viewport_size(size)
    page.add_init_script(OBSERVE_SHIFT)
    view.show(page, site.world)
    assert page.evaluate("window.shifted") < MOST_SHIFT


def test_reduced_motion_stands_still(open_as, site):
    page = open_as("olga")
    page.emulate_media(reduced_motion="no-preference")
    page.goto("/runs?state=active")
    assert page.evaluate("document.getAnimations().length") > 0, "a run that lives pulses"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate("document.getAnimations().length") == 0


def test_news_are_announced_at_most_once_in_ten_seconds(open_as, site):
    page = open_as("olga")
    page.clock.install()
    page.goto("/runs")
    page.evaluate("async () => { window.announce = (await import('assay/announce.js')).announce; }")
    page.evaluate(
        "window.said = []; new MutationObserver(() => said.push(document.querySelector('[data-announce]').textContent)).observe(document.querySelector('[data-announce]'), { childList: true })"
    )
    for second in range(25):
        page.evaluate("second => announce(`news ${second}`)", second)
        page.clock.run_for(1000)
    assert page.evaluate("said.length") == 3, page.evaluate("said")
    assert page.evaluate("said")[0] == "news 0"


def test_no_region_is_live_but_the_two_that_are_meant(open_as, site):
    """What changes by itself is announced through one throttled region; toasts are answers to what somebody did."""
    page = open_as("olga")
    for path in (
        "/runs",
        "/launch?preset=sample",
        f"/runs/{site.world.runs['active']}",
        f"/runs/{site.world.runs['full']}/logs",
        "/cluster",
    ):
        page.goto(path)
        live = page.locator('[role="status"], [role="alert"], [aria-live="polite"], [aria-live="assertive"]')
        assert live.evaluate_all("found => found.map((element) => 'announce' in element.dataset || 'toasts' in element.dataset)") == [
            True,
            True,
        ]


def test_every_chart_has_its_numbers_in_a_table(open_as, site):
    page = open_as("olga")
    page.goto(f"/runs/{site.world.runs['full']}")
    page.locator("figure[data-state=drawn] [data-table]").first.click()
    table = page.locator("[data-twin] table").first
    assert table.locator("tbody tr").count() == 60
    assert table.locator("thead th").all_inner_texts()[0] == "Step"
