"""What changed in a run since a cursor, as live frames carry it. One reader for the hub and for a page that catches up."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db import connection
from django.db.models import Prefetch
from django.utils import timezone

from controlplane.episodes.models import Episode
from controlplane.episodes.selectors import summary
from controlplane.runs.models import Attempt, Run, RunEvent
from controlplane.telemetry.arrays import column_cursor
from controlplane.telemetry.buckets import Segment, clip, segment_columns, visible_segments
from controlplane.telemetry.models import IngestBatch, LogLine
from controlplane.telemetry.text import json_number
from runner.contract.states import RunState

MAX_BATCHES = 2_000
MAX_POINTS = 20_000
MAX_LOGS = 500
MAX_EPISODES = 500
MAX_EVENTS = 50

_POINTS = """
    SELECT wanted.name, part.attempt, point.step, point.value, point.wall
    FROM (SELECT id, name FROM telemetry_series WHERE run_id = %s AND axis = 'step' AND name = ANY(%s)) AS wanted
    CROSS JOIN unnest(%s, %s, %s) AS part (attempt, first, stop)
    CROSS JOIN LATERAL (
        SELECT step, value, wall FROM telemetry_point
        WHERE series_id = wanted.id AND attempt = part.attempt AND step >= part.first AND step < part.stop
    ) AS point
    ORDER BY wanted.name, part.attempt, point.step
    LIMIT %s
"""


@dataclass(frozen=True)
class Interest:
    """What one subscriber wants to see of a run; `watched` are single episodes."""

    series: frozenset[str] = frozenset()
    logs: bool = False
    episodes: bool = False
    watched: frozenset[UUID] = frozenset()


def union(interests: Iterable[Interest]) -> Interest:
    interests = list(interests)
    return Interest(
        series=frozenset().union(*(interest.series for interest in interests)),
        logs=any(interest.logs for interest in interests),
        episodes=any(interest.episodes for interest in interests),
        watched=frozenset().union(*(interest.watched for interest in interests)),
    )


@dataclass
class Delta:
    """Everything after one cursor and up to `cursor`. Rows are JSON-ready; a row may come twice, none is missing."""

    cursor: int
    run_state: dict
    points: dict[str, list[list]] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    logs: list[dict] = field(default_factory=list)
    logs_skipped: int = 0
    episodes: list[dict] = field(default_factory=list)
    events: list[dict] = field(default_factory=list)

    def seen_by(self, interest: Interest) -> "Delta":
        """The part that a subscriber asked for."""
        return Delta(
            cursor=self.cursor,
            run_state=self.run_state,
            # Copies: each socket adds to its own until it sends.
            points={name: list(rows) for name, rows in self.points.items() if name in interest.series},
            names=self.names,
            logs=self.logs if interest.logs else [],
            logs_skipped=self.logs_skipped if interest.logs else 0,
            episodes=self.episodes if interest.episodes else [],
            events=self.events,
        )


class TooFarBehind(Exception):
    """More happened since the cursor than a frame should carry: the page reads its snapshot again."""


def read_delta(run_id: UUID, after: int | None, interest: Interest) -> Delta | None:
    """What happened after the cursor `after`; None when nothing did. Without a cursor: only the state, and where to go on from.

    Raises Run.DoesNotExist and TooFarBehind.
    """
    run = Run.objects.defer("document", "config").get(pk=run_id)
    if after == run.seq:
        return None
    attempts = list(Attempt.objects.filter(run=run).order_by("number").defer("components", "devices", "exit_record"))
    delta = Delta(run.seq, run_state(run, attempts))
    if after is None:
        return delta
    batches = _batches(run, after)
    # A move of the cursor without a batch is the control plane's, and comes with an event.
    if run.seq - after != len(batches) or any("events" in touched for _, touched in batches):
        delta.events = _events(run)
    delta.names = sorted({name for _, touched in batches for name in touched.get("names", ())})
    segments = visible_segments([(attempt.number, attempt.first_step) for attempt in attempts if attempt.first_step is not None])
    delta.points = _points(run, interest.series, batches, segments)
    if interest.logs:
        delta.logs, delta.logs_skipped = _logs(run, batches)
    if interest.episodes or interest.watched:
        delta.episodes = _episodes(batches)
    return delta


def _batches(run: Run, after: int) -> list[tuple[int, dict]]:
    rows = IngestBatch.objects.filter(run=run, seq__gt=after, seq__lte=run.seq).order_by("seq").values_list("attempt", "touched")
    found = list(rows[: MAX_BATCHES + 1])
    if len(found) > MAX_BATCHES or after > run.seq:
        raise TooFarBehind(f"{run.seq - after} changes since {after}")
    return found


def _points(run: Run, names: frozenset[str], batches: list[tuple[int, dict]], segments: list[Segment]) -> dict[str, list[list]]:
    parts = _touched_parts(batches, segments)
    if not names or not parts:
        return {}
    with connection.wrap_database_errors, column_cursor() as cursor:
        rows = cursor.execute(_POINTS, [run.pk, list(names), *segment_columns(parts), MAX_POINTS + 1]).fetchall()
    if len(rows) > MAX_POINTS:
        raise TooFarBehind(f"more than {MAX_POINTS} points")
    points: dict[str, list[list]] = {}
    for name, attempt, step, value, wall in rows:
        points.setdefault(name, []).append([attempt, step, json_number(value), wall])
    return points


def _touched_parts(batches: list[tuple[int, dict]], segments: list[Segment]) -> list[Segment]:
    """The visible steps that the batches touched, without overlap."""
    merged: list[Segment] = []
    for attempt, first, stop in sorted((attempt, *touched["steps"]) for attempt, touched in batches if "steps" in touched):
        if merged and merged[-1].attempt == attempt and first <= merged[-1].stop:
            merged[-1] = Segment(attempt, merged[-1].first, max(merged[-1].stop, stop + 1))
        else:
            merged.append(Segment(attempt, first, stop + 1))
    visible = {part.attempt: part for part in segments}
    return [piece for part in merged if part.attempt in visible for piece in clip([visible[part.attempt]], part.first, part.stop)]


def _logs(run: Run, batches: list[tuple[int, dict]]) -> tuple[list[dict], int]:
    """The newest lines, and how many older ones were left out. Lines of one run are written one batch after the other, so ids rise."""
    spans = [touched["logs"] for _, touched in batches if "logs" in touched]
    if not spans:
        return [], 0
    rows = LogLine.objects.filter(run=run, id__gte=min(span[0] for span in spans), id__lte=max(span[1] for span in spans))
    newest = list(rows.order_by("-id")[: MAX_LOGS + 1])
    skipped = rows.count() - MAX_LOGS if len(newest) > MAX_LOGS else 0
    return [log_row(line) for line in newest[:MAX_LOGS][::-1]], skipped


def _episodes(batches: list[tuple[int, dict]]) -> list[dict]:
    ids = dict.fromkeys(id for _, touched in batches for id in touched.get("episodes", ()))
    if len(ids) > MAX_EPISODES:
        raise TooFarBehind(f"{len(ids)} episodes changed")
    return (
        [summary(episode) for episode in Episode.objects.filter(pk__in=ids).defer("turn_credit").order_by("-step", "group", "sample", "id")]
        if ids
        else []
    )


def _events(run: Run) -> list[dict]:
    """The newest events: those of the control plane belong to no batch, so that ids tell a page which it has."""
    newest = RunEvent.objects.filter(run=run).select_related("actor").order_by("-id")[:MAX_EVENTS]
    return [event_row(event) for event in reversed(newest)]


def log_row(line: LogLine) -> dict:
    """A log line as REST and live frames carry it."""
    return {"id": line.id, "t": line.t, "component": line.component, "level": line.level, "message": line.message, "attempt": line.attempt}


def event_row(event: RunEvent) -> dict:
    """A run event as REST and live frames carry it."""
    actor = event.actor.username if event.actor else None
    row = {name: getattr(event, name) for name in ("id", "kind", "step", "attempt", "data")}
    return {**row, "at": event.at.isoformat(), "actor": actor}


def run_state(run: Run, attempts: list[Attempt]) -> dict:
    """The header of the run page. `attempts` are all of the run's, by number."""
    newest = attempts[-1] if attempts else None
    begun = [attempt for attempt in attempts if attempt.first_step is not None]
    return {
        "state": run.state,
        "step": run.step,
        "total_steps": run.total_steps,
        "latest": run.latest,
        "waiting": run.waiting,
        "reason": run.reason,
        "attempt": newest.number if newest else None,
        "attempt_state": newest.state if newest else None,
        "phase": newest.phase if newest else "",
        "contact_lost": bool(newest and newest.contact_lost_at),
        "eta_s": _seconds_left(run, newest),
        "attempts": [{"number": attempt.number, "first_step": attempt.first_step} for attempt in begun],
    }


