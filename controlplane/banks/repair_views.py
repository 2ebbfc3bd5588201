"""What repair banks add to the pages: the anchors' state and the nodes' warmth while they change, and the quarantine of a task."""

from collections import Counter

from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from controlplane.accounts.idempotency import once_per_form
from controlplane.accounts.roles import may, may_each, require
from controlplane.api.rate_limit import limited_page
from controlplane.banks import anchors, warming
from controlplane.banks.models import BankVersion
from controlplane.banks.selectors import finding
from controlplane.evals.launching import start_proving, start_warming
from controlplane.runs.services import request_stop
from runner.contract.anchors import AnchorState
from runner.contract.warming import CONCURRENCY, WARM_SECONDS


@login_required
@require_GET
def bank_anchors(request: HttpRequest, bank: str, number: int) -> HttpResponse:
    """The anchors' part of a version's page; it asks again while they run."""
    return render(request, "banks/_anchors.html", anchors_context(request, _version(request, bank, number)))


def anchors_context(request: HttpRequest, version: BankVersion, wrong: str = "") -> dict:
    """What `_anchors.html` shows of a version."""
    checks = anchors.newest_checks(version)
    may_prove, may_quarantine = may_each(request.user, version.bank.team, "bank.prove", "bank.quarantine")
    found = anchors.summary(version, checks)
    shown = {"anchors": found, "anchor_rows": anchors.rows(version, checks)}
    shown |= {"proof": anchors.proofs(version).first(), "may_prove": may_prove, "may_quarantine": may_quarantine}
    # That results are missing is what is being mended while they come in.
    known = ("W11",) if found.state == AnchorState.PROVING else ()
    here = Counter(code for _, code, _ in anchors.found_here(version, checks) if code not in known)
    told = [finding(code, f"{n} tasks") for code, n in sorted(here.items())]
    return shown | {"bank": version.bank, "version": version, "anchors_wrong": wrong, "found_here": told}


@login_required
@require_POST
@limited_page("launch")
def bank_prove(request: HttpRequest, bank: str, number: int) -> HttpResponse:
    """Run oracle and nop on every task of the version."""
    version = _version(request, bank, number)
    try:
        once_per_form(request, lambda: str(start_proving(request.user, version).pk))
    except ValidationError as error:
        return render(request, "banks/_anchors.html", anchors_context(request, version, " ".join(error.messages)), status=422)
    return _shown(request, _version(request, bank, number))


@login_required
@require_POST
def bank_stop_proving(request: HttpRequest, bank: str, number: int) -> HttpResponse:
    """End the run that proves the version, if one does; the results that it has brought stay."""
    version = _version(request, bank, number)
    require(request.user, version.bank.team, "bank.prove")
    if run := anchors.proofs(version).filter(state__in=anchors.UNDER_WAY).first():
        request_stop(request.user, run)
    return _shown(request, version)


def _shown(request: HttpRequest, version: BankVersion) -> HttpResponse:
    if request.headers.get("HX-Request"):
        return render(request, "banks/_anchors.html", anchors_context(request, version))
    return redirect(f"{reverse('bank-version', args=[version.bank.slug, version.number])}#anchors")


@login_required
@require_GET
def bank_warmth(request: HttpRequest, bank: str, number: int) -> HttpResponse:
    """The nodes' part of a version's page; it asks again while one is being warmed."""
    return render(request, "banks/_warming.html", warming_context(request, _version(request, bank, number)))


def warming_context(request: HttpRequest, version: BankVersion, wrong: str = "") -> dict:
    """What `_warming.html` shows of a version."""
    nodes = warming.nodes(version)
    busy = any(node.state == "warming" for node in nodes)
    is_any_ready = any(node.is_ready for node in nodes)
    more = {"bank": version.bank, "version": version, "may_warm": may(request.user, version.bank.team, "bank.warm"), "is_any_ready": is_any_ready}
    return more | {"nodes": nodes, "is_warming": busy, "warming_wrong": wrong, "limit": WARM_SECONDS, "at_once": CONCURRENCY}


@login_required
@require_POST
@limited_page("launch")
def bank_warm(request: HttpRequest, bank: str, number: int) -> HttpResponse:
    """Run nop over the version's tasks on every ready node."""
    version = _version(request, bank, number)
    try:
        once_per_form(request, lambda: [str(run.pk) for run in start_warming(request.user, version)])
    except ValidationError as error:
        return render(request, "banks/_warming.html", warming_context(request, version, " ".join(error.messages)), status=422)
    return _warmth_shown(request, version)


@login_required
@require_POST
def bank_stop_warming(request: HttpRequest, bank: str, number: int) -> HttpResponse:
    """End the runs that warm nodes for the version; what they have warmed stays."""
    version = _version(request, bank, number)
    require(request.user, version.bank.team, "bank.warm")
    for run in warming.warmings(version).filter(state__in=anchors.UNDER_WAY, stop_requested_at=None):
        request_stop(request.user, run)
    return _warmth_shown(request, version)


def _warmth_shown(request: HttpRequest, version: BankVersion) -> HttpResponse:
    if request.headers.get("HX-Request"):
        return render(request, "banks/_warming.html", warming_context(request, version))
    return redirect(f"{reverse('bank-version', args=[version.bank.slug, version.number])}#warmth")


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
    return _shown(request, version)


def _version(request: HttpRequest, bank: str, number: int) -> BankVersion:
    team = {"bank__team__slug": request.GET["team"]} if request.GET.get("team") else {}
    versions = BankVersion.objects.for_user(request.user).select_related("bank__team")
    return get_object_or_404(versions, bank__slug=bank, bank__environment=anchors.REPAIR, number=number, **team)
