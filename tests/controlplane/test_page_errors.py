"""What an address or a form cannot mean is told as the caller's fault, with the reason, on every page."""

import pytest

from tests.controlplane.factories import make_run
from tests.controlplane.pages import form, signed_in

HUGE = "9" * 5000


@pytest.fixture
def browser(owner):
    return signed_in(owner)


@pytest.mark.parametrize(
    ("path", "status", "told"),
    [
        ("/launch?team=no-such-team", 404, "a team you are not in"),
        ("/banks?team=no-such-team", 404, "a team you are not in"),
        ("/runs?q=%00", 400, "null character"),
        ("/runs?group=seed&cursor=²", 400, "no whole number"),
        ("/runs/rows?ids=abc", 400, "must be a run"),
        ("/runs/RUN/metrics?q=%00", 400, "null character"),
        ("/evaluate?again=abc", 400, "is not a valid UUID"),
        *(
            (f"/runs/RUN/{tab}={text}", 400, "no whole number")
            for tab in ("audit?before", "logs?before", "logs?attempt")
            for text in ("²", HUGE)
        ),
    ],
)
def test_an_address_that_means_nothing_is_refused_with_its_reason(browser, team, path, status, told):
    answer = browser.get(path.replace("RUN", str(make_run(team).pk)))
    assert (answer.status_code, told in answer.content.decode()) == (status, True)


@pytest.mark.parametrize(
    ("path", "posted"),
    [
        ("/runs/RUN/resume", {"checkpoint": "abc"}),
        ("/runs/views", {"name": "mine", "query": "q=1", "team": "abc"}),
        ("/runs/views", {"name": "a\0b", "query": "q=1"}),
        ("/runs/bulk", {"action": "tag", "ids": "RUN", "tag": "a\0b"}),
        ("/launch/stages?act=remove&index=²", {}),
        ("/launch/stages?act=up&index=" + HUGE, {}),
        ("/settings/tokens", {"name": "mine", "scopes": "submit", "team": "abc"}),
    ],
)
def test_what_is_posted_and_means_nothing_is_refused(browser, team, path, posted):
    run = str(make_run(team).pk)
    answer = browser.post(path.replace("RUN", run), {name: text.replace("RUN", run) for name, text in posted.items()})
    assert answer.status_code == 400


@pytest.mark.parametrize(("environment", "source"), [("sciknoweval", "path"), ("harbor", "path"), ("harbor", "git")])
def test_a_path_that_is_too_long_for_one_is_no_file(browser, environment, source):
    answer = browser.post("/banks", form(environment=environment, source=source, location="/" + "a" * 300, ref="HEAD"))
    assert answer.status_code == 422


def test_a_count_that_is_none_is_told_at_its_field(browser):
    answer = browser.post("/banks", form(environment="scienceworld", source="bundled", replays="²"))
    assert answer.status_code == 422 and "replays: &#x27;²&#x27; is no whole number" in answer.content.decode()
