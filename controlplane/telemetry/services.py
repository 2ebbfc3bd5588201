"""Taking in what runners report. One batch is one transaction, and moves the run's cursor by one."""

import json
from dataclasses import dataclass, field

import numpy as np
from django.db import connection, transaction
from django.db.models import Exists, F, OuterRef

from controlplane.episodes.services import record_events
from controlplane.evals.services import record_evaluation
from controlplane.runs.models import Attempt, Run, RunEvent
from controlplane.telemetry import packs
from controlplane.telemetry.live import notify_run, notify_runs
from controlplane.telemetry.models import IngestBatch
from controlplane.telemetry.points import write_points, write_samples
from controlplane.telemetry.reading import moment
from controlplane.telemetry.text import clean_json, clean_text, json_number
from runner.contract.events import Batch, Points

HEADLINES = {
    "critic/score/mean": "reward",
    "termination/finished/score_mean": "reward_finished",
    "response_length/mean": "length",
    "verifier_error/fraction": "verifier_error",
    "rollout_corr/k3_kl": "kl",
    "actor/entropy": "entropy",
    "val/forced_choice": "forced_choice",
    "val/accuracy": "accuracy",
    "perf/throughput": "throughput",
}
"""Series whose newest value the runs list shows, and their keys in `Run.latest`."""

REPORTED_KINDS = ("stage_started", "stage_finished", "evaluation", "note", "weight_sync_probe", "filter")
"""Run events a runner may report by name; any other is kept as a note, because states are folded from the control plane's kinds."""

MAX_COMPONENT = 60

_INSERT_LOGS = """
    WITH inserted AS (
        INSERT INTO telemetry_logline (run_id, attempt, t, component, level, message)
        SELECT %s, %s, line.* FROM unnest(%s::float8[], %s::text[], %s::text[], %s::text[]) AS line
        RETURNING id
    )
    SELECT min(id), max(id) FROM inserted
"""
# One statement, because it is sent with every batch. The driver says where its attempt begins; should its points come first, they tell.
_FINISH = """
    WITH batch AS (
        INSERT INTO telemetry_ingestbatch (run_id, attempt, emitter, sequence, seq, touched, received_at)
        VALUES (%(run)s, %(number)s, %(emitter)s, %(sequence)s, %(seq)s, %(touched)s::jsonb, now())
    ), run AS (
        UPDATE runs_run SET seq = %(seq)s, step = %(step)s, latest = %(latest)s::jsonb WHERE id = %(run)s
    )
    UPDATE runs_attempt SET
        points_accepted = points_accepted + %(accepted)s, points_repeated = points_repeated + %(repeated)s,
        points_conflicting = points_conflicting + %(conflicting)s, first_step = coalesce(first_step, %(first_step)s)
    WHERE id = %(attempt)s
"""


@dataclass(frozen=True)
class Receipt:
    """The answer to a batch: the run's cursor it got, and what became of its points."""

    seq: int
    accepted: int
    repeated: int
    conflicting: int


def next_seq(run_id) -> int:
    """Move the run's cursor, and hold the run's row until the transaction ends, so that cursors commit in order.

    Call it before anything else in the transaction.
    """
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runs_run SET seq = seq + 1 WHERE id = %s RETURNING seq", [run_id])
        return cursor.fetchone()[0]


def accept_batch(attempt: Attempt, batch: Batch) -> Receipt:
    """Store a batch once, whoever sends it how often.

    1. Its blobs are on disk before a row names them.
    2. The run's row is locked: batches of one run go one after the other, and cursors commit in order.
    3. A batch that is known already gets the answer it got the first time.
    4. Everything else is written, and the pages are told on commit.
    """
    placed = packs.put(batch.blobs)
    with transaction.atomic():
        newer = Attempt.objects.filter(run=OuterRef("pk"), number__gt=attempt.number)
        locked = Run.objects.select_for_update(no_key=True).only("seq", "step", "latest").annotate(superseded=Exists(newer))
        run = locked.get(pk=attempt.run_id)
        return _known(attempt, batch) or _write(run, attempt, batch, placed)


def _known(attempt: Attempt, batch: Batch) -> Receipt | None:
    # Asked only now: before the lock, the batch of another thread could still be on its way.
    key = {"run_id": attempt.run_id, "attempt": attempt.number, "emitter": clean_text(batch.emitter), "sequence": batch.sequence}
    found = IngestBatch.objects.filter(**key).values_list("seq", "touched").first()
    return Receipt(found[0], *found[1]["counts"]) if found else None


