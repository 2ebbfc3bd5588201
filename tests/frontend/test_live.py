"""A page whose live connection breaks without a word, as a laptop's does that leaves the room: it must not go on saying "Live"."""

import json
import re

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

pytestmark = [pytest.mark.slow, pytest.mark.browser]

SOCKET = re.compile("/ws/live$")


def say_nothing(socket: WebSocketRoute) -> None:
    socket.on_message(lambda message: None)


def answer_pings(socket: WebSocketRoute) -> None:
    socket.on_message(lambda message: json.loads(message)["type"] == "ping" and socket.send('{"type": "pong"}'))


@pytest.fixture
def page(open_as) -> Page:
    page = open_as("olga")
    page.clock.install()
    return page


def open_runs(page: Page) -> None:
    page.goto("/runs")
    expect(page.locator("[data-live-status]")).to_have_text("Live")


def test_a_connection_that_fell_silent_is_told_as_lost_within_a_minute_and_comes_back(page):
    sockets = []

    def serve(socket: WebSocketRoute) -> None:
        sockets.append(socket)
        (say_nothing if len(sockets) == 1 else answer_pings)(socket)

    page.route_web_socket(SOCKET, serve)
    open_runs(page)
    page.clock.run_for(31_000)
    expect(page.locator("[data-live-banner]")).to_contain_text("The live connection is lost")
    expect(page.locator("[data-live-status]")).to_have_text("Polling")
    page.clock.run_for(5_000)
    expect(page.locator("[data-live-status]")).to_have_text("Live")
    expect(page.locator("[data-live-banner]")).to_be_hidden()
    assert len(sockets) == 2


def test_a_quiet_connection_that_answers_is_kept(page):
    page.route_web_socket(SOCKET, answer_pings)
    open_runs(page)
    for _ in range(12):
        page.clock.run_for(10_000)
    expect(page.locator("[data-live-status]")).to_have_text("Live")
    expect(page.locator("[data-live-banner]")).to_be_hidden()
