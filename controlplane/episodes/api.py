"""REST: episodes by filter with facets, their turns and tokens, siblings, labels, export."""

from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema, Status

from controlplane.accounts.services import require
from controlplane.api.pagination import Page, Paging
from controlplane.api.problems import Problem
from controlplane.api.schemas import Input
from controlplane.columns import column_response
from controlplane.episodes import selectors, services, traces
from controlplane.episodes.models import Episode
from controlplane.runs.models import Run
from runner.contract.parse import FieldError
from runner.contract.states import EpisodeState
from runner.contract.termination import Termination

router = Router(tags=["episodes"])

Number = float | Literal["NaN", "Infinity", "-Infinity"]
Whole = Field(None, ge=0, lt=2**31)
Step = Field(None, ge=0, le=2**53)


# ---------------------------------------------------------------- answers
class EpisodeOut(Schema):
    id: UUID
    run_id: UUID
    attempt: int
    state: str
    stage: int
    step: int
    group: int
    sample: int
    purpose: str
    evaluation: UUID | None
    task: str
    domain: str
    worker: str
    policy_version: int | None
    policy_version_end: int | None
    termination: str
    prompt_tokens: int | None
    response_tokens: int | None
    turns: int | None
    seconds: Number | None
    score: Number | None = Field(description="The trusted reward; null is missing, never 0.")
    parsed: bool | None
    grade_reason: str
    advantage: Number | None
    trained_step: int | None
    trained_tokens: int | None
    masked: bool | None
    filters: list[str]
    started_at: datetime | None
    finished_at: datetime | None


class EpisodeDetail(EpisodeOut):
    seed: int | None
    error: str
    checks: dict
    evidence: dict
    facts: dict = Field(description="How it went, as its environment tells: seconds by phase, node, folder, what was delivered.")
    grader: str
    grade_ordinal: int | None
    graded_score: Number | None = Field(description="What the grader said, trusted or not.")
    sampled: str
    trained: str
    token_texts: str


class TurnOut(Schema):
    index: int
    role: str
    author: str
    text: str
    tokens: int | None
    reward: Number | None
    facts: dict[str, Any] = Field(description="What the environment told beside the text.")
    credit: dict[str, Any] | None = Field(description="Both parts of the turn's advantage, and the step-level group it was compared in.")


class TurnPage(Schema):
    items: list[TurnOut]
    next: int | None = Field(description="Pass as `after` for the next page.")


class TokensOut(Schema):
    """Equally long columns; null where a column was not recorded, null inside one where a token has no value."""

    total: int
    first: int = Field(alias="from")
    last: int = Field(alias="to")
    token_id: list[int] | None
    logprob: list[float | None] | None
    author: list[int] | None
    mask: list[int] | None
    learner_logprob: list[float | None] | None
    teacher_logprob: list[float | None] | None
    advantage: list[float | None] | None
    entropy: list[float | None] | None
    trained_mask: list[int] | None
    text: list[str] | None


class FacetValue(Schema):
    value: str | int | bool | None
    episodes: int


class FacetsOut(Schema):
    episodes: int
    graded: int
    mean_reward: float | None = Field(description="Over the graded episodes; null when none is.")
    facets: dict[str, list[FacetValue]]


class LabelOut(Schema):
    id: int
    name: str
    comment: str
    user: str | None
    created_at: datetime


class NewLabel(Input):
    name: str = Field("", max_length=60)
    comment: str = Field("", max_length=10_000)


class PieceOut(Schema):
    kind: Literal["equal", "changed"]
    left: str
    right: str


class TurnPairOut(Schema):
    kind: Literal["equal", "changed", "left", "right"]
    left: TurnOut | None
    right: TurnOut | None
    pieces: list[PieceOut]


# ---------------------------------------------------------------- questions
class EpisodeQuery(Schema):
    """Conditions of the browser; absent ones do not restrict."""

    termination: list[Literal[tuple(Termination)]] = Field([], max_length=50)
    purpose: Literal["train", "eval"] | None = None
    state: list[Literal[tuple(EpisodeState)]] = Field([], max_length=50)
    stage: int | None = Whole
    attempt: int | None = Field(None, ge=1, le=32767)
    evaluation: UUID | None = None
    first_step: int | None = Step
    last_step: int | None = Step
    group: int | None = Whole
    reward_min: float | None = None
    reward_max: float | None = None
    missing: bool | None = Field(None, description="Only episodes without a reward, or only those with one.")
    parsed: bool | None = None
    failed: bool | None = Field(None, description="A score of 0 or less, an unparsed answer, or an end that no reward may follow.")
    task: str = Field("", max_length=200)
    domain: list[str] = Field([], max_length=50)
    filters: list[str] = Field([], max_length=50)
    label: str = Field("", max_length=60)
    search: str = Field("", max_length=200, description='Words of a turn; "a phrase", or, -not.')

    def filter(self) -> selectors.Filter:
        return selectors.Filter(**self.dict())


class TurnQuery(Schema):
    after: int = Field(-1, ge=-1, lt=2**31)
    limit: int = Field(200, ge=1, le=1000)


