"""/ws/live and strangers: exact origins, sessions that end, topics of other teams, sizes. `telemetry/test_live` has what it delivers."""

import json
import uuid

import pytest
from channels.db import database_sync_to_async

from controlplane.telemetry import consumers
from tests.controlplane.factories import make_run
from tests.controlplane.telemetry.test_live import Page

pytestmark = pytest.mark.django_db(transaction=True)
OWN = b"http://127.0.0.1:8000"
FOREIGN = (
    *(b"http://evil.example", b"null", b"", b"file://", b"http://127.0.0.1.evil.example", b"http://evil.example/127.0.0.1:8000"),
    *(b"http://127.0.0.1:9999", b"https://127.0.0.1:8000"),
)


async def is_open(page: Page) -> bool:
    if not page.connected:
        return False
    await page.say(type="ping")
    return (await page.socket.receive_output(timeout=10)).get("text") == '{"type":"pong"}'


class TestOrigin:
    async def test_ours_is_let_in(self, owner):
        async with Page(owner, origin=OWN) as page:
            assert await is_open(page)

    @pytest.mark.parametrize("origin", FOREIGN)
    async def test_no_other_is_let_in_even_with_the_cookie(self, owner, origin):
        """Another port of this machine is another site: somebody else's program may serve it."""
        async with Page(owner, origin=origin) as page:
            assert not page.connected


class TestSession:
    async def test_a_signed_out_session_opens_no_socket(self, owner):
        page = Page(owner)
        async with page:
            assert await is_open(page)
        await database_sync_to_async(_end_sessions)()
        page.user, cookie = None, page.cookie
        async with Page(origin=OWN, cookie=cookie) as again:
            assert not await _stays(again)

    @pytest.mark.parametrize("ending", ["signed out", "new password", "left the team"])
    async def test_an_open_socket_ends_with_its_session(self, team, owner, teammate, monkeypatch, ending):
        monkeypatch.setattr(consumers, "RECHECK_S", 0.1)
        run = await database_sync_to_async(make_run)(team)
        async with Page(teammate) as page:
            await page.watch(run, cursor=None)
            await page.hear()
            await database_sync_to_async(END[ending])(teammate, owner, team)
            outputs = [await page.socket.receive_output(timeout=20)]
            while outputs[-1]["type"] != "websocket.close":
                outputs.append(await page.socket.receive_output(timeout=20))
            assert outputs[-1]["code"] == consumers.NO_LONGER_ALLOWED


async def _stays(page: Page) -> bool:
    output = await page.socket.receive_output(timeout=10)
    return output["type"] != "websocket.close"


def _end_sessions(*_):
    from django.contrib.sessions.models import Session

    Session.objects.all().delete()


def _new_password(teammate, *_):
    teammate.set_password("a new and long passphrase")
    teammate.save()


def _leave(teammate, owner, team):
    from controlplane.accounts.services import remove_member

    remove_member(owner, teammate.memberships.get(team=team))


END = {"signed out": _end_sessions, "new password": _new_password, "left the team": _leave}


class TestTopics:
    @pytest.mark.parametrize("kind", ["run", "episode"])
    async def test_what_is_another_teams_reads_like_what_does_not_exist(self, outsider, world, kind):
        key = world[f"{kind}_id"]
        async with Page(outsider) as page:
            answers = []
            for identifier in (key, uuid.uuid4()):
                await page.say(type="subscribe", topics=[{"topic": kind, kind: str(identifier)}])
                answers.append((await page.hear())["detail"].replace(str(identifier), "ID"))
            assert answers[0] == answers[1] and "another team's" in answers[0]


class TestSize:
    async def test_topics_of_a_socket_are_bounded(self, owner, team):
        run = await database_sync_to_async(make_run)(team)
        async with Page(owner) as page:
            many = [{"topic": "run", "run": str(run.pk)}] * (consumers.MAX_TOPICS + 1)
            await page.say(type="subscribe", topics=many)
            assert (await page.hear())["type"] == "error"

    async def test_a_message_over_the_limit_is_answered_and_not_parsed(self, owner):
        async with Page(owner) as page:
            await page.send(text="[" * (consumers.MAX_MESSAGE + 1))
            assert "at most" in json.loads((await page.socket.receive_output(timeout=10))["text"])["detail"]
