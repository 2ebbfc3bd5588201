"""REST: launch and check, lists, one run, its verbs, its log, and what differs between runs."""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from django.db import transaction
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from ninja import Body, Field, Query, Router, Schema, Status
from pydantic import StrictBool

from controlplane.accounts.selectors import team_for
from controlplane.api.idempotency import idempotent
from controlplane.api.pagination import MAX_LIMIT, Page, Paging
from controlplane.api.problems import Problem
from controlplane.api.rate_limit import limited
from controlplane.api.schemas import Input, Whole
from controlplane.checkpoints.models import Checkpoint
from controlplane.evals.statistics import Interval
from controlplane.runs import offline, recipes, selectors, services
from controlplane.runs.forms.diff import MAX_COMPARED
from controlplane.runs.forms.schema import ABSENT
from controlplane.runs.launch import check_launch
from controlplane.runs.listing import RunFilters
from controlplane.runs.models import Attempt, Run, RunEvent
from controlplane.telemetry.delta import STAGES_BEGUN, run_state
from runner.contract.parse import FieldError
from runner.contract.states import RunState

router = Router(tags=["runs"])

SHOWN_OF_ATTEMPTS = ("run_id", "number", "state", "phase", "contact_lost_at", "first_step", "running_at")
MANY = 50
SORTS = {"created": "created_at", "name": "name", "step": "step"}


# ---------------------------------------------------------------- answers
class RunOut(Schema):
    id: UUID
    team: str = Field(alias="project.team.slug")
    project: str = Field(alias="project.slug")
    name: str
    experiment: str
    tags: list[str]
    state: str
    reason: str
    waiting: str = Field(description="Why a waiting run waits.")
    step: int
    total_steps: int
    latest: dict[str, Any] = Field(description="Headline → {value, step, attempt}; a headline that was never reported is absent.")
    method: str
    model: str
    environment: str
    seed: int
    priority: int
    owner: str | None
    parent: UUID | None = Field(alias="parent_id")
    config_hash: str
    attempt: int | None = Field(description="Number of the newest attempt.")
    attempt_state: str | None
    phase: str
    contact_lost: bool
    eta_s: float | None
    created_at: datetime
    queued_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    archived_at: datetime | None

    @staticmethod
    def resolve_owner(run: Run) -> str | None:
        return run.owner.username if run.owner else None


class AttemptOut(Schema):
    number: int
    state: str
    reason: str
    first_step: int | None
    resumed_from: UUID | None = Field(alias="resumed_from_id")
    host: str
    components: dict[str, Any]
    devices: list[Any]
    ray_status: str
    exit_record: dict[str, Any] | None
    grant: str
    points_accepted: int
    points_repeated: int
    points_conflicting: int
    batches_refused: int
    writes_fenced: int
    created_at: datetime
    running_at: datetime | None
    ended_at: datetime | None

    @staticmethod
    def resolve_grant(attempt: Attempt) -> str:
        return attempt.grant.state if hasattr(attempt, "grant") else "none"


class ChangeOut(Schema):
    pointer: str
    before: Any
    after: Any


class RunDetail(RunOut):
    attempts: list[AttemptOut]
    document: dict[str, Any] = Field(description="As it was typed; the resolved one is at /config.")
    changes: list[ChangeOut] = Field(description="Against the parent; a side that has no such field is null.")


class FieldErrorOut(Schema):
    pointer: str
    message: str
    value: Any


class CheckOut(Schema):
    config: dict[str, Any] | None
    config_hash: str | None
    errors: list[FieldErrorOut]
    warnings: list[FieldErrorOut]
    forecast: dict[str, Any] | None


class EventOut(Schema):
    id: int
    at: datetime
    kind: str
    attempt: int | None
    step: int | None
    data: dict[str, Any]
    actor: str | None

    @staticmethod
    def resolve_actor(event: RunEvent) -> str | None:
        return event.actor.username if event.actor else None


class DifferingField(Schema):
    pointer: str
    values: list[Any]
    present: list[bool] = Field(description="False where that run has no such field at all.")


