"""The evaluate page: a form over the repair banks, and the evaluations that there are; and the result of one."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts.idempotency import KeyBusy, KeyReused, form_token, once, once_per_form
from controlplane.accounts.models import Team
from controlplane.accounts.roles import may
from controlplane.accounts.selectors import team_for
from controlplane.api.rate_limit import limited_page
from controlplane.banks import anchors
from controlplane.banks.models import Bank
from controlplane.checkpoints.models import Checkpoint
from controlplane.episodes.views import find_episode
from controlplane.evals import forms, launching, regrading, results
from controlplane.evals.models import Evaluation
from controlplane.runs.models import Run
from controlplane.runs.run_views import page_context
from runner.contract.builtin_models import BUILTIN_MODELS
from runner.contract.parse import FieldError, InvalidDocument
from runner.contract.states import CheckpointState

RUNS_SHOWN, CHECKPOINTS_SHOWN = 50, 50
AGENTS = (
    ("menu", "A model, by menu"),
    ("terminal", "A model, in a terminal"),
    ("oracle", "Oracle: the task's own solution"),
    ("nop", "Nop: nothing at all"),
)
HINTS = (("L1", "L1: file and line"), ("L2", "L2: the file"), ("L3", "L3: none"))
SPLITS = (("", "All that can run"), ("eval", "Held out"), ("train", "Trained on"))


@login_required
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@limited_page("launch")
def evaluate(request: HttpRequest) -> HttpResponse:
    """The form; posted, the evaluation that it describes is queued and its page opens."""
    team = team_for(request.user, request.GET.get("team"))
    return _submit(request, team) if request.method == "POST" else _form(request, team, _again(request))


def _submit(request: HttpRequest, team: Team) -> HttpResponse:
    """Queue once a form token; on refusal show the same form with what is wrong."""
    document, errors = forms.read(request.POST)
    if errors:
        return _form(request, team, request.POST, errors)
    described = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    try:
        _, run, replayed = once(
            request.user,
            "POST /evaluate",
            form_token(request),
            described,
            lambda: (201, str(launching.launch(request.user, team, document).pk)),
        )
    except InvalidDocument as invalid:
        return _form(request, team, request.POST, invalid.errors)
    except (KeyReused, KeyBusy):
        told = "this page already started an evaluation with other values; check the form and send it again to start a second one"
        return _form(request, team, request.POST, [FieldError("", told)], 409)
    if replayed:
        messages.info(request, "This form was already submitted; here is its evaluation.")
    return redirect("run-evaluation", run)


@login_required
@never_cache
@require_POST
def check(request: HttpRequest) -> HttpResponse:
    """What the form comes to before anything is spent: how many episodes, what is wrong, what to know."""
    document, unreadable = forms.read(request.POST)
    checked = launching.check(request.user, team_for(request.user, request.GET.get("team")), document)
    pointers = {error.pointer for error in unreadable}
    errors = [*unreadable, *(error for error in checked.errors if error.pointer not in pointers)]
    if not request.POST.get("model", "").strip():  # not chosen yet is not wrong yet
        errors = [error for error in errors if not error.pointer.startswith("/model")]
    return render(request, "evaluate/_check.html", {"checked": checked, "errors": errors})


def _form(
    request: HttpRequest, team: Team, typed: Mapping[str, Any], errors: Sequence[FieldError] = (), refusal: int = 422
) -> HttpResponse:
    banks = [bank for bank in Bank.objects.filter(team=team, environment=anchors.REPAIR, archived_at=None).order_by("slug")]
    runs = list(results.evaluation_runs(request.user)[:RUNS_SHOWN])
    context = {
        "banks": banks,
        **{"agents": AGENTS, "hints": HINTS, "splits": SPLITS},
        "may_launch": may(request.user, team, "run.launch"),
        "checkpoints": _checkpoints(team),
        "builtin": list(BUILTIN_MODELS),
        "runs": results.with_results(runs),
        "typed": typed,
        "errors": errors,
    }
    return render(request, "evaluate/evaluate.html", context, status=refusal if errors else 200)


def _again(request: HttpRequest) -> dict:
    """What is filled in at first: an earlier evaluation, or a bank that another page named."""
    if again := request.GET.get("again"):
        run = get_object_or_404(results.evaluation_runs(request.user), pk=again)
        return forms.typed_of(json.loads(bytes(run.config)))
    return {name: request.GET.get(name, "") for name in ("bank", "agent", "model", "tasks")}


def _checkpoints(team) -> list[Checkpoint]:
    found = Checkpoint.objects.filter(run__project__team=team, run__environment=anchors.REPAIR, state=CheckpointState.COMPLETE)
    return list(found.select_related("run").order_by("-completed_at")[:CHECKPOINTS_SHOWN])


@login_required
@require_POST
@limited_page("launch")
def regrade(request: HttpRequest, pk) -> HttpResponse:
    """A fresh verifier over what an episode delivered."""
    return _about(request, pk, regrading.regrade, "is queued to be graded once more")


@login_required
@require_POST
@limited_page("launch")
def run_again(request: HttpRequest, pk) -> HttpResponse:
    """The same task once more, under the same config."""
    return _about(request, pk, regrading.run_again, "is queued to run again")


def _about(request: HttpRequest, pk, verb: Callable, said: str) -> HttpResponse:
    episode = find_episode(request, pk)
    try:
        _, replayed = once_per_form(request, lambda: str(verb(request.user, episode).pk))
        told = messages.info if replayed else messages.success
        told(request, f"This was already asked for: {episode.task} {said}" if replayed else f"{episode.task} {said}")
    except ValidationError as error:
        messages.error(request, " ".join(error.messages))
    except InvalidDocument as invalid:
        messages.error(request, "; ".join(map(str, invalid.errors)))
    return redirect("episode", pk=pk)


def containers(request: HttpRequest, run: Run) -> HttpResponse:
    """The result of an evaluation in containers: figures with intervals, by category and family, task by task, beside others."""
    found = Evaluation.objects.filter(run=run).select_related("protocol").first()
    context = page_context(request, run, "evaluation") | {"config": json.loads(bytes(run.config)), "evaluation": found}
    if found:
        records = results.records_of(found)
        context |= {
            "summary": results.summary_of(found, records),
            "records": records[: results.SHOWN],
            "hidden": max(0, len(records) - results.SHOWN),
            "standing": results.standing(request.user, found),
        }
    return render(request, "evaluate/result.html", context)
