"""One person's afternoon with Assay, in a real browser on a real house: each test is the next step of one story.

Nothing is stood in for: Postgres, broker, web, workers, Ray, a driver, a learner and rollout workers run, and Chromium looks at them.
"""

import json
import re
import signal
from types import SimpleNamespace

import pytest
from playwright.sync_api import Locator, Page, expect

from controlplane.services import processes
from tests.e2e.browsing import until

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.ray]

SFT_STEPS, GRPO_STEPS, GROUP, HELD_OUT = 20, 50, 8, 24
# A warm start that teaches nothing but to answer with a letter, so that some of a group's guesses are right; then steps that last long
# enough for somebody to read an episode and press Stop.
SMALL = {
    "/stages/0/steps": SFT_STEPS,
    "/stages/0/batch_size": 48,
    "/stages/0/kinds": "format",
    "/stages/0/optimizer/warmup_steps": 2,
    "/stages/0/optimizer/learning_rate": 0.005,
    "/stages/1/steps": GRPO_STEPS,
    "/stages/1/batch_size": 192,
    "/stages/1/optimizer/warmup_steps": 1,
    "/evaluation/limit": HELD_OUT,
    "/checkpoints/every_steps": 2,
}
CHANGED, CLONE_STEPS = "/stages/1/steps", 8
NOTICED_S = 60


@pytest.fixture(scope="module")
def story():
    """What later steps need of earlier ones: run, clone (ids)."""
    return SimpleNamespace(run=None, clone=None)


def field(page: Page, pointer: str) -> Locator:
    return page.locator(f'#launch-fields [name="{pointer}"]')


def problem(page: Page, pointer: str) -> Locator:
    return page.locator(f'#launch-fields [data-problem="{pointer}"]')


def launch(page: Page) -> str:
    """Presses the button once the rail has nothing against it; returns the id of the run it leads to."""
    expect(page.locator("#rail-verdict")).to_contain_text("Ready to launch")
    page.get_by_role("button", name="Launch", exact=True).click()
    page.wait_for_url(re.compile(r"/runs/[0-9a-f-]{36}$"))
    return page.url.rpartition("/")[2]


def open_tab(page: Page, run: str, tab: str) -> None:
    if f"/runs/{run}" not in page.url:
        page.goto(f"/runs/{run}")
    page.get_by_role("navigation", name="Run").get_by_role("link", name=re.compile(f"^{tab}")).click()


def shown_step(page: Page) -> int:
    return int(re.sub(r"\D", "", page.locator('[data-live="step"]').inner_text()))


def in_state(page: Page, state: str) -> None:
    expect(page.locator(".run-head")).to_have_attribute("data-state", state)


def fact(page: Page, name: str) -> Locator:
    return page.locator(".run-facts > div", has=page.locator("dt", has_text=name)).locator("dd")


# ---------------------------------------------------------------- the story
def test_a_link_signs_in_once_and_leads_to_an_empty_list(house, page, album):
    page.goto(house.login)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()
    album.take(page, "runs-empty")
    assert page.request.get(house.login).status == 410


