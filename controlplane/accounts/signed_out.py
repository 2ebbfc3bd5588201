"""Who is signed out meanwhile: what a page answers when only a part of it was asked for, and the way back to it after signing in."""

from urllib.parse import urlencode, urlsplit, urlunsplit

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.decorators import sync_and_async_middleware
from django.utils.http import url_has_allowed_host_and_scheme

LONGEST = 2000


def is_part(request: HttpRequest) -> bool:
    """Whether a script asks, that puts the answer into a page: htmx, or our own fetch."""
    return "HX-Request" in request.headers or request.headers.get("X-Requested-With") == "XMLHttpRequest"


def safe_next(request: HttpRequest, address: str) -> str:
    """`address` as a path of ours; empty when it leads to another site, or is none."""
    if len(address) > LONGEST or not url_has_allowed_host_and_scheme(address, {request.get_host()}):
        return ""
    parts = urlsplit(address)
    path = urlunsplit(("", "", parts.path, parts.query, ""))
    # A path with two slashes in front would be read as a host.
    return path if path.startswith("/") and not path.startswith("//") else ""


@sync_and_async_middleware
def signed_out_middleware(get_response):
    """To whom a page sends somebody to sign in: scripts are told 401 and where, and what was sent leads back to the page it was sent from.

    Scripts follow a redirect unseen, and would put the whole sign-in page into a table. The address of a form's action is no page.
    """
    if iscoroutinefunction(get_response):

        async def serve(request):
            return _led_back(request, await get_response(request))

    else:

        def serve(request):
            return _led_back(request, get_response(request))

    return serve


def _led_back(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    if not isinstance(response, HttpResponseRedirect) or (request.method in ("GET", "HEAD") and not is_part(request)):
        return response
    login = reverse("login")
    if not response.url.startswith(f"{login}?"):
        return response
    here = safe_next(request, request.headers.get("HX-Current-URL") or request.headers.get("Referer", ""))
    address = f"{login}?{urlencode({'next': here})}" if here else login
    if not is_part(request):
        return HttpResponseRedirect(address)
    headers = {"HX-Redirect": address, "Cache-Control": "no-store"}
    return HttpResponse("You are signed out.", status=401, content_type="text/plain; charset=utf-8", headers=headers)
