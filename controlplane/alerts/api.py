"""REST: what the rules found in a run."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema
from pydantic import StrictFloat

from controlplane.accounts.models import Project
from controlplane.alerts import selectors, services
from controlplane.alerts.models import Incident
from controlplane.api.pagination import Page, Paging
from controlplane.api.schemas import Input
from controlplane.runs.models import Run
from controlplane.telemetry.text import json_number

router = Router(tags=["alerts"])


class IncidentOut(Schema):
    id: int
    run: UUID = Field(alias="run_id")
    rule: str
    metric: str
    severity: str
    value: float | Literal["NaN", "Infinity", "-Infinity"] | None
    limit: float | None
    message: str
    advice: str
    opened_step: int | None
    opened_at: datetime
    closed_step: int | None
    closed_at: datetime | None

    @staticmethod
    def resolve_value(incident: Incident) -> float | str | None:
        return None if incident.value is None else json_number(incident.value)


@router.get("/runs/{uuid:run_id}/incidents", response=Page[IncidentOut])
def list_incidents(request: HttpRequest, run_id: UUID, paging: Query[Paging]):
    """Newest first; one that is open has no `closed_at`."""
    run = get_object_or_404(Run.objects.for_user(request.user), pk=run_id)
    return paging.page(selectors.incidents(request.user).filter(run=run), "-opened_at", "-id")


class NewLimit(Input):
    rule: str = Field(description="Name of a rule, as incidents carry it.")
    limit: StrictFloat | None = Field(description="The project's own limit; null goes back to the dictionary's.")


@router.get("/projects/{int:project_id}/alert-limits", response=dict[str, float])
def read_alert_limits(request: HttpRequest, project_id: int):
    """The limits that differ from the dictionary's, by rule."""
    return get_object_or_404(Project.objects.for_user(request.user), pk=project_id).alert_limits


@router.put("/projects/{int:project_id}/alert-limits", response=dict[str, float])
def change_alert_limit(request: HttpRequest, project_id: int, body: NewLimit):
    """Give one rule a limit of the project's own."""
    project = get_object_or_404(Project.objects.for_user(request.user), pk=project_id)
    return services.set_limit(request.user, project, body.rule, body.limit)
