"""Pages that belong to no app: the front door, the state of the house, and what is shown when something goes wrong."""

import logging
import sys

from django.contrib.auth.decorators import login_required
from django.core.exceptions import BadRequest
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from controlplane.accounts.signed_out import is_part

logger = logging.getLogger(__name__)
RETRY_AFTER_S = 5


def home(request: HttpRequest) -> HttpResponse:
    return redirect("runs")


@login_required
def house_status(request: HttpRequest) -> HttpResponse:
    """The banner about the reconciler; empty while all is well."""
    return render(request, "parts/house.html")


def _error(request: HttpRequest, status: int, title: str, text: str) -> HttpResponse:
    # A part of a page cannot be shown instead of it; the script that asked says this much.
    if is_part(request):
        return HttpResponse(f"{title}. {text}", status=status, content_type="text/plain; charset=utf-8")
    return render(request, "error.html", {"title": title, "text": text}, status=status)


def bad_request(request: HttpRequest, exception=None) -> HttpResponse:
    # Other suspicious operations speak of our insides.
    told = str(exception) if isinstance(exception, BadRequest) else ""
    return _error(
        request,
        400,
        "The request could not be read",
        told or "Something between the browser and Assay changed it. Reload the page and try once more.",
    )


def forbidden(request: HttpRequest, exception=None, reason: str = "") -> HttpResponse:
    text = str(exception or "") or "Your role in this team does not allow it."
    return _error(request, 403, "Not allowed", text)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    return _error(
        request, 403, "The form has expired", "Its token is not the one of your session. Go back, reload the page and send it again."
    )


def not_found(request: HttpRequest, exception=None) -> HttpResponse:
    return _error(request, 404, "Nothing here", "The address is wrong, the object was deleted, or it belongs to a team you are not in.")


def server_error(request: HttpRequest) -> HttpResponse:
    """The page of last resort: without a database or static files it is plain text, but never a second failure."""
    away = isinstance(sys.exc_info()[1], (OperationalError, InterfaceError))
    status, title = (503, "The database does not answer") if away else (500, "Assay failed to answer")
    text = "The log holds the cause under this request id. Your data is safe; try again in a moment."
    try:
        response = _error(request, status, title, text)
    except Exception:
        logger.exception("the error page could not be rendered")
        plain = f"{title}\n{text}\nRequest {getattr(request, 'id', '')}\n"
        response = HttpResponse(plain, status=status, content_type="text/plain; charset=utf-8")
    if away:
        response["Retry-After"] = str(RETRY_AFTER_S)
    return response
