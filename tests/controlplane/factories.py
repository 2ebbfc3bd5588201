"""Rows that tests start from: a run with an attempt, and the batches its runner sends."""

import uuid

import numpy as np
from django.utils import timezone

from controlplane.accounts.models import Project, Team
from controlplane.accounts.tokens import new_token
from controlplane.runs.models import Attempt, Run
from runner.contract.events import Batch, Points, Samples, encode_batch
from runner.contract.states import AttemptState, RunState


def make_run(team: Team, **values) -> Run:
    """An active run of `team` without attempts."""
    project, _ = Project.objects.get_or_create(team=team, slug="default", defaults={"name": "Default"})
    defaults = dict(
        project=project,
        state=RunState.ACTIVE,
        document={},
        config=b"{}",
        config_hash="0" * 64,
        name="run",
        method="grpo",
        model="assay-tiny",
        environment="quiz",
        total_steps=100,
        started_at=timezone.now(),
    )
    return Run.objects.create(**{**defaults, **values})


def make_attempt(run: Run, number: int = 1, **values) -> Attempt:
    """A running attempt; its plain token is in `token`."""
    token, token_hash = new_token()
    defaults = dict(state=AttemptState.RUNNING, submission_id=f"assay-{uuid.uuid4()}", claim_hash="", token_hash=token_hash)
    attempt = Attempt.objects.create(run=run, number=number, **{**defaults, **values})
    attempt.token = token
    return attempt


def make_points(series: dict[str, list[tuple]]) -> Points:
    """Points from {name: [(step, value) or (step, value, wall)]}."""
    rows = [
        (index, row[0], row[1], row[2] if len(row) > 2 else 1000.0 + row[0]) for index, rows in enumerate(series.values()) for row in rows
    ]
    columns = zip(*rows, strict=True) if rows else ([], [], [], [])
    kinds = ("int32", "int64", "float64", "float64")
    return Points(list(series), *(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def make_samples(series: dict[str, list[tuple]]) -> Samples:
    """Wall samples from {name: [(wall, value)]}."""
    rows = [(index, *row) for index, rows in enumerate(series.values()) for row in rows]
    columns = zip(*rows, strict=True)
    return Samples(list(series), *(np.array(column, kind) for column, kind in zip(columns, ("int32", "float64", "float64"), strict=True)))


def make_batch(sequence: int = 0, series: dict | None = None, emitter: str = "driver", **parts) -> Batch:
    return Batch(emitter=emitter, sequence=sequence, points=make_points(series or {}), **parts)


def deliver(client, attempt: Attempt, batch: Batch | bytes, **headers):
    """POST a batch as its emitter does; returns the response."""
    body = batch if isinstance(batch, bytes) else encode_batch(batch)
    headers = {"Authorization": f"Bearer {attempt.token}", **headers}
    return client.post(f"/api/ingest/{attempt.pk}/batches", body, content_type="application/vnd.assay.batch+zstd", headers=headers)


def make_event(episode, kind: str, ordinal: int = 0, t: float = 1000.0, **data) -> dict:
    """An episode event as a batch carries it."""
    return {"episode": str(episode), "kind": kind, "ordinal": ordinal, "t": t, "data": data}
