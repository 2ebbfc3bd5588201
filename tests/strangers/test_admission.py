"""Through the whole ASGI application: a body that may not come is refused before Django has stored a byte of it."""

import asyncio
import json

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.test import Client

from controlplane import admission
from controlplane.accounts import services as accounts
from controlplane.asgi import application

pytestmark = pytest.mark.django_db(transaction=True)
LARGE = 40 << 20
UPLOADS = ("/api/v1/banks/imports/upload", "/api/v1/banks/elements/versions", "/api/v1/bank-files", "/banks")


class Upload:
    """A request whose body is sent piece by piece; `answer` is the refusal, None while the server goes on reading."""

    def __init__(self, path: str, declared: int | None = LARGE, **headers: str):
        length = {"content-length": str(declared)} if declared is not None else {"transfer-encoding": "chunked"}
        given = {"host": "127.0.0.1", "content-type": "multipart/form-data; boundary=x", **length, **headers}
        raw = [(name.encode(), value.encode()) for name, value in given.items()]
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": raw}
        self.socket = ApplicationCommunicator(application, {**scope, "http_version": "1.1", "scheme": "http", "root_path": ""})

    async def send(self, size: int = 1) -> None:
        await self.socket.send_input({"type": "http.request", "body": b"x" * size, "more_body": True})

    async def answer(self) -> dict | None:
        async with asyncio.timeout(30):
            while self.socket.output_queue.empty() and not self.socket.input_queue.empty():
                await self.socket.receive_nothing(timeout=0.05)
        # What was sent has been read: a refusal would follow at once.
        if await self.socket.receive_nothing(timeout=0.3, interval=0.05):
            return None
        head, body = await self.socket.receive_output(timeout=10), await self.socket.receive_output(timeout=10)
        assert dict(head["headers"])[b"x-content-type-options"] == b"nosniff"
        return {"status": head["status"], **json.loads(body["body"])}

    async def end(self) -> None:
        if not self.socket.future.done():
            await self.socket.send_input({"type": "http.disconnect"})
        await self.socket.wait(timeout=10)


async def status_of(path: str, **options) -> int | None:
    upload = Upload(path, **options)
    await upload.send()
    answer = await upload.answer()
    await upload.end()
    return answer and answer["status"]


@pytest.fixture
def tokens(owner, teammate, viewer, team):
    """Headers of each kind of caller."""
    made = {name: accounts.create_token(user, team, "t", scopes) for name, user, scopes in _wanted(owner, teammate, viewer)}
    accounts.revoke_token(owner, made["revoked"][1])
    client = Client()
    client.force_login(teammate)
    session = f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"
    bearers = {name: {"authorization": f"Bearer {secret}"} for name, (secret, _) in made.items()}
    return {**bearers, "anonymous": {}, "session": {"cookie": session}, "made up": {"cookie": f"{settings.SESSION_COOKIE_NAME}=x"}}


def _wanted(owner, teammate, viewer):
    return [
        ("member", teammate, ["submit"]),
        ("viewer", viewer, ["read"]),
        ("reading token", owner, ["read"]),
        ("revoked", owner, ["admin"]),
    ]


@pytest.mark.parametrize("path", UPLOADS)
async def test_only_who_may_upload_gets_to_send_a_large_body(path, tokens):
    statuses = {name: await status_of(path, **headers) for name, headers in tokens.items()}
    assert statuses == {
        **dict.fromkeys(("anonymous", "revoked", "made up"), 401),
        **dict.fromkeys(("viewer", "reading token"), 403),
        **dict.fromkeys(("member", "session"), None),
    }


async def test_a_body_of_undeclared_length_is_checked_likewise(tokens):
    assert await status_of(UPLOADS[0], declared=None) == 401
    assert await status_of(UPLOADS[0], declared=None, **tokens["member"]) is None


async def test_a_small_body_reaches_the_application_and_its_own_check():
    upload = Upload(UPLOADS[0], declared=1)
    await upload.socket.send_input({"type": "http.request", "body": b"x"})
    head = await upload.socket.receive_output(timeout=30)
    assert head["status"] == 401 and b"X-Request-ID" in dict(head["headers"])
    await upload.end()


@pytest.mark.parametrize("path", [*UPLOADS, "/api/v1/runs", "/launch", "/api/ingest/1/batches", "/api/ingest/1/heartbeat"])
async def test_nobody_sends_more_than_the_paths_limit(path, tokens):
    assert await status_of(path, declared=admission.limit_of(path) + 1, **tokens["member"]) == 413


async def test_a_lie_about_the_length_ends_at_the_limit(tokens, monkeypatch):
    monkeypatch.setattr(admission, "limit_of", lambda path: 1000)
    upload = Upload(UPLOADS[0], declared=10, **tokens["member"])
    await upload.send(900)
    assert await upload.answer() is None
    await upload.send(200)
    assert (await upload.answer())["status"] == 413
    await upload.end()


async def test_only_the_attempts_own_token_sends_it_a_large_batch(team, tokens):
    from tests.controlplane.factories import make_attempt, make_run

    attempt, other = [await sync_to_async(lambda: make_attempt(make_run(team)))() for _ in range(2)]
    path, size = f"/api/ingest/{attempt.pk}/batches", 2 << 20
    for headers in (tokens["anonymous"], tokens["member"], {"authorization": f"Bearer {other.token}"}):
        assert await status_of(path, declared=size, **headers) == 401
    assert await status_of(path, declared=size, authorization=f"Bearer {attempt.token}") is None
