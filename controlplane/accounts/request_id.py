"""One identifier a request, in the answer, in the audit trail and in every log line."""

import logging
import re
import uuid
from contextvars import ContextVar

from asgiref.sync import iscoroutinefunction
from django.utils.decorators import sync_and_async_middleware

HEADER = "X-Request-ID"
# Ours or the proxy's, never free text: it is written into log lines.
ACCEPTED = re.compile(r"[A-Za-z0-9._-]{1,40}")

_current: ContextVar[str] = ContextVar("request_id", default="")


def current_request_id() -> str:
    """Identifier of the request being served; empty outside of one."""
    return _current.get()


@sync_and_async_middleware
def request_id_middleware(get_response):
    """Takes X-Request-ID when it is well formed, else makes one; answers with it."""

    def begin(request):
        given = request.headers.get(HEADER, "")
        request.id = given if ACCEPTED.fullmatch(given) else uuid.uuid4().hex
        return _current.set(request.id)

    def serve(request):
        token = begin(request)
        try:
            response = get_response(request)
        finally:
            _current.reset(token)
        response[HEADER] = request.id
        return response

    async def serve_async(request):
        token = begin(request)
        try:
            response = await get_response(request)
        finally:
            _current.reset(token)
        response[HEADER] = request.id
        return response

    return serve_async if iscoroutinefunction(get_response) else serve


class RequestIdFilter(logging.Filter):
    """Gives every log record its `request_id`, so that formatters may name it."""

    def filter(self, record):
        record.request_id = current_request_id() or "-"
        return True
