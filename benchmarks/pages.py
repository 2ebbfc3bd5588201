"""Every page against its budget, in a real Chromium, over the filled database: paint, layout shift, script bytes, interactions, memory.

The runs list stands at 10,000 runs, the charts at 2,000 metrics and 100,000 steps, the browser of episodes at 125,000 of one run, the
transcript at 2,000 turns. A page is then watched while its run reports, and nothing of it may grow.
"""

import contextlib
import multiprocessing
from collections.abc import Iterator

from playwright.sync_api import Page

from benchmarks.browser import Chromium, chromium_at, footprint, interaction_ms, watch
from benchmarks.fill import LONG_SERIES, Filled, Sizes, fill_embedded
from benchmarks.ingest import make_attempt
from benchmarks.query import get, timed
from benchmarks.record import medians, publish, record
from benchmarks.server import Server, serving

REPETITIONS, CALLS, WATCH_S, WATCH_EVERY_S, WARM_S = 5, 10, 300.0, 20.0, 40.0
BUDGETS = {"lcp_s": 1.0, "layout_shift": 0.02, "list_script_kb": 60, "chart_script_kb": 400, "interaction_p95_ms": 100, "heap_mb": 150}
CHARTS = ("overview", "compare")
MOST_LIVE_CHARTS = 12
_DRAWN = """
() => {
  const found = { in_sight: 0, ahead: 0, far: 0 };
  for (const plot of document.querySelectorAll("figure .plot-container")) {
    const { top, bottom, height } = plot.closest("figure").getBoundingClientRect();
    const seen = (Math.min(bottom, innerHeight) - Math.max(top, 0)) / height;
    const away = Math.max(0, top - innerHeight, -bottom);
    found[seen >= 0.25 ? "in_sight" : away <= innerHeight ? "ahead" : "far"] += 1;
  }
  return found;
}
"""


def main() -> None:
    publish(measure())


def measure(sizes: Sizes = Sizes(), repetitions: int = REPETITIONS, calls: int = CALLS, watch_s: float = WATCH_S) -> dict:
    """`ours` is the slowest median LCP of all pages; `over` lists what exceeds its budget."""
    with serving() as server:
        # Playwright's loop runs in this thread: all that asks the database comes before it.
        filled, attempt, browser = fill_embedded(sizes), make_attempt("watched"), server.browser()
        with chromium_at(server.url, server.session()) as chromium:
            served = {name: timed(lambda path=path: get(browser, path, None), calls) for name, path in paths(filled).items()}
            opened = {name: open_repeatedly(chromium, path, name in CHARTS, repetitions) for name, path in paths(filled).items()}
            used = {"list": use_list(chromium), "charts": use_charts(chromium, filled)}
            live = live_charts(chromium, filled)
            watched = watch_live(server, attempt, chromium, watch_s)
    over = exceeded(opened, used, live, watched)
    settings = {
        **vars(sizes),
        "repetitions": repetitions,
        "budgets": BUDGETS,
        "watched_s": watch_s,
        "browser": "headless Chromium, software rendering, empty cache",
    }
    also = {
        "over": over,
        "opened": opened,
        "served": served,
        "used": used,
        "live_charts": live,
        "watched": watched,
        "fill_s": filled.seconds,
    }
    return record("pages", max(page["lcp_s"] for page in opened.values()), None, "s, LCP of the slowest page", settings, also)


def paths(filled: Filled) -> dict[str, str]:
    run, many = f"/runs/{filled.large}", f"/runs/{filled.episodes_run}"
    return {
        "list": "/runs",
        "overview": run,
        "logs": f"{run}/logs",
        "config": f"{run}/config",
        "checkpoints": f"{run}/checkpoints",
        "evaluation": f"{many}/evaluation",
        "audit": f"{run}/audit",
        "episodes": f"{many}/episodes",
        "episodes, searched": f"{many}/episodes?search=biology",
        "transcript": f"/episodes/{filled.transcript}",
        "compare": f"/compare?metric=critic/score/mean&runs={','.join(map(str, filled.compared))}",
        "launch": "/launch",
        "banks": "/banks",
        "cluster": "/cluster",
        "settings": "/settings",
    }


def open_repeatedly(chromium: Chromium, path: str, drawn: bool, repetitions: int) -> dict:
    """`drawn`: the page counts as open once a chart is there."""
    return medians([_opened(chromium, path, drawn) for _ in range(repetitions)])


def _opened(chromium: Chromium, path: str, drawn: bool) -> dict:
    with chromium.page() as page:
        found = chromium.open(page, path)
        if not drawn:
            return found
        page.wait_for_selector('figure[data-state="drawn"]')  # the charts' library comes after the page
        return chromium.cost(page)


