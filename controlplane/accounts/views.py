"""Signing in by link, and the settings page: theme, API tokens, members."""

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import logout
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from controlplane.accounts import selectors, services
from controlplane.accounts.choices import Role, Scope
from controlplane.accounts.models import ApiToken, Membership, Team, User
from controlplane.accounts.signed_out import safe_next
from controlplane.api.rate_limit import limited_page
from controlplane.page_errors import whole

# The page that somebody wanted who had to sign in first, while they fetch a link.
NEXT = "next"
NEXT_FOR_S = 3600


def _said(error: ValidationError) -> str:
    return " ".join(error.messages)


# ---------------------------------------------------------------- signing in
@never_cache
@require_safe
def login_page(request: HttpRequest) -> HttpResponse:
    """Says where links come from; the link itself does the signing in, and leads back to `next`."""
    wanted = safe_next(request, request.GET.get("next", ""))
    if request.user.is_authenticated:
        return redirect(wanted or "runs")
    response = render(request, "accounts/login.html", {"embedded": settings.ASSAY_MODE == "embedded"})
    if wanted:
        # Not in a session: each passer-by would leave a row.
        kept = {"path": reverse("login"), "httponly": True, "secure": settings.SESSION_COOKIE_SECURE, "samesite": "Lax"}
        response.set_signed_cookie(NEXT, wanted, max_age=NEXT_FOR_S, **kept)
    return response


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def login_link(request: HttpRequest, token: str) -> HttpResponse:
    """GET only offers the button, so that a link previewer cannot use the link up; POST signs in."""
    if request.method == "POST":
        if services.sign_in_with_link(request, token):
            response = redirect(safe_next(request, request.get_signed_cookie(NEXT, "", max_age=NEXT_FOR_S)) or "runs")
            response.delete_cookie(NEXT, path=reverse("login"))
            return response
        good = False
    else:
        good = services.login_link_is_good(token)
    response = render(request, "accounts/login_link.html", {"good": good}, status=200 if good else 410)
    # Not no-referrer: with it a browser posts Origin null, which the CSRF check refuses. The path, and so the token, stays unsaid.
    response["Referrer-Policy"] = "strict-origin"
    return response


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("login")


# ---------------------------------------------------------------- settings
@never_cache
@login_required
@require_safe
def settings_page(request: HttpRequest) -> HttpResponse:
    return _settings(request)


def _settings(request: HttpRequest, **fresh) -> HttpResponse:
    """The page; `fresh` is a secret that is shown in this answer alone: kept for a next one, it would lie in the session's row."""
    context = {
        "tokens": selectors.tokens_of(request.user),
        "memberships": selectors.memberships_of(request.user),
        "scopes": Scope.choices,
        "roles": Role.choices,
        **fresh,
    }
    return render(request, "accounts/settings.html", context)


@login_required
@require_POST
def set_theme(request: HttpRequest) -> HttpResponse:
    theme = request.POST.get("theme")
    if theme not in dict(User._meta.get_field("theme").choices):
        return HttpResponse(f"theme: {theme!r} is none of system, light, dark", status=400, content_type="text/plain")
    User.objects.filter(pk=request.user.pk).update(theme=theme)
    return HttpResponse(status=204)


@never_cache
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
@limited_page("token")
def create_token(request: HttpRequest) -> HttpResponse:
    """Answers with the page that shows the secret, once. Whoever comes back to its address later is led to the settings."""
    if request.method != "POST":
        return redirect("settings")
    team = get_object_or_404(Team, memberships__user=request.user, pk=whole("team", request.POST.get("team", "")))
    try:
        secret, token = services.create_token(request.user, team, request.POST.get("name", ""), request.POST.getlist("scopes"))
        return _settings(request, fresh_token={"name": token.name, "secret": secret})
    except ValidationError as error:
        messages.error(request, _said(error))
    return redirect("settings")


@login_required
@require_POST
def revoke_token(request: HttpRequest, pk: int) -> HttpResponse:
    token = get_object_or_404(ApiToken.objects.for_user(request.user), pk=pk)
    services.revoke_token(request.user, token)
    messages.success(request, f"Token {token.name} is revoked")
    return redirect("settings")


@never_cache
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
@limited_page("invite")
def invite(request: HttpRequest, team: int) -> HttpResponse:
    """Adds a member; a new account's sign-in link is shown once, as `create_token` shows its secret."""
    if request.method != "POST":
        return redirect("settings")
    team = get_object_or_404(Team, memberships__user=request.user, pk=team)
    try:
        membership, link = services.invite(request.user, team, request.POST.get("username", ""), request.POST.get("role", ""))
        messages.success(request, f"{membership.user.username} is now {membership.role} in {team.name}")
        if link:
            return _settings(request, fresh_link={"username": membership.user.username, "link": link})
    except (ValidationError, ValueError) as error:
        messages.error(request, _said(error) if isinstance(error, ValidationError) else str(error))
    return redirect("settings")


def _membership(request: HttpRequest, pk: int) -> Membership:
    return get_object_or_404(Membership.objects.select_related("team", "user"), team__memberships__user=request.user, pk=pk)


@login_required
@require_POST
def change_role(request: HttpRequest, pk: int) -> HttpResponse:
    membership = _membership(request, pk)
    try:
        services.change_role(request.user, membership, request.POST.get("role", ""))
        messages.success(request, f"{membership.user.username} is now {membership.role}")
    except (ValidationError, ValueError) as error:
        messages.error(request, _said(error) if isinstance(error, ValidationError) else str(error))
    return redirect("settings")


@login_required
@require_POST
def remove_member(request: HttpRequest, pk: int) -> HttpResponse:
    membership = _membership(request, pk)
    try:
        services.remove_member(request.user, membership)
        messages.success(request, f"{membership.user.username} left {membership.team.name}; their tokens of this team are revoked")
    except ValidationError as error:
        messages.error(request, _said(error))
    return redirect("settings")
