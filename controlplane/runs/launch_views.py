"""The launch page: a form made from the schema, checked while it is filled in."""

import hashlib
import uuid

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import BadRequest
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts.idempotency import KeyBusy, KeyReused, form_token, once
from controlplane.accounts.roles import require
from controlplane.accounts.selectors import team_for
from controlplane.api.rate_limit import limited_page
from controlplane.page_errors import whole
from controlplane.runs import forms, selectors
from controlplane.runs.forms.text import as_cli, as_python, as_yaml
from controlplane.runs.launch import Checked, check_launch
from controlplane.runs.models import Run
from controlplane.runs.services import do_launch
from runner.contract.parse import FieldError, InvalidDocument
from runner.contract.presets import PRESETS, Preset, find

BLANK = {"name": "", "stages": [{"type": "grpo"}]}
# What a newcomer sees: a run that is ready to launch.
FIRST = "sample"
DOORS = (("yaml", "YAML", as_yaml), ("cli", "Command line", as_cli), ("python", "Python", as_python))


# A browser that comes Back gets a fresh page for what it kept: a stored one would hold a form token of another session.
@never_cache
@login_required
@require_http_methods(["GET", "HEAD", "POST"])
@limited_page("launch")
def launch(request: HttpRequest) -> HttpResponse:
    """The form; posted, the run. A second submission of the same page leads to the first one's run."""
    require(request.user, team_for(request.user, request.GET.get("team")), "run.launch")
    if request.method == "POST":
        return _submit(request)
    parent = _parent(request.GET.get("clone"), request)
    document = parent.document if parent else _starting_document(request.GET.get("preset") or FIRST)
    return _page(request, forms.build_form(document), document, parent)


def _starting_document(preset: str) -> dict:
    try:
        return BLANK if preset == "blank" else find(preset).start()
    except KeyError as error:
        raise Http404(error.args[0]) from None


def _parent(identifier: str | None, request: HttpRequest) -> Run | None:
    if not identifier:
        return None
    try:
        pk = uuid.UUID(identifier)
    except ValueError:
        raise Http404("no such run") from None
    # An evaluation is made on a page of its own.
    return get_object_or_404(Run.objects.for_user(request.user).filter(kind="training"), pk=pk)


def _page(request: HttpRequest, form: forms.Form, document: dict, parent: Run | None, status: int = 200) -> HttpResponse:
    preset = _preset_of(document)
    context = {
        "form": form,
        "parent": parent,
        "preset": preset,
        "presets": PRESETS.values(),
        "sources": preset.sources if preset else {},
        "team": request.GET.get("team", ""),
        "doors": [(key, label) for key, label, _ in DOORS],
    }
    return render(request, "launch/launch.html", context, status=status)


def _preset_of(document: dict) -> Preset | None:
    label = document.get("preset")
    return PRESETS.get(label.partition("@")[0]) if isinstance(label, str) else None


def _submit(request: HttpRequest) -> HttpResponse:
    """Launch once a form token; on refusal show the same form with each error at its field."""
    posted = forms.read_post(request.POST)
    parent = _parent(request.POST.get("parent"), request)
    team = team_for(request.user, request.GET.get("team"))
    try:
        if posted.errors:
            raise InvalidDocument(posted.check()[1])
        status, run, replayed = once(
            request.user,
            "POST /launch",
            form_token(request),
            _fingerprint(posted.document),
            lambda: (201, str(do_launch(request.user, team, posted.document, parent).pk)),
        )
    except InvalidDocument as invalid:
        return _refuse(request, posted, parent, invalid.errors)
    except (KeyReused, KeyBusy):
        error = FieldError("", "this page already launched a run with other values; check the form and launch again to start a second one")
        return _refuse(request, posted, parent, [error], 409)
    if replayed:
        messages.info(request, "This form was already submitted; here is its run.")
    return redirect(reverse("run", args=[run]))


def _fingerprint(document: dict) -> str:
    return hashlib.sha256(as_yaml(document).encode()).hexdigest()


