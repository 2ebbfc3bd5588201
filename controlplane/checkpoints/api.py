"""REST: a run's checkpoints, one checkpoint, its pin."""

from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import Field, Query, Router, Schema
from pydantic import StrictBool

from controlplane.api.pagination import Page, Paging
from controlplane.api.schemas import Input
from controlplane.checkpoints import peaks, selectors, services
from controlplane.checkpoints.models import Checkpoint
from controlplane.runs.models import Run

router = Router(tags=["checkpoints"])


class CheckpointOut(Schema):
    id: UUID
    run: UUID = Field(alias="run_id")
    attempt: int
    parent: UUID | None = Field(alias="parent_id")
    state: str
    reason: str
    stage: int
    step: int
    policy_version: int | None
    path: str
    size: int | None
    manifest_hash: str
    metrics: dict[str, float]
    kept_because: list[str] = Field(description="Retention rules that hold it; empty before retention first ran.")
    pinned: bool
    created_at: datetime
    completed_at: datetime | None
    deleted_at: datetime | None

    @staticmethod
    def resolve_pinned(row: Checkpoint) -> bool:
        return row.pinned_at is not None


class CheckpointDetail(CheckpointOut):
    manifest: dict[str, Any]
    trained_on: list[str] = Field(description="Tasks that its lineage trained on; none of them is held out for it.")


class LostPeakOut(Schema):
    metric: str
    step: int
    value: float
    held_step: int | None = Field(description="Step of the best checkpoint that is left.")
    held: float | None


class CheckpointChange(Input):
    pinned: StrictBool


@router.get("/runs/{uuid:run_id}/checkpoints", response=Page[CheckpointOut])
def list_checkpoints(request: HttpRequest, run_id: UUID, paging: Query[Paging]):
    """Newest first; deleted ones stay in the list, because lineage outlives files."""
    run = get_object_or_404(Run.objects.for_user(request.user), pk=run_id)
    return paging.page(selectors.for_run(run).defer("manifest", "trained_on"), "-created_at", "-id")


@router.get("/runs/{uuid:run_id}/lost-peaks", response=list[LostPeakOut])
def list_lost_peaks(request: HttpRequest, run_id: UUID):
    """Held-out metrics whose best value no checkpoint on disk comes up to."""
    return peaks.lost_peaks(get_object_or_404(Run.objects.for_user(request.user), pk=run_id))


@router.get("/checkpoints/{uuid:checkpoint_id}", response=CheckpointDetail)
def get_checkpoint(request: HttpRequest, checkpoint_id: UUID):
    return _checkpoint(request, checkpoint_id)


@router.patch("/checkpoints/{uuid:checkpoint_id}", response=CheckpointOut)
def change(request: HttpRequest, checkpoint_id: UUID, body: CheckpointChange):
    """Pin a complete checkpoint, or leave it to the retention rules again."""
    return services.set_pinned(request.user, _checkpoint(request, checkpoint_id), body.pinned)


def _checkpoint(request: HttpRequest, checkpoint_id: UUID) -> Checkpoint:
    return get_object_or_404(Checkpoint.objects.for_user(request.user), pk=checkpoint_id)