class DifferencesOut(Schema):
    runs: list[RunOut]
    fields: list[DifferingField]


class MeanOut(Schema):
    mean: float | None = Field(description="Over the runs that have a value; null without any.")
    low: float | None = Field(description="Lower end of the 95 % t interval; null for fewer than two runs.")
    high: float | None
    n: int = Field(description="Runs that have a value.")


class SeedsOut(Schema):
    """The runs of one recipe."""

    recipe: str = Field(description="SHA-256 of what is trained, the seed left out.")
    name: str
    runs: int
    seeds: list[int]
    ids: list[UUID]
    states: dict[str, int]
    first_step: int = Field(alias="steps.0", description="Of the run that got least far; the means mix runs when it is not last_step.")
    last_step: int = Field(alias="steps.1")
    measured: dict[str, MeanOut]
    method: str = Field(alias="newest.method")
    environment: str = Field(alias="newest.environment")
    model: str = Field(alias="newest.model")
    created_at: datetime = Field(description="Of its newest run.")

    @staticmethod
    def resolve_states(group: recipes.SeedGroup) -> dict[str, int]:
        return dict(group.states)

    @staticmethod
    def resolve_measured(group: recipes.SeedGroup) -> dict[str, dict]:
        return {name: _mean(found) for name, found in group.measured.items()}


def _mean(found: Interval) -> dict:
    return {"mean": found.estimate, "low": found.low, "high": found.high, "n": found.n}


# ---------------------------------------------------------------- questions
class RunFacets(Schema):
    state: list[RunState] = Field([], max_length=MANY)
    search: str = Field("", max_length=200, description="In name, experiment and tags, or the beginning of an id.")
    tag: str = Field("", max_length=60)
    project: list[str] = Field([], max_length=MANY)
    owner: list[str] = Field([], max_length=MANY)
    method: list[str] = Field([], max_length=MANY)
    model: list[str] = Field([], max_length=MANY)
    environment: list[str] = Field([], max_length=MANY)
    experiment: list[str] = Field([], max_length=MANY)
    archived: bool = False

    def filters(self, sort: str) -> RunFilters:
        """Values of one filter are alternatives, filters narrow each other."""
        facets = {
            name: tuple(getattr(self, name)) for name in ("state", "project", "owner", "method", "model", "environment", "experiment")
        }
        narrowed = {name: values for name, values in facets.items() if values}
        return RunFilters(search=self.search.strip(), tag=self.tag, archived=self.archived, sort=sort, facets=narrowed)


class RunQuery(RunFacets):
    sort: Literal["created", "-created", "name", "-name", "step", "-step"] = "-created"


class SeedsQuery(RunFacets):
    sort: Literal["created", "-created", "reward", "-reward"] = "-created"
    cursor: str | None = Field(None, description="`next` of the previous page.", max_length=6, pattern="^[0-9]+$")
    limit: int = Field(50, description="Recipes a page.", ge=1, le=MAX_LIMIT)


class Compared(Schema):
    ids: list[UUID] = Field(min_length=2, max_length=MAX_COMPARED)


class Ended(Input):
    document: dict[str, Any] = Field(description="The run document that the driver was given.")
    exit: dict[str, Any] = Field(description="The attempt's exit.json.")


class Delivery(Schema):
    batches_url: str = Field(description="Where the spools' batches are taken, for a day after the run was adopted.")
    token: str = Field(description="For these batches alone; shown once.")


class Resume(Input):
    checkpoint: UUID | None = None


class Clone(Input):
    changes: dict[str, Any] = {}


class RunChange(Input):
    archived: StrictBool | None = None
    priority: Whole | None = Field(None, ge=-1000, le=1000)
    tags: list[str] | None = Field(None, max_length=services.MOST_TAGS, description="All of the run's tags; those it has now are replaced.")


# ---------------------------------------------------------------- launch
Document = Body[dict[str, Any]]
# The view takes any object, so that what is wrong with it is told in the words of the launch form.
_DOCUMENT = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/RunConfig"}}}}}


