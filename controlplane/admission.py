"""Whose request body is taken, and how much of it: decided before Django stores a byte.

Django under ASGI reads a whole body into memory or a temporary file before the first line of ours runs. This wrapper stands before it:
every path has a limit, and whoever sends more than SMALL must be somebody who may.
"""

import json
import re
from http import HTTPStatus

from channels.db import database_sync_to_async
from django.conf import settings
from django.http.cookie import parse_cookie

from controlplane.accounts.choices import Role
from controlplane.accounts.models import Membership, User
from controlplane.accounts.roles import RANK, token_role
from controlplane.accounts.services import authenticate_token
from controlplane.accounts.sessions import user_of_session
from controlplane.accounts.tokens import hash_token
from controlplane.banks.api import MAX_BANK_FILE
from controlplane.banks.imports import MAX_UPLOAD
from controlplane.runs.models import Attempt
from runner.contract.events import MAX_COMPRESSED

SMALL = 1 << 20
"""Bytes that anybody may send: they stay in memory."""
FORM = 1 << 20
"""What a form may hold beside its file."""
LIMITS = (
    (re.compile(r"/api/v1/banks/imports/upload|/banks|/api/v1/bank-files"), MAX_UPLOAD + FORM),
    (re.compile(r"/api/v1/banks/[^/]+/versions"), MAX_BANK_FILE + FORM),
    (re.compile(r"/api/ingest/\d+/batches"), MAX_COMPRESSED + 1),
)
INGEST = re.compile(r"/api/ingest/(\d{1,18})/")
HEADERS = ((b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"default-src 'none'"), (b"connection", b"close"))


class BodyAdmission:
    """ASGI middleware: 413 beyond the path's limit, declared or streamed; 401 or 403 for a large body from somebody who may not send one."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        limit, declared = limit_of(scope["path"]), _declared(headers)
        if declared is not None and declared > limit:
            return await _refuse(scope, send, 413, _too_large(limit))
        streamed = declared is None and b"transfer-encoding" in headers
        if (streamed or (declared or 0) > SMALL) and (status := await database_sync_to_async(refusal)(scope["path"], headers)):
            return await _refuse(
                scope, send, status, "a body this large is only taken from somebody who may upload; send a live token or sign in"
            )
        await self.app(scope, _counted(scope, receive, send, limit), send)


def limit_of(path: str) -> int:
    """The most bytes that a body sent to `path` may have."""
    return next((limit for pattern, limit in LIMITS if pattern.fullmatch(path)), settings.DATA_UPLOAD_MAX_MEMORY_SIZE)


def _declared(headers: dict[bytes, str]) -> int | None:
    text = headers.get(b"content-length", "")
    return int(text) if text.isdigit() else None


def _counted(scope, receive, send, limit: int):
    """`receive` that ends the request once more than `limit` bytes came, whatever was declared."""
    taken = 0

    async def counted():
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken <= limit:
            return message
        await _refuse(scope, send, 413, _too_large(limit))
        return {"type": "http.disconnect"}

    return counted


def _too_large(limit: int) -> str:
    return f"at most {limit} bytes are taken here"


async def _refuse(scope, send, status: int, detail: str) -> None:
    problem = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, "errors": [], "request": ""}
    body = json.dumps(problem).encode()
    kind = (b"content-type", b"application/problem+json")
    await send({"type": "http.response.start", "status": status, "headers": [kind, *HEADERS, (b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})


# ---------------------------------------------------------------- who it is
def refusal(path: str, headers: dict[bytes, str]) -> int | None:
    """None when the caller may send a large body to `path`; 401 for a stranger, 403 for somebody who may only look."""
    scheme, _, token = headers.get(b"authorization", "").partition(" ")
    token = token.strip() if scheme.lower() == "bearer" else ""
    if attempt := INGEST.match(path):
        return None if Attempt.objects.filter(pk=attempt[1], token_hash=hash_token(token)).exists() else 401
    user = (
        authenticate_token(token)
        if b"authorization" in headers
        else user_of_session(parse_cookie(headers.get(b"cookie", "")).get(settings.SESSION_COOKIE_NAME))
    )
    if user is None:
        return 401
    return None if _may_upload(user) else 403


def _may_upload(user: User) -> bool:
    if user.token and RANK[token_role(user.token.scopes)] < RANK[Role.MEMBER]:
        return False
    mine = Membership.objects.filter(user=user).exclude(role=Role.VIEWER)
    return (mine.filter(team=user.token.team_id) if user.token else mine).exists()