# ---------------------------------------------------------------- use
def use_list(chromium: Chromium) -> dict:
    """Down and up the rows, picking some."""
    with chromium.page() as page:
        chromium.open(page, "/runs")
        return interaction_ms(page, [lambda key=key: page.keyboard.press(key) for key in "jjjjxjjxjjkkxjjjkkjj"])


def use_charts(chromium: Chromium, filled: Filled) -> dict:
    """Lines off and on, another axis, smoothing."""
    with chromium.page() as page:
        chromium.open(page, f"/runs/{filled.large}")
        page.wait_for_selector('figure[data-state="drawn"]')
        lines = page.locator("[data-line]")
        actions = [lambda index=index: lines.nth(index % 4).click() for index in range(8)]
        actions += [lambda axis=axis: page.click(f'[data-axis="{axis}"]') for axis in ("tokens", "step") * 3]
        actions += [lambda key=key: page.locator("[data-smoothing]").press(key) for key in ("ArrowRight",) * 6]
        return interaction_ms(page, actions)


def live_charts(chromium: Chromium, filled: Filled) -> dict:
    """Of the figures that the page holds after a search: at the top, in the middle and at the end, which are drawn."""
    with chromium.page() as page:
        chromium.open(page, f"/runs/{filled.large}")
        page.fill("#metric-search", "group1")
        page.locator("#metrics figure").nth(50).wait_for(state="attached")
        return {"figures": page.locator("figure[data-lines]").count(), "places": [drawn_at(page, share) for share in (0, 0.5, 1)]}


def drawn_at(page: Page, share: float) -> dict:
    """Charts in sight by a quarter, which are live; those drawn ahead within a viewport; those drawn farther away, of which there may be none."""
    page.evaluate("(share) => scrollTo(0, share * document.documentElement.scrollHeight)", share)
    page.wait_for_timeout(2500)
    return page.evaluate(_DRAWN)


# ---------------------------------------------------------------- watching
def watch_live(server: Server, attempt, chromium: Chromium, seconds: float) -> dict:
    """The overview of a run that reports four steps a second, and the list beside it; the first footprints are after WARM_S."""
    with reporting(server, attempt) as run, chromium.page() as page:
        chromium.open(page, f"/runs/{run}")
        page.wait_for_selector('figure[data-state="drawn"]', timeout=30_000)
        with chromium.page() as other:
            chromium.open(other, "/runs")
            page.wait_for_timeout(1000 * min(WARM_S, seconds / 4))
            early, early_list = footprint(page), footprint(other)
            rows = watch(page, seconds, WATCH_EVERY_S)
            return {"charts": growth(early, rows), "list": growth(early_list, [footprint(other)])}


def growth(early: dict, rows: list[dict]) -> dict:
    """Beginning, end, and the slope of the heap over the second half: what leaks goes on growing, what is full does not."""
    late = rows[len(rows) // 2 :]
    span = late[-1].get("at_s", 0) - late[0].get("at_s", 0)
    slope = (late[-1]["heap_mb"] - late[0]["heap_mb"]) / span * 3600 if span else None
    return {"early": early, "late": rows[-1], "heap_mb_an_hour": slope and round(slope, 1)}


@contextlib.contextmanager
def reporting(server: Server, attempt) -> Iterator[str]:
    """The attempt's run; its emitter, in a process of its own, reports the dashboard's metrics until the context ends."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_report, args=(server.url, attempt.pk, attempt.token), daemon=True)
    process.start()
    try:
        yield str(attempt.run_id)
    finally:
        process.terminate()
        process.join()


def _report(url: str, attempt: int, token: str) -> None:
    from benchmarks.live import emit

    emit(url, attempt, token, LONG_SERIES, 10**9)


# ---------------------------------------------------------------- budgets
def exceeded(opened: dict, used: dict, live: dict, watched: dict) -> list[str]:
    """Every figure over its budget, in words."""
    found = [
        f"{name}: {what} {page[what]}" for name, page in opened.items() for what in ("lcp_s", "layout_shift") if page[what] > BUDGETS[what]
    ]
    for name, page in opened.items():
        most = BUDGETS["chart_script_kb" if name in CHARTS else "list_script_kb"]
        if page["script_kb"] > most:
            found.append(f"{name}: {page['script_kb']} KB of scripts, at most {most}")
    found += [f"{name}: interaction p95 {one['p95_ms']} ms" for name, one in used.items() if one["p95_ms"] > BUDGETS["interaction_p95_ms"]]
    found += [f"{place['in_sight']} charts live at once" for place in live["places"] if place["in_sight"] > MOST_LIVE_CHARTS]
    found += [f"{place['far']} charts kept out of sight" for place in live["places"] if place["far"]]
    return found + [
        f"{name}: heap {one['late']['heap_mb']} MB" for name, one in watched.items() if one["late"]["heap_mb"] > BUDGETS["heap_mb"]
    ]


if __name__ == "__main__":
    main()