def _refuse(request: HttpRequest, posted: forms.Posted, parent: Run | None, errors: list[FieldError], status: int = 422) -> HttpResponse:
    return _page(request, forms.build_form(posted.document, errors, posted.typed), posted.document, parent, status)


@login_required
@require_POST
def check(request: HttpRequest) -> HttpResponse:
    """The rail: what the document costs and what is wrong with it, before anything is spent."""
    posted = forms.read_post(request.POST)
    parent = _parent(request.POST.get("parent"), request)
    checked = check_launch(request.user, team_for(request.user, request.GET.get("team")), posted.document, with_forecast=True)
    unreadable = {error.pointer for error in posted.errors}
    errors = [*posted.errors, *(error for error in checked.errors if error.pointer not in unreadable)]
    context = {
        "checked": checked,
        "missing": bool(errors) and all(_is_missing(error, posted) for error in errors),
        "errors": errors,
        "found": [{"pointer": error.pointer, "message": error.message, "missing": _is_missing(error, posted)} for error in errors],
        "changes": _changes(parent, posted.document, checked) if parent else [],
        "parent": parent,
    }
    return render(request, "launch/_rail.html", context)


def _is_missing(error: FieldError, posted: forms.Posted) -> bool:
    """Whether it is about an input that was left empty and has no default: that is not wrong yet, only not done."""
    return error.value is None and posted.typed.get(error.pointer) == [""]


def _changes(parent: Run, document: dict, checked: Checked) -> list[forms.Change]:
    """How the resolved documents differ: a default that one of them spells out is no change. Before it can be resolved, how the written ones do."""
    if checked.config is None:
        return forms.diff(parent.document, document)
    return forms.diff(selectors.resolved_document(parent), checked.config.model_dump(mode="json"))


@login_required
@require_POST
def fields(request: HttpRequest) -> HttpResponse:
    """Every field as it was filled in: the browser kept that, and comes back to a page that starts from its preset again."""
    posted = forms.read_post(request.POST)
    preset = _preset_of(posted.document)
    context = {"form": forms.build_form(posted.document, (), posted.typed), "sources": preset.sources if preset else {}}
    return render(request, "launch/_sections.html", context)


@login_required
@require_POST
def union(request: HttpRequest) -> HttpResponse:
    """One union of the form as another variant; values of fields of the same name stay."""
    pointer = request.GET.get("pointer", "")
    try:
        field = forms.subtree(pointer, request.POST.get(f"{pointer}/type", ""), request.POST)
    except KeyError as error:
        raise BadRequest(f"{pointer:.200}: {error.args[0]}") from None
    return render(request, "launch/_field.html", {"field": field})


@login_required
@require_POST
def stages(request: HttpRequest) -> HttpResponse:
    """The list of stages with one added, removed or moved."""
    posted = forms.read_post(_changed_stages(request))
    return render(request, "launch/_field.html", {"field": forms.build_form(posted.document, (), posted.typed).field("/stages")})


def _changed_stages(request: HttpRequest) -> dict[str, list[str]]:
    act, index = request.GET.get("act"), whole("index", request.GET.get("index", "0"))
    try:
        if act == "add":
            return forms.add_item(request.POST, "/stages", request.GET.get("type", ""))
        if act == "remove":
            return forms.remove_item(request.POST, "/stages", index)
        if act in ("up", "down"):
            return forms.move_item(request.POST, "/stages", index, -1 if act == "up" else 1)
    except KeyError as error:
        raise BadRequest(error.args[0]) from None
    raise BadRequest("act must be add, remove, up or down")


@login_required
@require_POST
def text(request: HttpRequest) -> HttpResponse:
    """The document that the form says, in the words of another door."""
    doors = {key: write for key, _, write in DOORS}
    door = request.GET.get("door", "")
    if door not in doors:
        raise Http404(f"no door {door!r}")
    return render(request, "launch/_text.html", {"text": doors[door](forms.read_post(request.POST).document)})
