"""Who is calling: a browser's session (with CSRF) or an API token."""

from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from ninja.security import HttpBearer
from ninja.security.apikey import APIKeyCookie
from ninja.utils import check_csrf

from controlplane.accounts.choices import Role
from controlplane.accounts.models import User
from controlplane.accounts.roles import RANK, token_role
from controlplane.accounts.services import authenticate_token

SAFE = ("GET", "HEAD", "OPTIONS")


def identify(request: HttpRequest) -> User | None:
    """The caller, asked once a request; None for a stranger. Sets `request.user`, narrowed to the token if one was sent.

    A bad token is refused even when a session cookie comes along. Raises PermissionDenied for a write with a
    read-only token, and for a session without its CSRF token.
    """
    if not hasattr(request, "caller"):
        request.caller = _by_token(request) if "Authorization" in request.headers else _by_session(request)
    return request.caller


def _by_token(request: HttpRequest) -> User | None:
    scheme, _, text = request.headers["Authorization"].partition(" ")
    user = authenticate_token(text.strip()) if scheme.lower() == "bearer" else None
    request.user = user or AnonymousUser()
    if user and request.method not in SAFE and RANK[token_role(user.token.scopes)] < RANK[Role.MEMBER]:
        raise PermissionDenied("this token may only read; create one with the scope submit")
    return user


def _by_session(request: HttpRequest) -> User | None:
    if not request.user.is_authenticated:
        return None
    # Ninja's views are exempt from Django's own check, because tokens need none; it passes safe methods by itself.
    if check_csrf(request) is not None:
        raise PermissionDenied("the CSRF token is missing or wrong; send it as X-CSRFToken")
    return request.user


class Bearer(HttpBearer):
    """Authorization: Bearer assay_…"""

    def __call__(self, request):
        return identify(request) if "Authorization" in request.headers else None

    def authenticate(self, request, token):
        return identify(request)


class Session(APIKeyCookie):
    """The cookie of a signed-in browser."""

    param_name = "sessionid"

    def __call__(self, request):
        return None if "Authorization" in request.headers else identify(request)

    def authenticate(self, request, key):
        return identify(request)
