"""What repair banks add to the pages: the anchors' state while it changes, and the quarantine of a task."""

from collections import Counter

from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from controlplane.accounts.roles import may
from controlplane.banks import anchors
from controlplane.banks.models import BankVersion
from controlplane.banks.selectors import finding


@login_required
@require_GET
def bank_anchors(request: HttpRequest, bank: str, number: int) -> HttpResponse:
    """The anchors' part of a version's page; it asks again while they run."""
    return render(request, "banks/_anchors.html", anchors_context(request, _version(request, bank, number)))


def anchors_context(request: HttpRequest, version: BankVersion, wrong: str = "") -> dict:
    """What `_anchors.html` shows of a version."""
    checks = anchors.newest_checks(version)
    allowed = may(request.user, version.bank.team, "bank.quarantine")
    shown = {"anchors": anchors.summary(version, checks), "anchor_rows": anchors.rows(version, checks)}
    here = Counter(code for _, code, _ in anchors.found_here(version, checks))
    told = [finding(code, f"{n} tasks") for code, n in sorted(here.items())]
    return shown | {"bank": version.bank, "version": version, "may_quarantine": allowed, "anchors_wrong": wrong, "found_here": told}


@login_required
@require_POST
def bank_quarantine(request: HttpRequest, bank: str, number: int) -> HttpResponse:
    """Take a task out, or with `release` let it back in."""
    version, given = _version(request, bank, number), request.POST
    try:
        if given.get("release"):
            anchors.release(request.user, version, given.get("task", ""))
        else:
            anchors.quarantine(request.user, version, given.get("task", ""), given.get("reason", ""))
    except ValidationError as error:
        return render(request, "banks/_anchors.html", anchors_context(request, version, " ".join(error.messages)), status=422)
    if request.headers.get("HX-Request"):
        return render(request, "banks/_anchors.html", anchors_context(request, version))
    return redirect(f"{reverse('bank-version', args=[bank, number])}#anchors")


def _version(request: HttpRequest, bank: str, number: int) -> BankVersion:
    team = {"bank__team__slug": request.GET["team"]} if request.GET.get("team") else {}
    versions = BankVersion.objects.for_user(request.user).select_related("bank__team")
    return get_object_or_404(versions, bank__slug=bank, bank__environment=anchors.REPAIR, number=number, **team)