@router.post("/runs", response={201: RunOut}, openapi_extra=_DOCUMENT)
@idempotent
@limited("launch")
def launch(request: HttpRequest, document: Document, team: str | None = None):
    """Queue the run that the document describes."""
    run = services.do_launch(request.user, team_for(request.user, team), document)
    return Status(201, _out(request, run.pk))


@router.post("/runs/check", response=CheckOut)
def check(request: HttpRequest, document: Document, team: str | None = None):
    """Everything that would be refused, the resolved configuration if nothing is, and what the run would cost."""
    checked = check_launch(request.user, team_for(request.user, team), document, with_forecast=True)
    config = checked.config and checked.config.model_dump(mode="json")
    return {
        "config": config,
        "config_hash": checked.config and checked.hash,
        **{name: getattr(checked, name) for name in ("errors", "warnings", "forecast")},
    }


@router.post("/runs/adopt", response={201: RunOut})
@idempotent
@limited("launch")
def adopt(request: HttpRequest, body: Ended, team: str | None = None):
    """Take over a run that ended on a machine without a control plane; what its emitters left is sent afterwards."""
    return Status(201, _out(request, offline.adopt(request.user, team_for(request.user, team), body.document, body.exit).pk))


@router.post("/runs/{uuid:run_id}/delivery", response={201: Delivery})
@limited("launch")
def open_delivery(request: HttpRequest, run_id: UUID):
    """A token under which an adopted run's batches are taken; each call ends the one before."""
    attempt, token = offline.open_delivery(request.user, _run(request, run_id))
    return Status(201, {"batches_url": offline.batches_url(attempt), "token": token})


@router.post("/runs/{uuid:run_id}/clone", response={201: RunOut})
@idempotent
@limited("launch")
def clone(request: HttpRequest, run_id: UUID, body: Clone):
    """Launch the run's resolved configuration with some fields changed; the new run names this one as its parent."""
    parent = _run(request, run_id)
    run = services.do_launch(request.user, parent.project.team, services.clone_document(parent, body.changes), parent=parent)
    return Status(201, _out(request, run.pk))


# ---------------------------------------------------------------- reading
@router.get("/runs", response=Page[RunOut])
def list_runs(request: HttpRequest, paging: Query[Paging], query: Query[RunQuery]):
    """The team's runs. Values of one filter are alternatives, filters narrow each other."""
    sign = "-" if query.sort.startswith("-") else ""
    page = paging.page(query.filters(query.sort).restrict(_shown(request)), sign + SORTS[query.sort.lstrip("-")], f"{sign}id")
    return {**page, "items": [_with_state(run) for run in page["items"]]}


@router.get("/runs/seeds", response=Page[SeedsOut])
def list_seeds(request: HttpRequest, query: Query[SeedsQuery]):
    """The same runs folded: those that differ only in seed, name or tags are one recipe, with the mean of each headline over them."""
    offset = int(query.cursor or 0)
    groups, more = recipes.groups(request.user, query.filters(query.sort), offset, query.limit)
    return {"items": groups, "next": str(offset + len(groups)) if more else None}


@router.get("/runs/differences", response=DifferencesOut)
def differences(request: HttpRequest, query: Query[Compared]):
    """Two to ten runs, and only the fields of their configurations in which they are not all alike."""
    wanted = list(dict.fromkeys(query.ids))
    if not 2 <= len(wanted) <= MAX_COMPARED:
        raise Problem(422, "Invalid request", errors=[FieldError("/ids", f"name 2 to {MAX_COMPARED} different runs", len(wanted))])
    found = {run.pk: _with_state(run) for run in _shown(request, heavy=True).filter(pk__in=wanted)}
    if missing := [key for key in wanted if key not in found]:
        raise Run.DoesNotExist(f"no run {missing[0]}")
    runs = [found[key] for key in wanted]
    fields = selectors.differences(runs).items()
    return {"runs": runs, "fields": [_differing(pointer, values) for pointer, values in fields]}


