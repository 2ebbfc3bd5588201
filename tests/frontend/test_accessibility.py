"""Every page, full and empty, in both themes: nothing serious for axe, nothing that scrolls sideways on a phone, nothing that jumps.

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
MOST_SHIFT = 0.02
OBSERVE_SHIFT = """
window.shifted = 0;
new PerformanceObserver((list) => { for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value; })
  .observe({ type: "layout-shift", buffered: true });
"""
WIDER = """() => [...document.querySelectorAll("body *")]
  .filter((element) => element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".table-wrap, .rail, .tabs, pre, .tokens, [hidden], .visually-hidden, .command, .segments"))
  .map((element) => `${element.tagName}.${element.className} to ${Math.round(element.getBoundingClientRect().right)}`).slice(0, 5)"""


def findings(page: Page) -> list[str]:
    """Serious and critical findings of axe on the page as it stands."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE)
    result = page.evaluate("tags => axe.run(document, { runOnly: tags, resultTypes: ['violations'] })", TAGS)
    return [
        f"{found['impact']} {found['id']}: {node['target']} {node['html'][:160]} {node['failureSummary']}"
        for found in result["violations"]
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"]
    ]


@pytest.mark.parametrize("view", VIEWS, ids=[view.name for view in VIEWS])
def test_axe_has_nothing_serious_to_say(view: View, open_as, site, album):
    page = open_as(view.who)
    view.show(page, site.world)
    found = {scheme: _in(page, scheme) for scheme in ("light", "dark")}
    album.take(page, view.name)
    assert found == {"light": [], "dark": []}


def _in(page: Page, scheme: str) -> list[str]:
    page.emulate_media(color_scheme=scheme)
    return findings(page)


@pytest.mark.parametrize("view", VIEWS, ids=[view.name for view in VIEWS])
def test_no_page_scrolls_sideways_on_a_phone(view: View, open_as, site):
    page = open_as(view.who)
    page.set_viewport_size(NARROW)
    view.show(page, site.world)
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"], page.evaluate(WIDER)


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("name", ["runs", "run", "run-active", "episodes", "episode", "launch-sample", "compare-ten", "cluster", "bank"])
def test_a_page_stays_where_it_was_drawn(name, size, open_as, site):
    view = next(view for view in VIEWS if view.name == name)
    page = open_as(view.who)
    page.set_viewport_size(size)
    page.add_init_script(OBSERVE_SHIFT)
    view.show(page, site.world)
    assert page.evaluate("window.shifted") < MOST_SHIFT
