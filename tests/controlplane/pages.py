"""What every page must be: whole HTML without inline style or handlers, within its queries, closed to other teams."""

import uuid
from html.parser import HTMLParser
from typing import Any

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class _Checker(HTMLParser):
    """Collects what the content policy forbids, unbalanced tags, and ids that occur twice."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "style" or name.startswith("on"):
                self.faults.append(f"<{tag} {name}>")
            if name == "id" and value in self.ids:
                self.faults.append(f"id {value} twice")
            if name == "id":
                self.ids.add(value)
        if tag == "script" and not (
            {"src", "nonce"} & {name for name, _ in attributes} or dict(attributes).get("type") == "application/json"
        ):
            self.faults.append("inline script without a nonce")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.faults.append(f"</{tag}> closes <{self.open[-1] if self.open else 'nothing'}>")
        else:
            self.open.pop()


def faults(html: str) -> list[str]:
    checker = _Checker()
    checker.feed(html)
    return checker.faults + [f"<{tag}> left open" for tag in checker.open]


def signed_in(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


def read(user, path: str, queries: int | None = None, status: int = 200, **headers) -> str:
    """The page's HTML, after the checks. `queries` is the most it may ask the database, its session and user included."""
    client = signed_in(user)
    with CaptureQueriesContext(connection) as captured:
        response = client.get(path, headers=headers)
    assert response.status_code == status, response.content[:400]
    html = response.content.decode()
    assert faults(html) == []
    if queries is not None:
        assert len(captured) <= queries, "\n".join(query["sql"][:160] for query in captured.captured_queries)
    return html


def queries_of(user, path: str) -> int:
    """How many queries the page takes."""
    client = signed_in(user)
    with CaptureQueriesContext(connection) as captured:
        assert client.get(path).status_code == 200
    return len(captured)


def form(**fields: Any) -> dict[str, Any]:
    """What a form sends that a page was just rendered with: its fields and a token of its own."""
    return {"token": uuid.uuid4().hex, **fields}
