"""A chart of several series whose numbers come in several answers."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

pytestmark = [pytest.mark.slow, pytest.mark.browser]


def names_of(route) -> set[str]:
    return set(parse_qs(urlsplit(route.request.url).query)["names"])


def ask_for_one_series_at_a_time(route) -> None:
    answer = route.fetch()
    assert "NAMES_AT_ONCE = 12" in answer.text()
    route.fulfill(response=answer, body=answer.text().replace("NAMES_AT_ONCE = 12", "NAMES_AT_ONCE = 1"))


def test_a_chart_waits_for_all_its_series_since_part_of_a_stack_is_a_false_sum(open_as, site):
    page, routes = open_as("olga"), []
    page.route("**/dashboard*.js", ask_for_one_series_at_a_time)
    page.route("**/points?**", lambda route: routes.append(route))
    page.goto(f"/runs/{site.world.runs['full']}")
    figure = page.locator("figure[data-lines]").nth(1)
    names = {line["name"] for line in json.loads(figure.get_attribute("data-lines"))}
    assert len(names) > 1
    while not names <= set().union(*map(names_of, routes)):
        page.wait_for_timeout(50)
    last = next(route for route in routes if names_of(route) & names)
    for route in routes:
        if route is not last:
            route.continue_()
    # Charts of other series are there by now, so that this one would be.
    expect(page.locator("figure[data-lines]").nth(0)).to_have_attribute("data-state", "drawn")
    expect(figure).to_have_attribute("data-state", "waiting")
    last.continue_()
    expect(figure).to_have_attribute("data-state", "drawn")
