"""Without a mouse: from the launch form to the tokens of a failed episode, and every shortcut on the way."""

import re

import pytest
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture
def page(open_as):
    """A page whose mouse does not work: whatever only answers to it fails here."""
    page = open_as("olga")
    for name in ("click", "dblclick", "down"):
        setattr(page.mouse, name, None)
    return page


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def focused(page: Page, selector: str) -> bool:
    return page.evaluate("selector => Boolean(document.activeElement?.matches(selector))", selector)


def tab_to(page: Page, selector: str, most: int = 400) -> None:
    """Tab until `selector` has the focus, as a person would."""
    for _ in range(most):
        if focused(page, selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} was not reached with {most} tabs")


def test_from_the_form_to_a_run(page):
    page.goto("/runs")
    press(page, "g", "l")
    page.wait_for_url(re.compile("/launch"))
    tab_to(page, 'a.preset[href="?preset=sample"]')
    press(page, "Enter")
    page.wait_for_url(re.compile("preset=sample"))
    tab_to(page, '[name="/name"]')
    press(page, "Control+a")
    page.keyboard.type("launched without a mouse")
    tab_to(page, '[name="/stages/1/group_size"]')
    press(page, "Control+a")
    page.keyboard.type("7")
    expect(page.locator("#rail-verdict")).to_contain_text("1 to correct")
    expect(page.locator('[data-problem="/stages/1/group_size"]')).to_be_visible()
    press(page, "Control+a")
    page.keyboard.type("8")
    expect(page.locator("#rail-verdict")).to_contain_text("Ready to launch")
    tab_to(page, "[data-launch]")
    press(page, "Enter")
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}$"))
    expect(page.get_by_role("heading", name="launched without a mouse")).to_be_visible()


def test_from_the_list_to_the_tokens_of_a_failed_episode(page, site):
    page.goto("/runs")
    press(page, "/")
    page.keyboard.type("GRPO on the quiz with a warm")
    page.wait_for_url(re.compile(r"q=GRPO.on.the.quiz.with.a.warm(&|$)|q=GRPO%20on%20the%20quiz%20with%20a%20warm(&|$)"))
    expect(page.locator("tr[data-run]")).to_have_count(1)
    expect(page.locator(".htmx-request, .htmx-swapping, .htmx-settling")).to_have_count(0)
    press(page, "Escape", "j")
    expect(page.locator("tr.current a[data-open]")).to_be_focused()
    press(page, "Enter")
    page.wait_for_url(re.compile(site.world.runs["full"]))
    press(page, "g", "e")
    page.wait_for_url(re.compile("/episodes"))
    tab_to(page, "nav.quick a[href='?failed=true']")
    press(page, "Enter")
    page.wait_for_url(re.compile("failed=true"))
    press(page, "j", "j", "Enter")
    page.wait_for_url(re.compile(r"/episodes/[0-9a-f-]{36}"))
    press(page, "t")
    expect(page.locator("[data-tokens] .token").first).to_be_visible()
    expect(page.locator("[data-tokens]")).to_be_focused()
    press(page, "ArrowRight", "ArrowRight")
    expect(page.locator("[data-token-detail]")).to_contain_text(re.compile(r"^1: .*not in the loss"))
    press(page, "End")
    expect(page.locator("[data-token-detail]")).to_contain_text("· in the loss · logprob")


def test_an_address_leads_to_a_turn_that_comes_after_the_first(page, site):
    page.goto(f"/episodes/{site.world.episodes['long']}#turn-100")
    expect(page.locator("#turn-100")).to_be_in_viewport()
    assert page.locator("#turn-100").evaluate("turn => turn.matches(':target')")
    expect(page.locator("#turns > .turn")).to_have_count(121)


def test_the_turns_of_a_transcript(page, site):
    page.goto(f"/episodes/{site.world.episodes['long']}")
    press(page, "n", "n", "n")
    expect(page.locator("#turn-2")).to_be_focused()
    press(page, "p")
    expect(page.locator("#turn-1")).to_be_focused()
    assert page.url.endswith("#turn-1"), "copied, the address leads to the same turn"
    folded = page.locator("#turns details")
    expect(folded.first).not_to_have_attribute("open", "")
    press(page, "e")
    expect(folded.first).to_have_attribute("open", "")
    press(page, "e")
    expect(folded.first).not_to_have_attribute("open", "")


