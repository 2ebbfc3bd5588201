"""Doing a thing once however often it is asked for: the answer is stored in the transaction that did it."""

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
