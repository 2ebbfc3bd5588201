"""How a runner proves which attempt it is, and how it is told no: a scoped token, problem documents, counted fences."""

import functools
import hmac
import json
import logging
from datetime import timedelta

from django.db import InterfaceError, OperationalError
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.csrf import csrf_exempt

from controlplane.accounts.tokens import hash_token
from controlplane.runs.models import OPEN_ATTEMPT, Attempt

LATE_DATA = timedelta(hours=24)
"""How long points, logs and episode events of a closed attempt are still welcome."""

MAX_JSON = 16 << 20
RETRY_AFTER_S = 1

logger = logging.getLogger(__name__)


class Refused(Exception):
    """A runner's request is answered with an RFC 9457 problem of `status`."""

    def __init__(self, status: int, title: str, detail: str, headers: dict[str, str] | None = None):
        self.status, self.title, self.detail, self.headers = status, title, detail, headers or {}
        super().__init__(f"{status} {title}: {detail}")

    def response(self) -> JsonResponse:
        body = {"type": "about:blank", "title": self.title, "status": self.status, "detail": self.detail}
        return JsonResponse(body, status=self.status, headers=self.headers, content_type="application/problem+json")


def runner_endpoint(*methods: str):
    """A view for runners: no cookie and so no CSRF, only `methods`, each Refused answered as a problem."""

    def decorate(view):
        @csrf_exempt
        @functools.wraps(view)
        def wrapped(request: HttpRequest, attempt_id: int, **parts: str):
            try:
                if request.method not in methods:
                    raise Refused(405, "Method not allowed", f"use {' or '.join(methods)}", {"Allow": ", ".join(methods)})
                return view(request, attempt_id, **parts)
            except Refused as refused:
                return refused.response()
            except (OperationalError, InterfaceError) as error:
                logger.warning("%s: %s", request.path, error)
                detail = "the database is not available; nothing was changed"
                return Refused(503, "Try again", detail, {"Retry-After": str(RETRY_AFTER_S)}).response()

        return wrapped

    return decorate


def same_secret(secret: str, stored_hash: str) -> bool:
    return bool(stored_hash) and hmac.compare_digest(hash_token(secret), stored_hash)


def authenticate_attempt(request: HttpRequest, attempt_id: int) -> Attempt:
    """The attempt whose token the request carries, open or closed. Raises Refused(401); the run comes with it."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    attempt = Attempt.objects.select_related("run__project").filter(pk=attempt_id).first()
    if scheme.lower() != "bearer" or attempt is None or not same_secret(token.strip(), attempt.token_hash):
        detail = "send 'Authorization: Bearer TOKEN' with the token that the claim of this attempt returned"
        raise Refused(401, "Not this attempt's token", detail, {"WWW-Authenticate": "Bearer"})
    return attempt


def require_late_data_welcome(attempt: Attempt) -> None:
    """Raises Refused(410) when the attempt closed longer ago than LATE_DATA."""
    if attempt.ended_at and timezone.now() - attempt.ended_at > LATE_DATA:
        raise Refused(410, "Attempt closed", f"attempt {attempt.number} ended {attempt.ended_at.isoformat()}; data is taken for 24 hours after that")


def require_open(attempt: Attempt) -> None:
    """The fence: a closed attempt may not change the run. Counts the refused write and raises Refused(409)."""
    if attempt.state not in OPEN_ATTEMPT:
        Attempt.objects.filter(pk=attempt.pk).update(writes_fenced=F("writes_fenced") + 1)
        raise Refused(409, "Attempt closed", f"attempt {attempt.number} is {attempt.state}; its process must exit")


def read_json(request: HttpRequest) -> dict:
    """The request's JSON object. Raises Refused(400 or 413)."""
    if int(request.headers.get("Content-Length") or 0) > MAX_JSON:
        raise Refused(413, "Body too large", f"at most {MAX_JSON} bytes of JSON")
    try:
        body = json.loads(request.body)
    except ValueError as error:
        raise Refused(400, "Not JSON", str(error)) from None
    if not isinstance(body, dict):
        raise Refused(400, "Not a JSON object", f"got {type(body).__name__}")
    return body