@dataclass
class _Touched:
    """What a batch changed, for `IngestBatch.touched`; empty parts are left out."""

    counts: tuple[int, int, int]
    steps: tuple[int, int] | None = None
    names: tuple[str, ...] = ()
    logs: tuple[int, int] | None = None
    episodes: list[str] = field(default_factory=list)
    events: int = 0

    def document(self) -> dict:
        return {name: value for name, value in vars(self).items() if value}


def _write(run: Run, attempt: Attempt, batch: Batch, placed: packs.Placed | None) -> Receipt:
    run.seq += 1
    packs.record(run.pk, placed)
    written = write_points(run.pk, attempt.number, batch.points)
    accepted = len(written.inserted)
    touched = _Touched(
        counts=(accepted, written.repeated, written.conflicting),
        steps=(int(written.inserted.step.min()), int(written.inserted.step.max())) if accepted else None,
        names=written.names,
        logs=_write_logs(attempt, batch.logs),
        episodes=[str(episode) for episode in record_events(attempt, batch.episodes)],
        events=len(batch.events),
    )
    write_samples(run.pk, batch.samples)
    _write_events(attempt, batch.events)
    if accepted and not run.superseded:
        run.step = max(run.step, touched.steps[1])
        run.latest |= _headlines(run.latest, attempt.number, written.inserted)
    _finish(run, attempt, batch, touched)
    notify_run(run.pk, run.seq)
    notify_runs(attempt.run.project.team_id, run.pk)
    return Receipt(run.seq, *touched.counts)


def _finish(run: Run, attempt: Attempt, batch: Batch, touched: _Touched) -> None:
    """Remember the batch, move the run, count on the attempt."""
    accepted, repeated, conflicting = touched.counts
    values = {
        "run": run.pk,
        "seq": run.seq,
        "step": run.step,
        "latest": json.dumps(run.latest),
        "attempt": attempt.pk,
        "number": attempt.number,
        "emitter": clean_text(batch.emitter),
        "sequence": batch.sequence,
        "touched": json.dumps(touched.document()),
        "accepted": accepted,
        "repeated": repeated,
        "conflicting": conflicting,
        "first_step": touched.steps[0] if touched.steps else None,
    }
    with connection.cursor() as cursor:
        cursor.execute(_FINISH, values)


def _write_logs(attempt: Attempt, logs: list[dict]) -> tuple[int, int] | None:
    if not logs:
        return None
    columns = [
        [float(line["t"]) for line in logs],
        [clean_text(line["component"])[:MAX_COMPONENT] for line in logs],
        [line["level"] for line in logs],
        [clean_text(line["message"]) for line in logs],
    ]
    with connection.cursor() as cursor:
        cursor.execute(_INSERT_LOGS, [attempt.run_id, attempt.number, *columns])
        return cursor.fetchone()


def _write_events(attempt: Attempt, events: list[dict]) -> None:
    for event in events:
        if event["kind"] == "evaluation":
            record_evaluation(attempt, event["data"])
    RunEvent.objects.bulk_create(_run_event(attempt, event) for event in events)


def _run_event(attempt: Attempt, event: dict) -> RunEvent:
    kind, data, step = event["kind"], clean_json(event["data"]), event.get("step")
    if kind not in REPORTED_KINDS:
        kind, data = "note", {"kind": clean_text(kind), **data}
    # The results of an evaluation have their own table.
    data.pop("results", None)
    whole = isinstance(step, int) and 0 <= step < 2**53
    return RunEvent(
        run_id=attempt.run_id, attempt=attempt.number, kind=kind, step=step if whole else None, data=data, at=moment(event["t"])
    )


def _headlines(latest: dict, attempt: int, points: Points) -> dict:
    found = {}
    for index, name in enumerate(points.names):
        rows = np.flatnonzero(points.series == index) if name in HEADLINES else ()
        if not len(rows):
            continue
        row = rows[np.argmax(points.step[rows])]
        before = latest.get(HEADLINES[name])
        step = int(points.step[row])
        if before is None or (attempt, step) >= (before["attempt"], before["step"]):
            found[HEADLINES[name]] = {"value": json_number(float(points.value[row])), "step": step, "attempt": attempt}
    return found


def count_refused(attempt: Attempt) -> None:
    """Remember that a batch of this attempt could not be read."""
    Attempt.objects.filter(pk=attempt.pk).update(batches_refused=F("batches_refused") + 1)
