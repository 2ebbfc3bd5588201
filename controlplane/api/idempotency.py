"""`Idempotency-Key` on POSTs that spend something: the same key and body get the same stored answer."""

import hashlib
import re
from functools import wraps

from django.http import HttpResponse
from ninja.decorators import decorate_view

from controlplane.accounts.idempotency import once, posted_hash
from controlplane.api.auth import identify
from controlplane.api.problems import Problem, problem_of, respond
from runner.contract.parse import FieldError

HEADER = "Idempotency-Key"
KEY = re.compile(r"[\x21-\x7e]{1,120}")


class _Refused(Exception):
    """An answer that is no success: rolls back, so that the key stays free for the corrected request."""

    def __init__(self, response: HttpResponse):
        self.response = response


def _only_once(run):
    @wraps(run)
    def wrapper(request, **parameters):
        key = request.headers.get(HEADER)
        try:
            user = identify(request) if key is not None else None
            if user is None:
                return run(request, **parameters)
            return _answer(request, user, key, lambda: run(request, **parameters))
        except _Refused as refused:
            return refused.response
        except Exception as error:
            return respond(request, problem_of(error))

    return wrapper


def _answer(request, user, key: str, run) -> HttpResponse:
    if not KEY.fullmatch(key):
        raise Problem(400, "Malformed idempotency key", errors=[FieldError(f"/{HEADER}", "1 to 120 visible ASCII characters", key[:200])])

    def act():
        response = run()
        if not 200 <= response.status_code < 300:
            raise _Refused(response)
        return response.status_code, response.content.decode()

    status, text, replayed = once(user, f"{request.method} {request.path}"[:200], key, _request_hash(request), act)
    headers = {"Idempotency-Replayed": "true"} if replayed else {}
    return HttpResponse(text, status=status, content_type="application/json; charset=utf-8", headers=headers)


def _request_hash(request) -> str:
    content = posted_hash(request).encode() if request.content_type == "multipart/form-data" else request.body
    return hashlib.sha256(request.get_full_path().encode() + b"\0" + content).hexdigest()


idempotent = decorate_view(_only_once)
idempotent.__doc__ = (
    """Stack it directly under the router's decorator: the view then runs once a key, inside the transaction of the key's row."""
)