class TokenQuery(Schema):
    first: int = Field(0, ge=0, lt=2**31, alias="from")
    last: int | None = Field(
        None, ge=0, lt=2**31, alias="to", description=f"Beyond the last token wanted; at most {traces.MAX_TOKENS} are sent."
    )


# ---------------------------------------------------------------- endpoints
@router.get("/runs/{uuid:run_id}/episodes", response=Page[EpisodeOut])
def list_episodes(request: HttpRequest, run_id: UUID, paging: Query[Paging], query: Query[EpisodeQuery]):
    """Episodes of a run, newest step first, groups side by side."""
    page = paging.page(selectors.filter_episodes(_episodes(request, run_id), query.filter()), *selectors.ORDER)
    return {"items": [selectors.summary(episode) for episode in page["items"]], "next": page["next"]}


@router.get("/runs/{uuid:run_id}/episodes/facets", response=FacetsOut)
def count_episodes(request: HttpRequest, run_id: UUID, query: Query[EpisodeQuery]):
    """How many episodes the conditions leave, and how many each other value of a facet would."""
    population, facets = selectors.counted(_episodes(request, run_id), query.filter())
    return {
        **asdict(population),
        "facets": {name: [{"value": value, "episodes": n} for value, n in found] for name, found in facets.items()},
    }


@router.get("/episodes/{uuid:episode_id}", response=EpisodeDetail)
def get_episode(request: HttpRequest, episode_id: UUID):
    return selectors.detail(_episode(request, episode_id))


@router.get("/episodes/{uuid:episode_id}/turns", response=TurnPage)
def list_turns(request: HttpRequest, episode_id: UUID, query: Query[TurnQuery]):
    """Turns in order, their text whole."""
    turns = selectors.turns_of(_episode(request, episode_id), query.after, query.limit)
    return {"items": [selectors.turn_row(turn) for turn in turns], "next": turns[-1].index if len(turns) == query.limit else None}


@router.get("/episodes/{uuid:episode_id}/tokens", response=TokensOut, by_alias=True)
def read_tokens(request: HttpRequest, episode_id: UUID, query: Query[TokenQuery]):
    """Tokens of a range with their channels."""
    try:
        tokens = traces.read_tokens(_episode(request, episode_id), query.first, query.last)
    except traces.NoTrace as error:
        raise Problem(404, "No tokens", str(error)) from None
    return column_response({"total": tokens.total, "from": tokens.first, "to": tokens.stop, **tokens.columns})


@router.get("/episodes/{uuid:episode_id}/siblings", response=list[EpisodeOut])
def list_siblings(request: HttpRequest, episode_id: UUID):
    """The episodes of the same group, this one included."""
    return [selectors.summary(episode) for episode in selectors.siblings(_episode(request, episode_id))[:200]]


@router.get("/episodes/{uuid:episode_id}/compare/{uuid:other_id}", response=list[TurnPairOut])
def compare_episodes(request: HttpRequest, episode_id: UUID, other_id: UUID):
    """Turns of two episodes aligned, changed ones word by word."""
    left, right = _episode(request, episode_id), _episode(request, other_id)
    pairs = selectors.compare_turns(*(selectors.turns_of(episode, limit=selectors.MAX_DIFF_TURNS) for episode in (left, right)))
    return [_pair(pair) for pair in pairs]


def _pair(pair: selectors.TurnPair) -> dict:
    pieces = [{"kind": kind, "left": left, "right": right} for kind, left, right in pair.pieces]
    return {
        "kind": pair.kind,
        "left": pair.left and selectors.turn_row(pair.left),
        "right": pair.right and selectors.turn_row(pair.right),
        "pieces": pieces,
    }


@router.get("/episodes/{uuid:episode_id}/export", response=dict)
def export_episode(request: HttpRequest, episode_id: UUID):
    """The whole episode as one document; its token blobs are named, not included."""
    episode = _episode(request, episode_id)
    return JsonResponse(selectors.export(episode), headers={"Content-Disposition": f'attachment; filename="episode-{episode.pk}.json"'})


@router.get("/episodes/{uuid:episode_id}/labels", response=list[LabelOut])
def list_labels(request: HttpRequest, episode_id: UUID):
    labels = _episode(request, episode_id).labels.select_related("user").order_by("id")
    return [selectors.label_row(label) for label in labels]


@router.post("/episodes/{uuid:episode_id}/labels", response={201: LabelOut})
def add_label(request: HttpRequest, episode_id: UUID, body: NewLabel):
    """Attach a name or a comment to an episode."""
    episode = _episode(request, episode_id)
    require(request.user, episode.run.project.team, "episode.label")
    try:
        label = services.label_episode(request.user, episode, body.name, body.comment)
    except ValueError as error:
        raise Problem(422, "Invalid request", str(error), [FieldError("/name", str(error), body.name)]) from None
    return Status(201, selectors.label_row(label))


def _episodes(request: HttpRequest, run_id: UUID):
    return Episode.objects.filter(run=get_object_or_404(Run.objects.for_user(request.user).only("pk"), pk=run_id))


def _episode(request: HttpRequest, episode_id: UUID) -> Episode:
    return get_object_or_404(Episode.objects.for_user(request.user).select_related("run__project__team"), pk=episode_id)