def _seconds_left(run: Run, attempt: Attempt | None) -> float | None:
    """Steps left times the mean seconds a step took since all that are left are alike; None while that is unknown."""
    since = _pace_since(run, attempt) if run.state == RunState.ACTIVE and attempt else None
    if since is None:
        return None
    step, moment = since
    done = run.step - step
    return round(max(run.total_steps - run.step, 0) * _age(moment) / done, 1) if done > 0 else None


def _pace_since(run: Run, attempt: Attempt) -> tuple[int, datetime] | None:
    """The step and the moment at which this attempt began what is left: of training its last stage.

    None before that: a step of a warm start may be ten times as short as one of the stage to come, of which none has been timed.
    """
    if run.is_evaluation:
        return None if attempt.running_at is None or attempt.first_step is None else (attempt.first_step, attempt.running_at)
    begun = next((event for event in _stages_begun(run) if event.attempt == attempt.number), None)
    if begun is None or begun.step is None or begun.data.get("stage") != run.method.count(" + "):
        return None
    return begun.step, begun.at


_STAGES_BEGUN = RunEvent.objects.filter(kind="stage_started").order_by("-id")
# For a list of runs, which would else ask once for each.
STAGES_BEGUN = Prefetch("events", _STAGES_BEGUN, to_attr="stages_begun")


def _stages_begun(run: Run) -> list[RunEvent]:
    """The newest first."""
    return run.stages_begun if hasattr(run, "stages_begun") else list(_STAGES_BEGUN.filter(run=run))


def _age(moment: datetime) -> float:
    return (timezone.now() - moment).total_seconds()
