"""Two routes that only the tests mount: one that spends, one that fails in every way."""

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import OperationalError
from django.http import Http404
from django.urls import path
from ninja import Router, Schema, Status

from controlplane.accounts.models import Project, Team
from controlplane.api.api import AssayAPI, StrictParser, StrictRenderer
from controlplane.api.auth import Bearer, Session
from controlplane.api.idempotency import idempotent
from controlplane.api.rate_limit import limited
from controlplane.api.schemas import Input
from controlplane.runs.exceptions import Conflict
from controlplane.transitions import IllegalTransition
from runner.contract.bank import InvalidBank
from runner.contract.parse import FieldError, InvalidDocument

router = Router()
FAILURES = {
    "missing": Http404(),
    "no-row": Team.DoesNotExist("secret"),
    "forbidden": PermissionDenied("needs the role admin"),
    "conflict": Conflict("the run is queued"),
    "transition": IllegalTransition("not in the table"),
    "document": InvalidDocument([FieldError("/stages/0/group_size", "try 8", 7), FieldError("/seed", "not finite", float("nan"))]),
    "bank": InvalidBank([(3, "duplicate key"), (0, "holds no task")]),
    "invalid": ValidationError({"slug": ["taken"]}),
    "database": OperationalError("connection refused at 10.0.0.1"),
    "bug": KeyError("password"),
}


class Thing(Input):
    slug: str


class ThingOut(Schema):
    id: int
    slug: str


@router.get("/fail/{how}")
def fail(request, how: str):
    raise FAILURES[how]


@router.post("/things", response={201: ThingOut})
@idempotent
@limited("launch")
def make_thing(request, payload: Thing):
    if payload.slug == "refused":
        raise Conflict("refused")
    if payload.slug == "half":
        Project.objects.create(team=Team.objects.get(slug="physics"), slug="half", name="half")
        raise KeyError("after writing")
    return Status(201, Project.objects.create(team=Team.objects.get(slug="physics"), slug=payload.slug, name=payload.slug))


api = AssayAPI(urls_namespace="tests", docs_url=None, auth=[Bearer(), Session()], parser=StrictParser(), renderer=StrictRenderer())
api.add_router("", router)
urlpatterns = [path("api/v1/", api.urls)]
