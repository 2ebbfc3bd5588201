"""Doing a thing once however often it is asked for: the answer is stored in the transaction that did it."""

import hashlib
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.core.exceptions import BadRequest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.http import HttpRequest
from django.utils import timezone

from controlplane.accounts.models import IdempotencyKey, User

KEPT = timedelta(days=2)
WAIT_MS = 20_000


class KeyReused(Exception):
    """The key was used for another request."""


class KeyBusy(Exception):
    """The first request with this key is still being served."""


def once(user: User, path: str, key: str, request_hash: str, act: Callable[[], tuple[int, Any]]) -> tuple[int, Any, bool]:
    """(status, answer, replayed) of `act()`, which runs at most once for (user, path, key).

    1. Insert the key's row. The unique index makes everybody else who has the same key wait for our commit.
    2. Act, inside the same transaction, and store its answer. If it raises, the key is free again.
    3. Those who waited find the row and return its answer.

    Raises KeyReused when the key came with another `request_hash`, KeyBusy after waiting 20 s.
    """
    with transaction.atomic():
        row, mine = _reserve(user, path, key, request_hash)
        if not mine:
            if row.request_hash != request_hash:
                raise KeyReused(f"the key {key!r} came with another request before; use a new key for a new request")
            return row.status, row.response, True
        row.status, row.response = act()
        row.save(update_fields=["status", "response"])
        IdempotencyKey.objects.filter(created_at__lt=timezone.now() - KEPT).delete()
    return row.status, row.response, False


def form_token(request: HttpRequest) -> str:
    """The token that a form was rendered with: however often it is sent, it acts once. Raises BadRequest without one."""
    token = request.POST.get("token", "")
    if not token.isalnum() or len(token) != 32:
        raise BadRequest("the form's token is missing; reload the page")
    return token


def once_per_form(request: HttpRequest, act: Callable[[], Any]) -> tuple[Any, bool]:
    """(what `act()` returned, replayed): a form that costs something acts once a `{% form_token %}`, be it clicked twice or sent again.

    What it returns must be JSON. Whatever it raises leaves the token free. Raises BadRequest without a token, or when it came with other fields.
    """
    token, path = form_token(request), f"POST {request.path}"[:200]
    try:
        _, answer, replayed = once(request.user, path, token, posted_hash(request), lambda: (200, act()))
    except KeyReused:
        raise BadRequest("this form was already sent with other values; reload the page and send it again") from None
    except KeyBusy:
        raise BadRequest("this form is still being served; reload the page in a moment to see what came of it") from None
    return answer, replayed


def posted_hash(request: HttpRequest) -> str:
    """SHA-256 of a form's fields and files, without its tokens. Files are read in pieces: one may be larger than memory should hold."""
    fields = sorted((name, values) for name, values in request.POST.lists() if name not in ("token", "csrfmiddlewaretoken"))
    found = hashlib.sha256(json.dumps(fields).encode())
    for name, files in sorted(request.FILES.lists()):
        for file in files:
            found.update(json.dumps([name, file.name, file.size]).encode())
            for chunk in file.chunks():
                found.update(chunk)
            file.seek(0)
    return found.hexdigest()


def _reserve(user: User, path: str, key: str, request_hash: str) -> tuple[IdempotencyKey, bool]:
    team = user.token and user.token.team_id
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET LOCAL lock_timeout = {WAIT_MS}")
            row = IdempotencyKey.objects.create(user=user, team_id=team, path=path, key=key, request_hash=request_hash)
            cursor.execute("SET LOCAL lock_timeout TO DEFAULT")
            return row, True
    except IntegrityError:
        return IdempotencyKey.objects.get(user=user, team_id=team, path=path, key=key), False
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) == "55P03":
            raise KeyBusy(f"the first request with the key {key!r} is still being served; ask again") from None
        raise
