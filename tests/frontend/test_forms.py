"""Forms: what is found fault with and when, what a choice asks for, and a secret that is shown once."""

import re
import time
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Page, expect

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture
def page(open_as):
    return open_as("olga")


# ---------------------------------------------------------------- launch
def problems(page: Page):
    return page.locator("#launch-fields .problem:visible, #launch-fields [aria-invalid]:visible")


def test_nothing_is_red_before_the_form_was_touched(page):
    page.goto("/launch?preset=blank")
    expect(page.locator("#rail-verdict")).to_contain_text("1 to fill in")
    expect(problems(page)).to_have_count(0)
    page.locator('[name="/seed"]').fill("3")
    expect(page.locator("#rail-verdict")).to_contain_text("1 to fill in")
    expect(problems(page)).to_have_count(0)


def test_a_default_that_the_team_cannot_use_is_told_calmly_at_first(open_as):
    """A team without banks, on the sample run: what is wrong stands in the rail, and turns red with the first change."""
    page = open_as("nora")
    page.goto("/launch")
    link = page.locator("#launch-rail [data-goto='/environment/bank'] code")
    expect(link).to_be_visible()
    expect(problems(page)).to_have_count(0)
    calm = link.evaluate("code => getComputedStyle(code).color")
    page.locator('[name="/seed"]').fill("3")
    expect(page.locator('[data-problem="/environment/bank"]')).to_contain_text("no such bank")
    assert page.locator("#launch-rail [data-goto='/environment/bank'] code").evaluate("code => getComputedStyle(code).color") != calm


def test_a_field_that_was_left_empty_says_so(page):
    page.goto("/launch?preset=blank")
    expect(page.locator("#rail-verdict")).to_contain_text("1 to fill in")
    page.locator('[name="/name"]').focus()
    page.keyboard.press("Tab")
    expect(page.locator('[data-problem="/name"]')).to_contain_text("is required")
    page.locator('[name="/name"]').fill("named")
    expect(page.locator("#rail-verdict")).to_contain_text("Ready to launch")
    expect(problems(page)).to_have_count(0)


def test_what_was_sent_empty_says_so(page):
    page.goto("/launch?preset=blank")
    page.locator("[data-launch]").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was launched: 1 field to correct")
    expect(page.locator('[data-problem="/name"]')).to_contain_text("is required")
    expect(page.locator("#rail-verdict")).to_contain_text("1 to fill in")
    expect(page.locator('[data-problem="/name"]')).to_be_visible()


def test_of_variants_chosen_in_a_hurry_the_last_one_holds(page):
    """An arrow key held down: the second choice comes before the answer to the first."""
    page.goto("/launch?preset=sample")
    select = page.locator('[name="/stages/1/type"]')
    choose = "(select, value) => { select.value = value; select.dispatchEvent(new Event('change', { bubbles: true })); }"
    select.evaluate(f"select => ['sft', 'grpo'].forEach((value) => ({choose})(select, value))")
    expect(page.locator("#launch-fields .htmx-request")).to_have_count(0)
    page.wait_for_load_state("networkidle")
    expect(select).to_have_value("grpo")
    expect(page.locator('[name="/stages/1/group_size"]')).to_have_count(1)


def test_a_stage_is_added_once_by_a_double_click(page):
    page.goto("/launch?preset=sample")
    add = page.get_by_role("button", name="Add sft stage")
    assert add.evaluate("button => (button.click(), button.click(), button.disabled)")
    expect(page.locator('[name="/stages/2/type"]')).to_have_value("sft")
    expect(add).to_be_enabled()
    expect(page.locator('[name="/stages/3/type"]')).to_have_count(0)


# ---------------------------------------------------------------- Back
def fill_in(page: Page) -> None:
    page.goto("/launch?preset=sample")
    expect(page.locator("#rail-verdict")).to_contain_text("Ready to launch")
    page.get_by_label("Advanced settings").check()
    page.locator('[name="/name"]').fill("edited")
    page.get_by_role("button", name="Add sft stage").click()
    page.locator('[name="/stages/2/steps"]').fill("7")


def expect_filled_in(page: Page) -> None:
    expect(page.locator('[name="/stages/2/steps"]')).to_have_value("7")
    expect(page.locator('[name="/name"]')).to_have_value("edited")
    expect(page.get_by_label("Advanced settings")).to_be_checked()
    expect(page.locator("[data-launch]")).to_be_enabled()


def test_back_after_launch_shows_what_was_launched_and_sends_the_same_form(page):
    """The launch itself is answered here: what a second one of the same token does is the server's and tested there."""
    sent = []

    def answer(route) -> None:
        if route.request.method != "POST":
            return route.continue_()
        sent.append(parse_qs(route.request.post_data))
        route.fulfill(status=302, headers={"Location": "/cluster"})

    page.route(re.compile(r"/launch(\?preset=sample)?$"), answer)
    fill_in(page)
    page.locator("[data-launch]").click()
    page.wait_for_url("**/cluster")
    page.go_back()
    expect_filled_in(page)
    page.locator("[data-launch]").click()
    page.wait_for_url("**/cluster")
    first, second = ({name: value for name, value in form.items() if name != "csrfmiddlewaretoken"} for form in sent)
    assert first == second and first["/name"] == ["edited"] and first["/stages/2/steps"] == ["7"] and len(first["token"][0]) == 32


def await_kept(page):
    """Until the browser's history has the edits. The page's policy forbids the eval that `wait_for_function` lives on."""
    kept = "history.state?.launch?.entries.some(([name, value]) => name === '/stages/2/steps' && value === '7')"
    deadline = time.monotonic() + 20
    while not page.evaluate(kept):
        assert time.monotonic() < deadline, "the edits were not kept"
        page.wait_for_timeout(50)