def test_an_episode_is_pinned_and_compared_with_the_next(page, site):
    first, other = site.world.episodes["failed"], site.world.episodes["sibling"]
    page.goto(f"/episodes/{first}")
    press(page, "d")
    expect(page.locator("[data-pin]")).to_have_attribute("aria-pressed", "true")
    page.goto(f"/episodes/{other}")
    expect(page.locator("[data-pinned-diff]")).to_be_visible()
    press(page, "d")
    page.wait_for_url(re.compile(f"/episodes/{first}/compare/{other}"))
    page.goto(f"/episodes/{first}")
    press(page, "d")
    expect(page.locator("[data-pin]")).to_have_attribute("aria-pressed", "false")


def test_neighbours_and_the_way_up(page, site):
    page.goto(f"/episodes/{site.world.episodes['failed']}?failed=true")
    here = page.url
    press(page, "]")
    page.wait_for_url(lambda url: url != here and "failed=true" in url)
    press(page, "[")
    page.wait_for_url(here)
    press(page, "Escape")
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]+/episodes\?failed=true"))


def test_runs_are_picked_and_compared(page):
    page.goto("/runs?experiment=group+size")
    press(page, "j", "j", "x", "j", "x")
    expect(page.locator("[data-bulk-count]")).to_have_text("2 picked")
    press(page, "c")
    page.wait_for_url(re.compile(r"/compare\?runs="))
    expect(page.get_by_role("heading", name="2 runs")).to_be_visible()


def test_enter_belongs_to_what_has_the_focus(page):
    """A row that was walked over before must not take the Enter that is meant for a button."""
    page.goto("/runs")
    press(page, "j")
    tab_to(page, "summary[title='Theme and account']", most=5) if focused(page, "summary") else page.locator("[data-keys-open]").focus()
    press(page, "Enter")
    expect(page.locator("#keys")).to_be_visible()
    assert page.url.endswith("/runs")


@pytest.mark.parametrize(
    ("keys", "path"),
    [("g r", "/runs"), ("g l", "/launch"), ("g m", "/compare"), ("g t", "/banks"), ("g n", "/cluster"), ("g s", "/settings")],
)
def test_every_section_is_two_keys_away(page, keys, path):
    page.goto("/settings" if path != "/settings" else "/runs")
    press(page, *keys.split())
    page.wait_for_url(re.compile(f"{path}$"))


@pytest.mark.parametrize(
    ("key", "tab"),
    [("1", ""), ("2", "/episodes"), ("3", "/logs"), ("4", "/config"), ("5", "/checkpoints"), ("6", "/evaluation"), ("7", "/audit")],
)
def test_every_tab_of_a_run_is_one_key_away(page, site, key, tab):
    run = f"/runs/{site.world.runs['full']}"
    page.goto(run + ("/logs" if key != "3" else ""))
    press(page, key)
    page.wait_for_url(re.compile(f"{run}{tab}$"))


def test_the_sheet_names_every_shortcut_of_the_page_and_closes(page, site):
    page.goto(f"/episodes/{site.world.episodes['long']}")
    press(page, "?")
    sheet = page.locator("#keys")
    for label in ("Next turn", "Unfold every turn", "Pin this episode", "Tokens", "Runs", "Show this sheet"):
        expect(sheet).to_contain_text(label)
    press(page, "Escape")
    expect(sheet).to_be_hidden()


def test_a_dialog_keeps_the_focus_and_gives_it_back(page, site):
    page.goto(f"/runs/{site.world.runs['active']}")
    press(page, "s")
    expect(page.locator("#stop-run")).to_be_visible()
    for _ in range(4):
        press(page, "Tab")
        assert page.evaluate("document.activeElement === document.body || Boolean(document.activeElement.closest('#stop-run'))")
    press(page, "Escape")
    expect(page.locator("#stop-run")).to_be_hidden()


@pytest.mark.parametrize("path", ["/runs", "/launch?preset=sample", "/cluster", "/settings", "/banks"])
def test_whatever_has_the_focus_shows_it(page, path):
    page.goto(path)
    seen = 0
    for _ in range(25):
        press(page, "Tab")
        shown = page.evaluate(
            """() => { const style = getComputedStyle(document.activeElement), own = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
            const label = document.activeElement.closest("label"), around = label && getComputedStyle(label).outlineStyle !== "none";
            return document.activeElement === document.body ? null : own || around ? "" : document.activeElement.outerHTML.slice(0, 120); }"""
        )
        assert not shown, f"no outline: {shown}"
        seen += shown is not None
    assert seen > 15
