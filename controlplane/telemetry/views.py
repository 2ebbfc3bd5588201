"""The ingest endpoint: a plain view outside the REST framework, because it is called more often than everything else together."""

import logging
import threading
from contextlib import contextmanager

from django.db import DataError, InterfaceError, OperationalError
from django.http import HttpRequest, JsonResponse

from controlplane.runs.attempt_auth import Refused, authenticate_attempt, require_late_data_welcome, runner_endpoint
from controlplane.telemetry.services import accept_batch, count_refused
from runner.contract.events import MAX_COMPRESSED, InvalidBatch, decode_batch

logger = logging.getLogger(__name__)

WRITERS = 4
"""Batches written at once by this process; fewer than its database connections, so that pages keep some."""
QUEUE = 32
"""Batches waiting or being written; beyond it the emitter is asked to come again."""
WAIT_S = 5.0
"""Sooner than an emitter gives up on its request; a short stall costs less than sending a batch again."""
RETRY_AFTER_S = 1

_writers = threading.BoundedSemaphore(WRITERS)
_queue = threading.BoundedSemaphore(QUEUE)


@runner_endpoint("POST")
def ingest(request: HttpRequest, attempt_id: int) -> JsonResponse:
    """POST a batch (`runner.contract.events`). Not fenced: the attempt's own data is taken until 24 hours after it closed."""
    try:
        with _admission():
            attempt = authenticate_attempt(request, attempt_id)
            require_late_data_welcome(attempt)
            receipt = _accept(attempt, _body(request))
    except (OperationalError, InterfaceError) as error:
        logger.warning("ingest of attempt %s: %s", attempt_id, error)
        raise _busy("the database is not available; the batch was not stored") from None
    except OSError as error:
        logger.error("ingest of attempt %s: %s", attempt_id, error)
        raise _busy(f"the blob store takes nothing ({error.strerror or error}); the batch was not stored") from None
    return JsonResponse(vars(receipt))


@contextmanager
def _admission():
    if not _queue.acquire(blocking=False):
        raise _busy(f"{QUEUE} batches are waiting in this process")
    try:
        if not _writers.acquire(timeout=WAIT_S):
            raise _busy(f"no batch was finished in {WAIT_S:g} s")
        try:
            yield
        finally:
            _writers.release()
    finally:
        _queue.release()


def _busy(detail: str) -> Refused:
    return Refused(503, "Try again", detail, {"Retry-After": str(RETRY_AFTER_S)})


def _body(request: HttpRequest) -> bytes:
    # Not `request.body`: its limit is the one of forms.
    body = request.read(MAX_COMPRESSED + 1)
    if len(body) > MAX_COMPRESSED:
        raise Refused(413, "Batch too large", f"at most {MAX_COMPRESSED} bytes compressed; send smaller batches")
    return body


def _accept(attempt, body: bytes):
    try:
        return accept_batch(attempt, decode_batch(body))
    except (InvalidBatch, DataError) as error:
        count_refused(attempt)
        raise Refused(400, "Invalid batch", str(error)) from None
