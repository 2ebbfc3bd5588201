"""Static files as an ASGI server sends them."""

import gzip
import warnings

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.contrib.staticfiles import finders
from django.test import AsyncClient

from controlplane.static import StaticFiles


def a_stylesheet() -> str:
    return next(path for finder in finders.get_finders() for path, _ in finder.list([]) if path.endswith(".css"))


@pytest.fixture
def from_finders(settings):
    settings.DEBUG = True


async def test_a_file_comes_whole_without_warning_and_for_our_own_pages_only(from_finders):
    path = await sync_to_async(a_stylesheet)()
    with warnings.catch_warnings():
        warnings.simplefilter("error", Warning)
        warnings.filterwarnings("ignore", message="No directory at")
        answer = await AsyncClient().get(f"/static/{path}")
    assert answer.status_code == 200 and answer["content-type"].startswith("text/css")
    with open(finders.find(path), "rb") as file:
        assert answer.content == file.read()
    assert "access-control-allow-origin" not in answer
    assert answer["x-content-type-options"] == "nosniff"


async def test_an_unchanged_file_is_not_sent_again(from_finders):
    url = "/static/" + await sync_to_async(a_stylesheet)()
    first = await AsyncClient().get(url)
    again = await AsyncClient().get(url, headers={"if-modified-since": first["last-modified"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.fixture
def collected(settings, tmp_path):
    """A client of the collected files alone: what Django would be asked for is answered 418."""
    settings.DEBUG, settings.STATIC_ROOT = False, tmp_path
    (tmp_path / "page.css").write_bytes(CSS)
    (tmp_path / "page.css.gz").write_bytes(gzip.compress(CSS))

    async def teapot(scope, receive, send):
        await send({"type": "http.response.start", "status": 418, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return httpx.AsyncClient(transport=httpx.ASGITransport(StaticFiles(teapot)), base_url="http://house")


CSS = b"body { margin: 0 }\n" * 100


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_a_collected_file_comes_as_it_is_accepted(collected, encoding):
    answer = await collected.get("/static/page.css", headers={"accept-encoding": encoding})
    assert (answer.status_code, answer.content) == (200, CSS)
    assert answer.headers.get("content-encoding", "identity") == encoding
    assert answer.headers["content-type"].startswith("text/css") and answer.headers["x-content-type-options"] == "nosniff"
    assert int(answer.headers["content-length"]) == (len(CSS) if encoding == "identity" else len(gzip.compress(CSS)))
    assert "access-control-allow-origin" not in answer.headers


async def test_a_collected_file_is_asked_for_in_the_ways_of_http(collected):
    whole = await collected.get("/static/page.css")
    again = await collected.get("/static/page.css", headers={"if-modified-since": whole.headers["last-modified"]})
    assert (again.status_code, again.content) == (304, b"")
    part = await collected.get("/static/page.css", headers={"range": "bytes=0-3", "accept-encoding": "identity"})
    assert (part.status_code, part.content) == (206, b"body")
    head = await collected.head("/static/page.css")
    assert (head.status_code, head.content) == (200, b"")
    assert (await collected.post("/static/page.css")).status_code == 405


@pytest.mark.parametrize("path", ["/static/other.css", "/static/page.css.gz/", "/static/../page.css", "/page.css", "/"])
async def test_every_other_path_is_left_to_django(collected, path):
    assert (await collected.get(path)).status_code == 418
