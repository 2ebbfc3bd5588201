"""Episodes of a run: the browser, one episode down to its tokens, two side by side."""

import json

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST
from pydantic import ValidationError

from controlplane.accounts.roles import may, require
from controlplane.api.pagination import Paging
from controlplane.api.problems import Problem
from controlplane.episodes import selectors, services
from controlplane.episodes.api import EpisodeQuery
from controlplane.episodes.container_facts import container_facts
from controlplane.episodes.models import Episode
from controlplane.page_errors import whole
from controlplane.runs.run_views import find_run, page_context
from runner.contract.episode import Author

ROWS = 50
TURNS = 200
FIRST_TURNS = 40
"""What a page opens with: several screens, painted before the rest is asked for, at once and by the page itself."""
LISTS = ("termination", "state", "domain", "filters")
QUICK = (
    ("All", ""),
    ("Failed", "failed=true"),
    ("Reward missing", "missing=true"),
    ("Not parsed", "parsed=false"),
    ("At the cap", "termination=max_response_length_exceeded"),
    ("Training", "purpose=train"),
    ("Held out", "purpose=eval"),
)
CHANNELS = (
    ("logprob", "Sampling log-prob"),
    ("learner_logprob", "Learner log-prob"),
    ("difference", "Learner − sampler"),
    ("advantage", "Advantage"),
    ("entropy", "Entropy"),
    ("teacher_logprob", "Teacher log-prob"),
)


def read_query(parameters: QueryDict) -> EpisodeQuery:
    """The conditions in a URL. Raises BadRequest naming the parameter."""
    known = {
        name: parameters.getlist(name) if name in LISTS else parameters[name] for name in EpisodeQuery.model_fields if parameters.get(name)
    }
    try:
        return EpisodeQuery.model_validate(known)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadRequest(f"{first['loc'][0]}: {first['msg']}") from None


@login_required
@require_GET
def episodes(request: HttpRequest, pk) -> HttpResponse:
    """The tab of a run: filters in the URL, facets with counts, 50 rows a page."""
    run = find_run(request, pk)
    wanted = read_query(request.GET).filter()
    rows = Episode.objects.filter(run=run)
    matching = selectors.filter_episodes(rows, wanted)
    try:
        page = Paging(cursor=request.GET.get("cursor") or None, limit=ROWS).page(matching, *selectors.ORDER)
    except (Problem, ValidationError):
        raise BadRequest("cursor: not one of ours; start from the first page") from None
    population, facets = selectors.counted(rows, wanted)
    kept = request.GET.copy()
    kept.pop("cursor", None)
    context = {
        "run": run,
        "rows": page["items"],
        "next": page["next"],
        "population": population,
        "facets": _facets(facets, request.GET),
        "quick": [(label, query, _is_chosen(query, kept)) for label, query in QUICK],
        "query": kept.urlencode(),
        "narrowed": bool(kept),
    }
    if request.headers.get("HX-Target") == "episode-results":
        return render(request, "episodes/_results.html", context)
    return render(request, "episodes/list.html", page_context(request, run, "episodes") | context)


def _is_chosen(query: str, parameters: QueryDict) -> bool:
    return parameters.urlencode() == query


def _facets(found: dict[str, list[tuple]], parameters: QueryDict) -> list[dict]:
    shown = []
    for name, values in found.items():
        chosen = set(parameters.getlist(name))
        options = [
            {"value": _word(value), "episodes": n, "chosen": _word(value) in chosen} for value, n in values if value not in (None, "")
        ]
        if len(options) > 1 or chosen:
            shown.append({"name": name, "options": options, "many": name in LISTS, "chosen": bool(chosen)})
    return shown


def _word(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def find_episode(request: HttpRequest, pk) -> Episode:
    found = Episode.objects.for_user(request.user).select_related("run__project__team")
    return get_object_or_404(found, pk=pk)


@login_required
@require_GET
def episode(request: HttpRequest, pk) -> HttpResponse:
    """One episode: transcript, tokens, grade, siblings. The query of the browser travels along for its neighbours."""
    found = find_episode(request, pk)
    matching = selectors.filter_episodes(Episode.objects.filter(run=found.run_id), read_query(request.GET).filter())
    before, after = selectors.neighbours(matching, found)
    # A page that reads itself again must not shrink under its reader.
    first = TURNS if request.headers.get("X-Requested-With") else FIRST_TURNS
    turns = selectors.turns_of(found, limit=first)
    context = {
        "episode": found,
        "run": found.run,
        "turns": turns,
        "more": turns[-1].index if len(turns) == first else None,
        "more_when": "load" if first == FIRST_TURNS else "revealed",
        "siblings": list(selectors.siblings(found)[:64]),
        "before": before,
        "after": after,
        "query": request.GET.urlencode(),
        "labels": found.labels.select_related("user").order_by("id"),
        "channels": CHANNELS,
        "authors": [(author.value, author.name.lower()) for author in Author],
        "container": container_facts(found, selectors.check_floors(found)),
        "may_launch": may(request.user, found.run.project.team, "run.launch"),
        "evidence": json.dumps(found.evidence, indent=2, ensure_ascii=False) if found.evidence else "",
        "may_label": may(request.user, found.run.project.team, "episode.label"),
    }
    return render(request, "episodes/episode.html", context)


@login_required
@require_GET
def more_turns(request: HttpRequest, pk) -> HttpResponse:
    """The next turns of a long transcript."""
    found = find_episode(request, pk)
    turns = selectors.turns_of(found, after=whole("after", request.GET.get("after", "")), limit=TURNS)
    more = turns[-1].index if len(turns) == TURNS else None
    return render(request, "episodes/_turns.html", {"episode": found, "turns": turns, "more": more, "more_when": "revealed"})


@login_required
@require_GET
def compare(request: HttpRequest, pk, other) -> HttpResponse:
    """Two episodes aligned turn by turn, changed turns word by word."""
    left, right = find_episode(request, pk), find_episode(request, other)
    pairs = selectors.compare_turns(*(selectors.turns_of(found, limit=selectors.MAX_DIFF_TURNS) for found in (left, right)))
    return render(request, "episodes/compare.html", {"left": left, "right": right, "pairs": pairs, "run": left.run})


@login_required
@require_POST
def label(request: HttpRequest, pk) -> HttpResponse:
    found = find_episode(request, pk)
    require(request.user, found.run.project.team, "episode.label")
    try:
        services.label_episode(request.user, found, request.POST.get("name", "").strip(), request.POST.get("comment", "").strip())
    except ValueError as error:
        messages.error(request, str(error))
    return redirect("episode", pk=pk)
