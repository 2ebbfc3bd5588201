"""What every page knows: the themes on offer, and whether the reconciler is alive."""

from django.http import HttpRequest

from controlplane.cluster.selectors import tick_age

THEMES = (("system", "System theme", "system"), ("light", "Light", "sun"), ("dark", "Dark", "moon"))


def page(request: HttpRequest) -> dict:
    """Context processor of every page."""
    context = {"themes": THEMES}
    if getattr(request, "user", None) and request.user.is_authenticated:
        context["reconciler"] = tick_age()
    return context
