"""A real Chromium that says what a page cost: paint, layout shift, script bytes, interactions, heap."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from playwright.sync_api import Browser, Page, sync_playwright

from tests.system import chromium, why_no_chromium

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
VIEWPORT = {"width": 1440, "height": 900}
SETTLE_MS = 500
SHORTEST_EVENT_MS = 16
"""Event Timing reports nothing shorter."""
_OBSERVE = """
window.measured = {lcp: 0, shift: 0, events: new Map()};
const observe = (type, take, more = {}) =>
  new PerformanceObserver((list) => list.getEntries().forEach(take)).observe({ type, buffered: true, ...more });
observe("largest-contentful-paint", (entry) => (window.measured.lcp = entry.startTime));
observe("layout-shift", (entry) => entry.hadRecentInput || (window.measured.shift += entry.value));
observe("event", (entry) => {
  const longest = Math.max(entry.duration, window.measured.events.get(entry.interactionId) ?? 0);
  if (entry.interactionId) window.measured.events.set(entry.interactionId, longest);
}, { durationThreshold: 16 });
"""
_READ = """
() => {
  const scripts = performance.getEntriesByType("resource").filter((entry) => new URL(entry.name).pathname.endsWith(".js"));
  const first = performance.getEntriesByName("first-contentful-paint")[0];
  return {
    first_paint_s: (first?.startTime ?? 0) / 1000, lcp_s: window.measured.lcp / 1000, layout_shift: window.measured.shift,
    script_kb: scripts.reduce((sum, entry) => sum + entry.encodedBodySize, 0) / 1000,
    events: [...window.measured.events.values()],
  };
}
"""


@dataclass
class Chromium:
    """A browser, and the session cookie that its pages carry."""

    browser: Browser
    url: str
    session: str

    @contextmanager
    def page(self, script: str = "") -> Iterator[Page]:
        """A page with an empty cache, signed in, that measures itself. Raises RuntimeError for what it complained of."""
        context = self.browser.new_context(viewport=VIEWPORT)
        complaints: list[str] = []
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        context.add_cookies([{"name": "sessionid", "value": self.session, "url": self.url}])
        context.add_init_script(_OBSERVE + script)
        try:
            yield context.new_page()
        finally:
            context.close()
        if complaints:
            raise RuntimeError("; ".join(complaints))

    def open(self, page: Page, path: str) -> dict:
        """Loads `path` and waits until it is quiet; what it cost. A page that stays live is never idle on the network: it gets its time."""
        answer = page.goto(f"{self.url}{path}", wait_until="load")
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status}")
        page.wait_for_timeout(SETTLE_MS)
        return self.cost(page)

    def cost(self, page: Page) -> dict:
        """What the page cost up to now."""
        found = page.evaluate(_READ)
        found.pop("events")
        return {name: round(value, 4) for name, value in found.items()}


@contextmanager
def chromium_at(url: str, session: str) -> Iterator[Chromium]:
    """Raises RuntimeError, naming the package, where there is no Chromium."""
    if reason := why_no_chromium():
        raise RuntimeError(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS))
        try:
            yield Chromium(browser, url, session)
        finally:
            browser.close()


def interaction_ms(page: Page, actions: list) -> dict:
    """From input to the next paint, for each action of the list. One too short to be reported counts as SHORTEST_EVENT_MS."""
    page.evaluate("window.measured.events.clear()")
    for action in actions:
        action()
        page.wait_for_timeout(150)
    reported = page.evaluate(_READ)["events"]
    durations = reported + [SHORTEST_EVENT_MS] * max(0, len(actions) - len(reported))
    p50, p95 = np.percentile(durations, [50, 95])
    return {"actions": len(actions), "p50_ms": round(float(p50), 1), "p95_ms": round(float(p95), 1)}


def footprint(page: Page) -> dict:
    """Heap in MB after a collection, and how many DOM nodes and listeners live."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    heap = session.send("Runtime.getHeapUsage")["usedSize"]
    session.send("Performance.enable")
    counters = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return {"heap_mb": round(heap / 1e6, 2), "nodes": int(counters["Nodes"]), "listeners": int(counters["JSEventListeners"])}


def watch(page: Page, seconds: float, every: float) -> list[dict]:
    """The page's footprint again and again while it stays open."""
    found, began = [], time.monotonic()
    while time.monotonic() < began + seconds:
        page.wait_for_timeout(1000 * min(every, began + seconds - time.monotonic() + 0.01))
        found.append({"at_s": round(time.monotonic() - began), **footprint(page)})
    return found