def test_the_form_says_what_is_wrong_and_what_it_costs_before_anything_is_queued(house, page, story, album):
    page.goto("/launch")
    page.locator('a.preset[href="?preset=sample"]').click()
    page.get_by_label("Advanced settings").check()
    for pointer, value in SMALL.items():
        field(page, pointer).fill(str(value))
    field(page, "/stages/1/group_size").fill("7")
    expect(problem(page, "/stages/1/group_size")).to_contain_text("batch_size 192 is not a multiple of group_size 7; try batch_size 189")
    expect(field(page, "/stages/1/group_size")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#rail-verdict")).to_contain_text("1 to correct")
    album.take(page, "launch-refused")
    field(page, "/stages/1/group_size").fill(str(GROUP))
    expect(problem(page, "/stages/1/group_size")).to_be_hidden()
    rail = page.locator("#launch-rail")
    expect(rail).to_contain_text("What it costs")
    expect(rail).to_contain_text(f"{SFT_STEPS + GRPO_STEPS} steps")
    album.take(page, "launch-ready")
    assert json.loads(house.rest("/runs", house.token()))["items"] == []
    story.run = launch(page)


def test_the_run_page_fills_itself_through_the_socket(page, watch, story, album):
    page.evaluate("window.sameDocument = true")
    in_state(page, "active")
    warm_start = page.locator("figure[data-lines*='sft/loss']")
    expect(warm_start).to_have_attribute("data-state", "drawn")
    until(page, lambda: drawn_points(warm_start) >= 2, "two points of the warm start are drawn")
    assert watch.live_points(story.run)["sft/loss"], "they came through the socket"
    until(page, lambda: shown_step(page) > SFT_STEPS, "reinforcement learning begins")
    steps = watch.live_steps(story.run)
    assert steps == sorted(steps) and len(set(steps)) > 2, "the step rose frame by frame"
    assert page.evaluate("window.sameDocument"), "nobody reloaded the page"
    album.take(page, "run-live")


def drawn_points(figure: Locator) -> int:
    """Points of the longest line that the chart shows."""
    return figure.locator("[data-plot]").evaluate("plot => Math.max(0, ...(plot.data ?? []).map((line) => line.x?.length ?? 0))")


def test_a_failed_episode_is_read_down_to_its_tokens(page, story, album):
    open_tab(page, story.run, "Episodes")
    page.get_by_role("link", name="Failed", exact=True).click()
    expect(page.get_by_role("link", name="Failed", exact=True)).to_have_attribute("aria-current", "true")
    page.locator("#facet-purpose summary").click()
    page.locator("#facet-purpose input[value=train]").check()
    page.wait_for_url(re.compile(r"failed=true.*purpose=train|purpose=train.*failed=true"))
    rows = page.locator("#episode-results tbody tr")
    learned = rows.filter(has=page.locator("td", has_text=re.compile(r"^\s*\d+ tokens?")))
    until(page, lambda: learned.count() or page.reload() and 0, "a failed episode was learned from")
    assert set(rows.locator("td:nth-child(6)").all_inner_texts()) <= {"0.00", "missing"}
    album.take(page, "episodes")

    learned.first.locator("a[data-open]").click()
    turns = page.locator("#turns .turn")
    expect(turns.and_(page.locator(".user"))).to_have_count(1)
    expect(turns.and_(page.locator(".assistant"))).to_have_count(1)
    expect(page.get_by_role("heading", name=f"Group of {GROUP}")).to_be_visible()
    expect(page.locator(".episode-side tbody tr")).to_have_count(GROUP)
    expect(page.locator(".episode-side tbody tr[aria-current]")).to_have_count(1)
    album.take(page, "episode-transcript")
    read_tokens(page)
    album.take(page, "episode-tokens")


def read_tokens(page: Page) -> None:
    """The token view: text, author, mask and channels of a token that was learned from, and of one that was not."""
    page.get_by_role("tab", name="Tokens").click()
    tokens, detail = page.locator("[data-tokens] .token"), page.locator("[data-token-detail]")
    learned, prompt = tokens.and_(page.locator(".in-loss")), tokens.and_(page.locator(":not(.in-loss)"))
    learned.first.hover()
    expect(detail).to_contain_text(re.compile(r"· student · in the loss · logprob -?\d.*learner logprob -?\d.*advantage -\d"))
    assert learned.first.evaluate("token => token.style.background") not in ("", "none")
    prompt.first.hover()
    expect(detail).to_contain_text(re.compile(r"· (environment|template) · not in the loss"))
    expect(page.locator(".token-bar .author:visible")).not_to_have_count(0)
    page.get_by_label("Colour by").select_option("Advantage")
    expect(page.locator(".token-bar .scale")).to_have_class(re.compile("diverging"))


def test_stopped_from_its_page_it_leaves_a_complete_checkpoint(page, story, album):
    page.goto(f"/runs/{story.run}")
    page.get_by_role("button", name="Stop", exact=True).click()
    page.get_by_role("button", name="Stop run").click()
    in_state(page, "stopped")
    story.stopped_at = shown_step(page)
    assert SFT_STEPS < story.stopped_at < SFT_STEPS + GRPO_STEPS
    open_tab(page, story.run, "Checkpoints")
    newest = page.locator("tbody tr", has=page.locator("th", has_text=re.compile(rf"^\s*{story.stopped_at}\s*$")))
    expect(newest).to_contain_text("Complete")


def test_resumed_it_goes_on_where_it_stopped_and_succeeds(house, page, story, album):
    page.goto(f"/runs/{story.run}")
    page.get_by_role("button", name="Resume").click()
    in_state(page, "succeeded")
    expect(fact(page, "Attempt")).to_contain_text("2")
    assert shown_step(page) == SFT_STEPS + GRPO_STEPS
    second = house.run(story.run)["attempts"][1]
    assert (second["number"], second["first_step"], second["points_conflicting"]) == (2, story.stopped_at + 1, 0)
    album.take(page, "run-finished")


def test_results_stand_beside_the_untrained_ones(page, story, album):
    open_tab(page, story.run, "Evaluation")
    for label in ("Before stage 0", "After stage 1"):
        row = page.locator("tbody tr", has=page.get_by_role("rowheader", name=label))
        assert row.first.locator("td:nth-child(5), td:nth-child(8)").all_inner_texts() == [str(HELD_OUT)] * 2
    album.take(page, "evaluation")
    open_tab(page, story.run, "Checkpoints")
    last = page.locator("tbody tr", has=page.locator("th", has_text=re.compile(rf"^\s*{SFT_STEPS + GRPO_STEPS}\s*$")))
    expect(last).to_contain_text("Complete")
    album.take(page, "checkpoints")


def test_a_clone_differs_in_the_one_field_that_was_changed(page, story, album):
    page.goto(f"/runs/{story.run}")
    page.get_by_role("link", name="Clone").click()
    field(page, CHANGED).fill(str(CLONE_STEPS))
    changes = page.locator("#launch-rail .changes li")
    expect(changes).to_have_count(1)
    expect(changes).to_contain_text(re.compile(rf"{CHANGED}\s*{GRPO_STEPS}\s*→\s*{CLONE_STEPS}"))
    album.take(page, "clone")
    story.clone = launch(page)
    open_tab(page, story.clone, "Config")
    difference = page.locator("[aria-labelledby=diff-title] tbody tr")
    expect(difference).to_have_count(1)
    assert difference.locator("th, td").all_inner_texts() == [CHANGED, str(GRPO_STEPS), str(CLONE_STEPS)]
    album.take(page, "config")


def test_a_killed_driver_is_noticed_and_the_run_goes_on_from_its_checkpoint(house, page, story):
    page.goto(f"/runs/{story.clone}")
    in_state(page, "active")
    until(page, lambda: complete_steps(house, story.clone), "a checkpoint is complete")
    (driver,) = house.drivers()
    processes.send(driver, signal.SIGKILL)
    until(page, lambda: house.run(story.clone)["attempts"][0]["state"] == "lost", "the loss is noticed", NOTICED_S)
    in_state(page, "succeeded")
    expect(fact(page, "Attempt")).to_contain_text("2")
    lost, second = house.run(story.clone)["attempts"]
    assert second["resumed_from"] and second["first_step"] > 0
    assert lost["exit_record"] is None and second["exit_record"]["outcome"] == "succeeded"


def complete_steps(house, run: str) -> list[int]:
    checkpoints = json.loads(house.rest(f"/runs/{run}/checkpoints", house.token()))
    return [one["step"] for one in checkpoints["items"] if one["state"] == "complete"]


def test_the_same_document_by_rest_and_by_command_line_is_the_same_run(house, page, story, tmp_path, album):
    token = make_token(page)
    album.take(page, "settings")
    form = json.loads(house.rest(f"/runs/{story.run}", token))
    twin = json.loads(house.rest("/runs", token, form["document"]))
    assert (twin["name"], twin["config_hash"]) == (form["name"], form["config_hash"])
    assert house.rest(f"/runs/{twin['id']}/config", token) == house.rest(f"/runs/{story.run}/config", token)
    house.rest(f"/runs/{twin['id']}/stop", token, {})

    file = tmp_path / "run.toml"
    file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in form["document"].items()))
    checked = house.cli("launch", str(file), "--check")
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.splitlines()[0] == f"config {form['config_hash']}"


def make_token(page: Page) -> str:
    """A token from the settings page, which shows it once."""
    page.goto("/settings")
    page.get_by_role("button", name="New token").click()
    dialog = page.locator("#new-token")
    dialog.get_by_label("Name").fill("journey")
    dialog.locator("[name=scopes][value=submit]").check()
    dialog.get_by_role("button", name="Make token").click()
    return page.locator("#fresh-token").inner_text()


def toml(value) -> str:
    """A JSON value as TOML; a run document of the form holds no null."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(below)}" for key, below in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def test_every_other_page_opens(page, story, album):
    open_tab(page, story.clone, "Logs")
    expect(page.locator("#lines .line").first).to_be_visible()
    album.take(page, "logs")
    open_tab(page, story.clone, "Audit")
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
    album.take(page, "audit")
    for path, name in (("/runs", "runs"), (f"/compare?runs={story.run},{story.clone}", "compare"), ("/banks", "banks"), ("/banks/quiz", "bank"), ("/cluster", "cluster")):
        page.goto(path)
        page.wait_for_load_state("networkidle")
        album.take(page, name)
    expect(page.get_by_role("main")).to_contain_text("CPU")


def test_no_page_complained(watch):
    assert watch.complaints == []
    assert len(watch.visited) > 20
