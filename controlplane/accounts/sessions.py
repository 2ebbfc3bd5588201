"""Whose session a key is, asked outside of a request: by sockets that stay open and by what stands before Django."""

from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from controlplane.accounts.models import User


def user_of_session(key: str | None) -> User | None:
    """The signed-in, active person; None once the session ended, expired, or the password changed since."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(key)
    user = get_user(request)
    return user if user.is_authenticated else None
