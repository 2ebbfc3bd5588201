"""Static files as an ASGI server sends them."""

import warnings

import pytest
from asgiref.sync import sync_to_async
from django.contrib.staticfiles import finders
from django.test import AsyncClient


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
