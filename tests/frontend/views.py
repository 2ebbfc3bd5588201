"""Every page of Assay with something in it and with nothing in it: who opens it, where, and what is done before it is looked at."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

from playwright.sync_api import Page, expect


@dataclass(frozen=True)
class View:
    """`path` is made of the world; `arrange` brings the page to the state that is meant; `status` is what the server answers."""

    name: str
    path: Callable[[SimpleNamespace], str]
    who: str | None = "olga"
    arrange: Callable[[Page], None] = lambda page: None
    status: int = 200

    def show(self, page: Page, world: SimpleNamespace) -> None:
        answer = page.goto(self.path(world))
        assert answer.status == self.status, f"{self.name}: {answer.status}"
        page.wait_for_load_state("networkidle")
        page.evaluate("document.fonts.ready")
        self.arrange(page)


def at(path: str) -> Callable[[SimpleNamespace], str]:
    """A path in which {runs[full]} and the like are looked up in the world."""
    return lambda world: path.format(**vars(world))


def drawn(page: Page) -> None:
    expect(page.locator("figure[data-state=drawn]").first).to_be_visible()
    for figure in page.locator("figure[data-lines]").all()[:2]:
        expect(figure).not_to_have_attribute("data-state", "waiting")


def press(keys: str, shown: str) -> Callable[[Page], None]:
    def arrange(page: Page) -> None:
        page.keyboard.press(keys)
        expect(page.locator(shown)).to_be_visible()

    return arrange


def click(selector: str, shown: str) -> Callable[[Page], None]:
    def arrange(page: Page) -> None:
        page.locator(selector).first.click()
        expect(page.locator(shown).first).to_be_visible()

    return arrange


def chart_table(page: Page) -> None:
    drawn(page)
    page.locator("[data-table]").first.click()
    expect(page.locator("[data-twin] td").first).to_be_visible()


def with_errors(page: Page) -> None:
    page.locator('[name="/stages/1/group_size"]').fill("7")
    page.locator('[name="/sampling/max_new_tokens"]').fill("many")
    expect(page.locator("#rail-verdict")).to_contain_text("to correct")


def cold_nodes_told(page: Page) -> None:
    page.get_by_label("Advanced settings").check()
    page.locator('[name="/environment/unproven_reason"]').fill("the verifier was checked by hand")
    expect(page.locator("#launch-rail .problems.warnings")).to_contain_text("press Warm")


def every_choice(page: Page) -> None:
    """Each variant of each union once, with everything shown."""
    page.get_by_label("Advanced settings").check()
    for kind in ("sft", "grpo"):
        page.get_by_role("button", name=f"Add {kind} stage").click()
        rebuilt(page)
    unions = page.locator('#launch-fields select[name$="/type"]')
    for name in unions.evaluate_all("selects => selects.map((select) => select.name)"):
        select = page.locator(f'select[name="{name}"]')
        chosen = select.input_value()
        for value in select.locator("option").evaluate_all("options => options.map((option) => option.value)"):
            select.select_option(value)
            rebuilt(page)
        select.select_option(chosen)
        rebuilt(page)


def rebuilt(page: Page) -> None:
    """The form was answered what was last asked of it."""
    expect(page.locator("#launch-fields .htmx-request")).to_have_count(0)


def lost(page: Page) -> None:
    """Every later socket is refused, and the one that is open is cut."""
    page.route_web_socket("**/ws/live", lambda socket: socket.close())
    page.reload()
    expect(page.locator("[data-live-banner]")).to_be_visible()


def save_view(page: Page) -> None:
    page.locator("#views summary").click()
    page.locator("[data-save-view]").click()
    expect(page.locator("#save-view")).to_be_visible()


def tokens_read(page: Page) -> None:
    page.locator("[data-tab=tokens]").click()
    expect(page.locator("[data-tokens] .token.in-loss").first).to_be_visible()


def more_fields(page: Page) -> None:
    page.locator("summary", has_text="More").click()
    page.locator('[name="agent"]').select_option("terminal")
    expect(page.locator('[name="temperature"]')).to_be_visible()


def import_from(dialog: str, source: str) -> Callable[[Page], None]:
    def arrange(page: Page) -> None:
        page.locator(f"[data-dialog='#{dialog}']").click()
        page.locator(f"#{dialog} [name=source]").select_option(source)

    return arrange


def make_token(page: Page) -> None:
    page.locator("[data-dialog='#new-token']").click()
    page.locator("#new-token [name=name]").fill("made to be seen")
    page.get_by_role("button", name="Make token").click()
    expect(page.locator("#fresh-token")).to_be_visible()


VIEWS = [
    View("sign-in", at("/login"), None),
    View("sign-in-link", at("/login/link/{fresh_link}"), None),
    View("sign-in-link-used", at("/login/link/assay_used"), None, status=410),
    View("runs", at("/runs")),
    View("runs-picked", at("/runs?selected={runs[full]},{runs[parent]}")),
    View("runs-none-match", at("/runs?q=nothing+is+called+this")),
    View("runs-folded", at("/runs?group=seed")),
    View("runs-columns", at("/runs?column=reward&column=accuracy&column=kl&column=seed&column=tags"), arrange=click("#columns summary", "#columns label")),
    View("runs-views", at("/runs"), arrange=click("#views summary", "[data-save-view]")),
    View("runs-save-view", at("/runs?state=failed"), arrange=save_view),
    View("runs-empty", at("/runs"), "nora"),
    View("runs-viewer", at("/runs"), "vera"),
    View("keys", at("/runs"), arrange=press("?", "#keys")),
    View("launch-sample", at("/launch?preset=sample")),
    View("launch-sciknoweval", at("/launch?preset=sciknoweval-smollm2")),
    View("launch-published", at("/launch?preset=sciknoweval-qwen3-8b")),
    View("launch-every-choice", at("/launch?preset=sample"), arrange=every_choice),
    View("launch-errors", at("/launch?preset=sample"), arrange=with_errors),
    View("launch-cold-nodes", at("/launch?preset=repair-menu-tiny"), arrange=cold_nodes_told),
    View("launch-blank", at("/launch?preset=blank")),
    View("launch-no-bank", at("/launch"), "nora"),
    View("launch-clone", at("/launch?clone={runs[full]}")),
    View("launch-text", at("/launch?preset=sample"), arrange=click("[data-door=yaml]", "#launch-code")),
    View("run", at("/runs/{runs[full]}"), arrange=drawn),
    View("run-table", at("/runs/{runs[full]}"), arrange=chart_table),
    View("run-active", at("/runs/{runs[active]}"), arrange=drawn),
    View("run-stop", at("/runs/{runs[active]}"), arrange=click("[data-dialog='#stop-run']", "#stop-run")),
    View("run-failed", at("/runs/{runs[failed]}")),
    View("run-queued", at("/runs/{runs[queued]}")),
    View("run-bare", at("/runs/{runs[bare]}")),
    View("run-lost-connection", at("/runs/{runs[active]}"), arrange=lost),
    View("episodes", at("/runs/{runs[full]}/episodes")),
    View("episodes-failed", at("/runs/{runs[full]}/episodes?failed=true")),
    View("episodes-empty", at("/runs/{runs[bare]}/episodes")),
    View("logs", at("/runs/{runs[full]}/logs")),
    View("logs-empty", at("/runs/{runs[bare]}/logs")),
    View("config", at("/runs/{runs[full]}/config")),
    View("checkpoints", at("/runs/{runs[full]}/checkpoints")),
    View("checkpoints-empty", at("/runs/{runs[bare]}/checkpoints")),
    View("evaluation", at("/runs/{runs[full]}/evaluation")),
    View("evaluation-empty", at("/runs/{runs[bare]}/evaluation")),
    View("audit", at("/runs/{runs[full]}/audit")),
    View("audit-short", at("/runs/{runs[bare]}/audit")),
    View("episode", at("/episodes/{episodes[failed]}")),
    View("episode-long", at("/episodes/{episodes[long]}")),
    View("episode-tokens", at("/episodes/{episodes[long]}"), arrange=tokens_read),
    View("episode-grade", at("/episodes/{episodes[missing]}#grade")),
    View("episode-raw", at("/episodes/{episodes[missing]}#raw")),
    View("episode-diff", at("/episodes/{episodes[failed]}/compare/{episodes[good]}")),
    View("compare-two", at("/compare?runs={sweep[0]},{sweep[8]}"), arrange=drawn),
    View(
        "compare-ten",
        at("/compare?runs={sweep[0]},{sweep[1]},{sweep[2]},{sweep[3]},{sweep[4]},{sweep[5]},{sweep[6]},{sweep[7]},{sweep[8]},{runs[full]}"),
        arrange=drawn,
    ),
    View("compare-empty", at("/compare")),
    View("banks", at("/banks")),
    View("banks-empty", at("/banks"), "nora"),
    View("banks-import", at("/banks"), arrange=click("[data-dialog='#import-bank']", "#import-bank")),
    View("banks-import-git", at("/banks"), arrange=import_from("import-repair", "git")),
    View("bank", at("/banks/quiz")),
    View("bank-no-version", at("/banks/quiz/99"), status=404),
    View("bank-filtered", at("/banks/quiz?q=energy"), arrange=click(".tasks summary", ".tasks .choices")),
    View("bank-repair", at("/banks/repair")),
    View("bank-repair-fresh", at("/banks/repair-fresh")),
    View("bank-repair-viewer", at("/banks/repair-fresh"), "vera"),
    View("bank-without-nodes", at("/without-nodes/repair-fresh")),
    View("bank-scienceworld", at("/banks/scienceworld")),
    View("run-gigpo", at("/runs/{runs[gigpo]}"), arrange=drawn),
    View("episode-steps", at("/episodes/{episodes[steps]}")),
    View("evaluate", at("/evaluate")),
    View("evaluate-model", at("/evaluate"), arrange=more_fields),
    View("evaluate-empty", at("/evaluate"), "nora"),
    View("evaluate-viewer", at("/evaluate"), "vera"),
    View("evaluation-result", at("/runs/{runs[evaluated]}/evaluation")),
    View("evaluation-waiting", at("/runs/{runs[evaluating]}/evaluation")),
    View("evaluation-proof", at("/runs/{runs[proof]}/evaluation")),
    View("evaluation-warming", at("/runs/{runs[warmed]}/evaluation")),
    View("episode-container", at("/episodes/{episodes[repaired]}#grade")),
    View("episode-ungraded", at("/episodes/{episodes[ungraded]}#grade")),
    View("import-succeeded", at("/banks/imports/{imports[succeeded]}")),
    View("import-failed", at("/banks/imports/{imports[failed]}")),
    View("import-running", at("/banks/imports/{imports[running]}")),
    View("cluster", at("/cluster")),
    View("settings", at("/settings")),
    View("settings-empty", at("/settings"), "nora"),
    View("settings-token", at("/settings"), arrange=click("[data-dialog='#new-token']", "#new-token")),
    View("settings-fresh-token", at("/settings"), arrange=make_token),
    View("settings-revoke", at("/settings"), arrange=click("form[data-typed] button", "#confirm")),
    View("theme-menu", at("/runs"), arrange=click("summary[title='Theme and account']", "[data-theme-set=dark]")),
    View("error-400", at("/runs?sort=password"), status=400),
    View("error-403", at("/launch"), "vera", status=403),
    View("error-404", at("/nothing"), status=404),
    View("error-500", at("/broken"), status=500),
]
