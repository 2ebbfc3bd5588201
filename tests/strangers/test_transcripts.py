"""Hostile text in a real Chromium under the real policy: nothing of it runs, nothing of it deceives, and the page still answers."""

import time

import msgpack
import pytest
import zstandard
from django.conf import settings
from playwright.sync_api import sync_playwright

from controlplane import storage
from controlplane.episodes.models import Episode, Label, Turn
from controlplane.evals.models import Evaluation
from controlplane.runs.models import Run
from controlplane.telemetry.models import LogLine
from tests import system
from tests.e2e.browsing import FLAGS, WIDE, Watch
from tests.strangers.serving import serving
from tests.strangers.test_pages import signed_in

# Sets a mark that outlives the page it ran in; each entry does it another way.
RUN = "document.documentElement.dataset.owned=1;localStorage.owned=1"
CORPUS = {
    "script": f"<script>{RUN}</script>",
    "broken out": f"</pre></details></textarea></title></script><script>{RUN}</script>",
    "image": f'"><img src=x onerror="{RUN}">',
    "svg": f'<svg onload="{RUN}"><animate onbegin="{RUN}" attributeName=x dur=1s>',
    "svg script": f'<svg><script href="data:text/javascript,{RUN}"></script></svg>',
    "frame": f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe>',
    "data frame": f'<iframe src="data:text/html,<script>{RUN}</script>"></iframe>',
    "link": f'<a href="javascript:{RUN}" autofocus onfocus="{RUN}" tabindex=1>x</a> javascript:{RUN} data:text/html,<script>{RUN}</script>',
    "markdown": f"[x](javascript:{RUN}) ![x](data:image/svg+xml,<svg/onload={RUN}>)",
    "style": "<style>*{display:none}</style><div style='position:fixed;inset:0;background:url(http://127.0.0.1:9/seen)'>",
    "base": "<base href='http://127.0.0.1:9/'><meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "htmx": f'<div hx-get="/healthz" hx-trigger="load" hx-on::after-request="{RUN}">x</div>',
    "form": "<form action='http://127.0.0.1:9/'><input name=csrfmiddlewaretoken><button autofocus>Log in</button></form>",
    "template": "{{ request.user }} {% debug %} ${alert(1)} {{constructor.constructor('alert(1)')()}}",
    "ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J\x1b]8;;http://evil\x07link\x1b]8;;\x07",
    "bidi": "reward \u202e0.1 si\u202c \u2066a\u2069 \u200bzero\u200dwidth\u2060 \ufeff \u061c",
    "control": "bell\x07 null-ish\x01 back\x08space \r\rline",
    "surrogate-free emoji": "👩\u200d🔬 𝒳 \U000e0041\U000e0042 tags",
}
DECEIVING = tuple("\u202e\u202c\u2066\u2069\u200b\u200d\u2060\ufeff\u061c\x1b\x07\x08\x01\U000e0041")
LONGEST = 5_000_000
ANSWERS_WITHIN_S = 3.0
"""A click on the page with the longest line, on a busy machine too. The test prints what it took."""


@pytest.fixture
def hostile(transactional_db, world):
    """The corpus in every place where a runner, a task or a teammate may write."""
    everything = "\n".join(CORPUS.values())
    run = Run.objects.get(pk=world["run_id"])
    Run.objects.filter(pk=run.pk).update(
        name=CORPUS["image"][:60], experiment=CORPUS["svg"][:60], tags=[CORPUS["script"][:60]], reason=everything
    )
    texts = storage.put(zstandard.compress(msgpack.packb([CORPUS["script"], CORPUS["bidi"]])))
    episode = Episode.objects.get(pk=world["episode_id"])
    for name in ("grade_reason", "error"):
        setattr(episode, name, everything[: Episode._meta.get_field(name).max_length])
    episode.task, episode.token_texts = CORPUS["image"][:100], texts
    episode.evidence, episode.checks = {CORPUS["script"]: everything}, {CORPUS["image"]: CORPUS["svg"]}
    episode.save()
    Turn.objects.filter(episode=episode).delete()
    turns = [*CORPUS.values(), everything]
    Turn.objects.bulk_create(Turn(episode=episode, index=n, role="assistant", author="student", text=text) for n, text in enumerate(turns))
    Label.objects.create(episode=episode, name=CORPUS["image"][:60], comment=everything)
    LogLine.objects.bulk_create(
        LogLine(run=run, attempt=1, t=1.0, component=CORPUS["svg"][:60], level="info", message=text) for text in CORPUS.values()
    )
    Evaluation.objects.filter(pk=world["evaluation_id"]).update(label=CORPUS["image"][:40])
    return world


