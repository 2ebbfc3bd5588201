"""What an address or a form cannot mean is the caller's fault on pages too: 400 or 404 with the reason, as REST answers, never 500."""

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import BadRequest, ObjectDoesNotExist, ValidationError
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

from controlplane import views

LONGEST_WHOLE = 18


def whole(name: str, text: str) -> int:
    """The whole number that a query gives as `name`. Raises BadRequest; other scripts' digits are none, and neither is what no column holds."""
    if not (text.isascii() and text.isdigit() and len(text) <= LONGEST_WHOLE):
        raise BadRequest(f"{name}: {text!r:.40} is no whole number of at most {LONGEST_WHOLE} digits")
    return int(text)


@sync_and_async_middleware
def page_error_middleware(get_response):
    if iscoroutinefunction(get_response):

        async def serve(request):
            return _refused(request) or await get_response(request)

    else:

        def serve(request):
            return _refused(request) or get_response(request)

    serve.process_exception = _answer
    return serve


def _refused(request: HttpRequest) -> HttpResponse | None:
    # Postgres texts cannot hold it, so that any filter would fail with it.
    if "%00" in request.META.get("QUERY_STRING", "") and not request.path.startswith("/api/"):
        return views.bad_request(request, BadRequest("the address contains a null character; remove it"))
    return None


def _answer(request: HttpRequest, error: Exception) -> HttpResponse | None:
    if request.path.startswith("/api/"):
        return None
    if isinstance(error, ObjectDoesNotExist):
        return views.not_found(request, error)
    if isinstance(error, ValidationError):
        return views.bad_request(request, BadRequest("; ".join(error.messages)))
    if isinstance(error, DataError):
        return views.bad_request(request, BadRequest("a number is too large, or a text contains a null character"))
    return None
