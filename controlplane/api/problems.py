"""Every error of the API as an RFC 9457 problem document, each naming the field, the value and the remedy."""

import logging
from http import HTTPStatus
from typing import Any, Sequence

from django.core.exceptions import (
    NON_FIELD_ERRORS,
    ObjectDoesNotExist,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
    ValidationError,
)
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from django.http.multipartparser import MultiPartParserError
from ninja.errors import HttpError

from controlplane.accounts.idempotency import KeyBusy, KeyReused
from controlplane.runs.exceptions import Conflict
from controlplane.transitions import IllegalTransition
from runner.contract.bank import InvalidBank
from runner.contract.parse import FieldError, InvalidDocument, pointer

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER_S = 5
log = logging.getLogger(__name__)


class Problem(Exception):
    """An error to be answered with `status`. `errors` are FieldErrors; `headers` go with the answer."""

    def __init__(self, status: int, title: str, detail: str = "", errors: Sequence[FieldError] = (), headers: dict[str, str] | None = None):
        self.status, self.title, self.detail = status, title, detail
        self.errors, self.headers = list(errors), headers or {}
        super().__init__(detail or title)


def respond(request: HttpRequest, problem: Problem) -> JsonResponse:
    """The problem document {type, title, status, detail, errors, request}."""
    if problem.status in (401, 403):
        log.warning("refused %s %s: %s", request.method, request.path, problem.detail or problem.title)
    document = {
        "type": "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "errors": [{"pointer": error.pointer, "message": error.message, "value": _shown(error.value)} for error in problem.errors],
        "request": getattr(request, "id", ""),
    }
    return JsonResponse(document, status=problem.status, content_type=CONTENT_TYPE, headers=problem.headers)


def _shown(value: Any) -> Any:
    # NaN and the infinities are no JSON.
    return str(value) if isinstance(value, float) and value - value != 0 else value


def problem_of(error: Exception) -> Problem:
    """What `error` means to the caller. An error nobody foresaw says nothing of our insides; the log does."""
    for kind, convert in CONVERSIONS:
        if isinstance(error, kind):
            return convert(error)
    log.error("unhandled %s", type(error).__name__, exc_info=error)
    return Problem(500, "Internal server error", "the request's identifier is in the log; nothing was changed")


def phrase(status: int) -> str:
    return HTTPStatus(status).phrase


def _of_http(error: HttpError) -> Problem:
    if isinstance(error.__cause__, Problem):
        return error.__cause__
    if error.status_code == 401:
        return Problem(
            401, phrase(401), "send a live API token as Authorization: Bearer, or sign in", headers={"WWW-Authenticate": "Bearer"}
        )
    return Problem(error.status_code, phrase(error.status_code), str(error))


def _of_validation(error: ValidationError) -> Problem:
    fields = error.message_dict if hasattr(error, "error_dict") else {NON_FIELD_ERRORS: error.messages}
    errors = [
        FieldError("" if name == NON_FIELD_ERRORS else pointer([name]), message)
        for name, messages in fields.items()
        for message in messages
    ]
    return Problem(422, "Invalid request", "; ".join(message for messages in fields.values() for message in messages), errors)


def _of_document(error: InvalidDocument) -> Problem:
    count = len(error.errors)
    return Problem(
        422, "Invalid run document", f"{count} field{'s' if count > 1 else ''} cannot be accepted; nothing was queued", error.errors
    )


def _of_bank(error: InvalidBank) -> Problem:
    errors = [FieldError(f"/file/{line}" if line else "/file", f"line {line}: {reason}" if line else reason) for line, reason in error.problems]
    return Problem(422, "Invalid bank file", f"{len(errors)} problems; nothing was imported", errors)


def _of_database(error: Exception) -> Problem:
    log.error("the database did not answer", exc_info=error)
    return Problem(503, phrase(503), "the database does not answer; try again", headers={"Retry-After": str(RETRY_AFTER_S)})


def _not_found(error: Exception) -> Problem:
    return Problem(404, phrase(404), "there is no such object, or it belongs to a team you are not in")


CONVERSIONS = (
    (Problem, lambda error: error),
    (HttpError, _of_http),
    (InvalidDocument, _of_document),
    (InvalidBank, _of_bank),
    (ValidationError, _of_validation),
    (PermissionDenied, lambda error: Problem(403, phrase(403), str(error))),
    ((Http404, ObjectDoesNotExist), _not_found),
    ((Conflict, IllegalTransition), lambda error: Problem(409, "Conflict", str(error))),
    (KeyReused, lambda error: Problem(409, "Idempotency key reused", str(error))),
    (KeyBusy, lambda error: Problem(409, "Still in progress", str(error), headers={"Retry-After": "1"})),
    (MultiPartParserError, lambda error: Problem(400, "Unreadable form", str(error))),
    (RequestDataTooBig, lambda error: Problem(413, phrase(413), str(error))),
    (SuspiciousOperation, lambda error: Problem(400, phrase(400), str(error))),
    ((OperationalError, InterfaceError), _of_database),
)
