"""A Chromium that remembers what its pages complained of and what their sockets brought, and takes pictures when asked to."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import BrowserContext, Page

from tests.e2e.house import PATIENCE_S

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
REPORT_VIOLATIONS = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy violated: ${event.violatedDirective} by ${event.blockedURI} ${event.sample}`));
"""


def is_abort(text: str) -> bool:
    """A request that a newer one replaced, or that was on its way when its page was left; a failed one says htmx:sendError besides."""
    return text.startswith(("htmx:sendAbort", "htmx:afterRequest"))


class Watch:
    """Everything that went wrong in a context, and the frames of the live socket."""

    def __init__(self, context: BrowserContext):
        self.complaints: list[str] = []
        self.visited: Counter[str] = Counter()
        self.frames: list[dict] = []
        context.add_init_script(REPORT_VIOLATIONS)
        context.on(
            "console", lambda message: message.type == "error" and not is_abort(message.text) and self.complain(message.page, message.text)
        )
        context.on("weberror", lambda error: self.complain(error.page, str(error.error)))
        context.on("response", lambda answer: answer.status >= 400 and self.complaints.append(f"{answer.status} {answer.url}"))

    def follow(self, page: Page) -> None:
        page.on("websocket", lambda socket: socket.on("framereceived", self.receive))
        page.on("framenavigated", lambda frame: self.visited.update([frame.url]))

    def complain(self, page: Page | None, text: str) -> None:
        self.complaints.append(f"{page.url if page else '?'}: {text}")

    def receive(self, payload: str | bytes) -> None:
        message = json.loads(payload)
        if message["type"] == "frame":
            self.frames.append(message)

    def live_points(self, run: str) -> dict[str, list]:
        """Points of a run that came through the socket, by series."""
        found: dict[str, list] = {}
        for frame in self.frames:
            for name, points in frame["points"].items() if frame["run"] == run else ():
                found.setdefault(name, []).extend(points)
        return found

    def live_steps(self, run: str) -> list[int]:
        return [frame["run_state"]["step"] for frame in self.frames if frame["run"] == run and frame["run_state"]]


class Album:
    """Pictures of pages, wide and narrow, light and dark, into the folder ASSAY_SCREENSHOTS names; none without it."""

    def __init__(self):
        folder = os.environ.get("ASSAY_SCREENSHOTS")
        self.folder = Path(folder) if folder else None
        if self.folder:
            self.folder.mkdir(parents=True, exist_ok=True)

    def take(self, page: Page, name: str) -> None:
        if not self.folder:
            return
        for size, viewport in (("wide", WIDE), ("narrow", NARROW)):
            for scheme in ("light", "dark"):
                page.set_viewport_size(viewport)
                page.emulate_media(color_scheme=scheme)
                page.screenshot(path=self.folder / f"{name}-{size}-{scheme}.png", full_page=True, animations="disabled")
        page.set_viewport_size(WIDE)
        page.emulate_media(color_scheme="light")


def until(page: Page, condition: Callable, what: str, seconds: float = PATIENCE_S):
    """The first true value of `condition`, asked while the page goes on living; `what` names it when it never comes."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        page.wait_for_timeout(200)  # unlike sleep, it lets the page's events reach us
    return value