def test_a_reload_keeps_what_was_filled_in_and_a_preset_starts_anew(page):
    """Several times over: about every second time Chromium hands a page opened by a link to its own address the state it replaces."""
    for _ in range(4):
        fill_in(page)
        await_kept(page)
        page.reload()
        expect_filled_in(page)
        page.locator("a.preset[aria-current]").click()
        expect(page.locator('[name="/name"]')).not_to_have_value("edited")


def test_nothing_can_be_launched_before_the_edits_are_back(page):
    fill_in(page)
    await_kept(page)
    page.route("**/launch/fields", lambda route: route.fulfill(status=500))
    page.reload()
    expect(page.locator("[data-toasts]")).to_contain_text("could not be brought back")
    expect(page.locator("[data-launch]")).to_be_disabled()
    page.unroute("**/launch/fields")
    page.reload()
    expect_filled_in(page)


# ---------------------------------------------------------------- import
@pytest.mark.parametrize(
    ("dialog", "asked"),
    [
        ("import-bank", {"upload": ["file"], "hub": ["location"], "path": ["location"]}),
        (
            "import-repair",
            {"bundled": [], "upload": ["file", "compile"], "path": ["location", "compile"], "git": ["location", "ref", "compile"]},
        ),
    ],
)
def test_an_import_asks_only_for_what_its_source_needs(page, dialog, asked):
    page.goto("/banks")
    page.locator(f"[data-dialog='#{dialog}']").click()
    source = page.locator(f"#{dialog} [name=source]")
    assert source.locator("option").evaluate_all("options => options.map((option) => option.value)") == list(asked)
    for value, names in asked.items():
        source.select_option(value)
        shown = page.locator(f"#{dialog} [data-when] input:visible")
        assert shown.evaluate_all("inputs => inputs.map((input) => input.name)") == names
        assert page.locator(f"#{dialog} [data-when] input:enabled").count() == len(names), "what is not shown is not sent"


def test_a_second_click_on_its_way_sends_nothing(page):
    page.goto("/evaluate")
    page.locator("[name=agent]").select_option("oracle")
    refused = page.locator(".evaluate-form").first.evaluate(
        """form => {
            const refused = [];
            document.addEventListener("submit", (event) => {
                refused.push(event.defaultPrevented);
                event.preventDefault();
            });
            form.requestSubmit();
            form.requestSubmit();
            return refused;
        }"""
    )
    assert refused == [False, True]


@pytest.mark.parametrize("label", ["Regrade", "Run again"])
def test_back_after_a_costly_button_sends_the_same_form_and_a_reload_another(page, site, label):
    """What a second one of the same token does is the server's and tested there."""
    sent = []

    def answer(route) -> None:
        sent.append(parse_qs(route.request.post_data)["token"])
        route.fulfill(status=302, headers={"Location": "/cluster"})

    page.route(re.compile(r"/episodes/[^/]+/(regrade|again)$"), answer)
    page.goto(f"/episodes/{site.world.episodes['repaired']}")
    for go in (page.go_back, page.go_back, lambda: (page.go_back(), page.reload())):
        page.get_by_role("button", name=label).click()
        page.wait_for_url("**/cluster")
        go()
    page.get_by_role("button", name=label).click()
    page.wait_for_url("**/cluster")
    assert sent[0] == sent[1] == sent[2] != sent[3]


# ---------------------------------------------------------------- anchors
def test_what_is_being_typed_outlives_the_table_that_is_read_again(page):
    """The bank is being proven: its anchors are read every three seconds."""
    page.goto("/banks/repair")
    why = page.locator("#anchors [name=reason]").first
    why.press_sequentially("the verifier")
    with page.expect_response("**/banks/repair/1/anchors"):
        pass
    page.wait_for_load_state("networkidle")
    expect(why).to_have_value("the verifier")
    expect(why).to_be_focused()


def test_a_refusal_stands_in_the_part_that_was_sent(page):
    page.goto("/banks/repair")
    page.locator("#anchors [name=reason]").first.fill(" ")
    page.get_by_role("button", name="Quarantine").first.click()
    expect(page.locator("#anchors [role=alert]")).to_contain_text("say why")


# ---------------------------------------------------------------- tokens
def make_token(page: Page, name: str) -> str:
    page.goto("/settings")
    page.locator("[data-dialog='#new-token']").click()
    page.locator("#new-token [name=name]").fill(name)
    page.get_by_role("button", name="Make token").click()
    return page.locator("#fresh-token").inner_text()


def test_a_token_is_copied_and_the_way_back_shows_it_no_more(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    secret = make_token(page, "copied once")
    assert secret.startswith("assay_") and page.url.endswith("/settings")
    page.locator("[data-copy-from='#fresh-token']").click()
    expect(page.locator("[data-toasts]")).to_contain_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == secret
    page.reload()
    expect(page.locator("#tokens-title")).to_be_visible()
    expect(page.locator("#fresh-token")).to_have_count(0)
    assert page.locator("th", has_text="copied once").count() == 1, "a reload makes no second token"
    page.goto("/settings/tokens")
    assert page.url.endswith("/settings")


def test_a_page_without_a_clipboard_copies_too(page):
    """As over plain http from another machine."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.add_init_script("window.kept = navigator.clipboard; Object.defineProperty(navigator, 'clipboard', { value: undefined });")
    secret = make_token(page, "copied without a clipboard")
    page.locator("[data-copy-from='#fresh-token']").click()
    expect(page.locator("[data-toasts]")).to_contain_text("Copied")
    assert page.evaluate("kept.readText()") == secret