@pytest.fixture
def browser_page(hostile, owner, tmp_path, monkeypatch):
    """A page of a signed-in Chromium before a real server, what it complained of, and the addresses elsewhere that it asked for."""
    # Playwright's own event loop runs in this thread; the rows that a test adds meanwhile disturb nobody.
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    cookie = signed_in(owner).cookies[settings.SESSION_COOKIE_NAME].value
    with serving(tmp_path / "web.log", tmp_path) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=system.chromium(), args=FLAGS)
        context = browser.new_context(base_url=url, viewport=WIDE)
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": cookie, "url": url}])
        context.set_default_timeout(60_000)
        watch, foreign = Watch(context), []
        context.on("request", lambda request: request.url.startswith((url, "data:", "blob:")) or foreign.append(request.url))
        yield context.new_page(), watch, foreign
        browser.close()


# What markup from outside would leave behind if it became elements.
ALIVE = 'iframe, main base, main script:not([type="application/json"]), main style, main [onerror], main [onload]'
PLACES = (
    "/episodes/{episode_id}",
    "/episodes/{episode_id}/compare/{episodes/other_id}",
    "/runs/{run_id}/logs",
    "/runs/{run_id}",
    "/runs/{run_id}/episodes",
    "/runs/{run_id}/evaluation",
    "/runs",
)


@pytest.mark.browser
@pytest.mark.slow
def test_nothing_runs_and_nothing_deceives(browser_page, hostile):
    page, watch, foreign = browser_page
    for place in PLACES:
        page.goto(place.format(**hostile), wait_until="networkidle")
        if place.startswith("/episodes/{episode_id}") and "compare" not in place:
            for tab in ("tokens", "grade", "raw", "transcript"):
                page.click(f"[data-tab={tab}]")
                page.wait_for_timeout(200)
        seen = page.evaluate("document.body.innerText")
        assert page.evaluate("document.documentElement.dataset.owned || localStorage.owned || ''") == "", place
        assert page.evaluate("selector => document.querySelectorAll(selector).length", ALIVE) == 0
        assert place.format(**hostile) in page.url, "something led away"
        if "episodes/{" in place or "logs" in place:
            assert "<script>" in seen, "the text itself is to be read"
            assert [hex(ord(character)) for character in DECEIVING if character in seen] == [], place
    assert foreign == [], "something was fetched from elsewhere"
    assert not [said for said in watch.complaints if "policy violated" in said], "the policy was the last line; escaping is the first"


@pytest.mark.browser
@pytest.mark.slow
def test_a_line_of_five_megabytes_leaves_the_page_responsive(browser_page, hostile, record_property):
    page, _, _ = browser_page
    Turn.objects.filter(episode=hostile["episode_id"]).delete()
    Turn.objects.create(episode_id=hostile["episode_id"], index=0, role="assistant", author="student", text="<b>x " * (LONGEST // 5))
    began = time.monotonic()
    page.goto(f"/episodes/{hostile['episode_id']}", wait_until="domcontentloaded")
    opened = time.monotonic() - began
    began = time.monotonic()
    page.click("[data-tab=grade]")
    page.wait_for_selector("[data-pane=grade]:not([hidden])")
    clicked = time.monotonic() - began
    record_property("opened_s", round(opened, 2))
    record_property("clicked_s", round(clicked, 2))
    print(f"5 MB in one line: opened in {opened:.2f} s, a click answered in {clicked:.2f} s")
    assert clicked < ANSWERS_WITHIN_S