def _differing(pointer: str, values: list) -> dict:
    present = [value is not ABSENT for value in values]
    return {"pointer": pointer, "present": present, "values": [value if there else None for value, there in zip(values, present)]}


@router.get("/runs/{uuid:run_id}", response=RunDetail)
def get_run(request: HttpRequest, run_id: UUID):
    run = selectors.run_detail(request.user, run_id)
    changes = selectors.difference_from_parent(run)
    run.changes = [{"pointer": change.pointer, "before": _side(change.before), "after": _side(change.after)} for change in changes]
    return _with_state(run)


def _side(value: Any) -> Any:
    return None if value is ABSENT else value


@router.get("/runs/{uuid:run_id}/config")
def get_config(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """The resolved configuration, byte for byte as it is hashed and executed."""
    run = _run(request, run_id)
    return HttpResponse(bytes(run.config), content_type="application/json", headers={"ETag": f'"{run.config_hash}"'})


@router.get("/runs/{uuid:run_id}/events", response=Page[EventOut])
def list_events(request: HttpRequest, run_id: UUID, paging: Query[Paging]):
    """The run's log, oldest first; its state is the fold of it."""
    return paging.page(selectors.events(_run(request, run_id)), "id")


# ---------------------------------------------------------------- verbs
@router.post("/runs/{uuid:run_id}/stop", response=RunOut)
@idempotent
def stop(request: HttpRequest, run_id: UUID):
    """End a waiting run at once, an active one after its present step and a checkpoint."""
    return _out(request, services.request_stop(request.user, _run(request, run_id)).pk)


@router.post("/runs/{uuid:run_id}/resume", response=RunOut)
@idempotent
@limited("launch")
def resume(request: HttpRequest, run_id: UUID, body: Resume):
    """Continue an ended run from a checkpoint, by default from its newest complete one."""
    run = _run(request, run_id)
    checkpoint = get_object_or_404(Checkpoint.objects.for_user(request.user), pk=body.checkpoint) if body.checkpoint else None
    return _out(request, services.resume(request.user, run, checkpoint).pk)


@router.post("/runs/{uuid:run_id}/retry", response=RunOut)
@idempotent
@limited("launch")
def retry(request: HttpRequest, run_id: UUID):
    """Try an ended run again, from its newest complete checkpoint if there is one."""
    return _out(request, services.retry(request.user, _run(request, run_id)).pk)


@router.patch("/runs/{uuid:run_id}", response=RunOut)
def change(request: HttpRequest, run_id: UUID, body: RunChange):
    """Move a waiting run in the queue; give a run other tags; hide an ended run or bring it back."""
    run = _run(request, run_id)
    with transaction.atomic():
        if body.priority is not None:
            services.set_priority(request.user, run, body.priority)
        if body.tags is not None:
            services.retag(request.user, run, body.tags)
        if body.archived is not None:
            services.archive(request.user, [run], body.archived)
    return _out(request, run_id)


# ---------------------------------------------------------------- rows
def _run(request: HttpRequest, run_id: UUID) -> Run:
    return get_object_or_404(Run.objects.for_user(request.user).select_related("project__team"), pk=run_id)


def _shown(request: HttpRequest, heavy: bool = False) -> QuerySet:
    """Runs with what RunOut shows, in a fixed number of queries."""
    newest = Prefetch("attempts", Attempt.objects.only(*SHOWN_OF_ATTEMPTS).order_by("number"))
    runs = Run.objects.for_user(request.user).select_related("project__team", "owner").prefetch_related(newest, STAGES_BEGUN)
    return runs if heavy else runs.defer("config", "document")


def _out(request: HttpRequest, run_id: UUID) -> Run:
    return _with_state(_shown(request).get(pk=run_id))


def _with_state(run: Run) -> Run:
    """The run with the columns that come from its newest attempt."""
    state = run_state(run, list(run.attempts.all()))
    for name in ("attempt", "attempt_state", "phase", "contact_lost", "eta_s"):
        setattr(run, name, state[name])
    return run
