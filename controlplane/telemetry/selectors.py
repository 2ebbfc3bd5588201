"""Reading metrics: exact buckets for charts, the last values for lists and rules, names by search, everything as CSV."""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import numpy as np
from channels.db import database_sync_to_async
from django.db import connection
from django.db.models import Max, Min, OuterRef, Subquery

from controlplane.runs.models import Attempt, Run
from controlplane.telemetry import aggregates, buckets
from controlplane.telemetry.arrays import column_cursor, fetch_columns
from controlplane.telemetry.buckets import Buckets, Segment
from controlplane.telemetry.models import ROLLUP_STEPS, Axis, LogLine, Series, WallSample

MAX_BUCKETS = 5_000
TOKENS = "perf/total_num_tokens"
_EXPORT_PAGE = 20_000

# One statement, so that the cursor and the points are of one snapshot: what comes after that cursor is in none of the buckets.
_READ = """
    SELECT run.seq, raw.*, rolled.* FROM runs_run AS run,
    LATERAL (
        SELECT coalesce(array_agg(rank), '{}'), coalesce(array_agg(step), '{}'),
            coalesce(array_agg(value), '{}'), coalesce(array_agg(wall), '{}')
        FROM unnest(%(ids)s) WITH ORDINALITY AS wanted (id, rank)
        CROSS JOIN unnest(%(raw_attempt)s, %(raw_first)s, %(raw_stop)s) AS part (attempt, first, stop)
        CROSS JOIN LATERAL (
            SELECT step, value, wall FROM telemetry_point
            WHERE series_id = wanted.id AND attempt = part.attempt AND step >= part.first AND step < part.stop
        ) AS point
    ) AS raw,
    LATERAL (
        SELECT coalesce(array_agg(rank), '{}'), coalesce(array_agg(bucket), '{}'), coalesce(array_agg(count::int8), '{}'),
            coalesce(array_agg(nan::int8), '{}'), coalesce(array_agg(positive_infinite::int8), '{}'),
            coalesce(array_agg(negative_infinite::int8), '{}'), coalesce(array_agg(coalesce(minimum, 'NaN')), '{}'),
            coalesce(array_agg(coalesce(maximum, 'NaN')), '{}'), coalesce(array_agg(coalesce(total, 0)), '{}'),
            coalesce(array_agg(coalesce(last_step, -1)), '{}'), coalesce(array_agg(coalesce(last_value, 'NaN')), '{}'),
            coalesce(array_agg(last_wall), '{}')
        FROM unnest(%(ids)s) WITH ORDINALITY AS wanted (id, rank)
        CROSS JOIN unnest(%(rolled_attempt)s, %(rolled_first)s, %(rolled_stop)s) AS part (attempt, first, stop)
        CROSS JOIN LATERAL (
            SELECT * FROM telemetry_rollup
            WHERE series_id = wanted.id AND attempt = part.attempt AND bucket >= part.first AND bucket < part.stop
        ) AS rollup
    ) AS rolled
    WHERE run.id = %(run)s
"""
_TAIL = """
    SELECT coalesce(array_agg(rank), '{}'), coalesce(array_agg(step), '{}'),
        coalesce(array_agg(value), '{}'), coalesce(array_agg(wall), '{}')
    FROM unnest(%s) WITH ORDINALITY AS wanted (id, rank)
    CROSS JOIN unnest(%s, %s, %s) AS part (attempt, first, stop)
    CROSS JOIN LATERAL (
        SELECT step, value, wall FROM telemetry_point
        WHERE series_id = wanted.id AND attempt = part.attempt AND step >= part.first AND step < part.stop
        ORDER BY step DESC LIMIT %s
    ) AS point
"""


@dataclass(frozen=True)
class Chart:
    """Buckets of several series of one run, exact as of the run's cursor.

    Every bucket is [k · width, (k + 1) · width). `tokens` holds, where asked for, the tokens of each bucket; `tokens_before`, those before.
    """

    cursor: int
    width: int
    first: int
    last: int
    segments: list[Segment]
    series: dict[str, Buckets]
    tokens: Buckets | None = None
    tokens_before: float = 0.0


@dataclass(frozen=True)
class Tail:
    """The last points of a series, oldest first."""

    step: np.ndarray
    value: np.ndarray
    wall: np.ndarray


def segments_of(run: Run) -> list[Segment]:
    """Where each attempt of the run is visible."""
    started = Attempt.objects.filter(run=run, first_step__isnull=False).order_by("number")
    return buckets.visible_segments(list(started.values_list("number", "first_step")))


def read_chart(
    run: Run, names: Sequence[str], buckets_wanted: int = 600, first: int | None = None, last: int | None = None, tokens: bool = False
) -> Chart:
    """Exact buckets of `names` over steps [first, last], by default from 0 to the run's step. Unknown names have no bucket.

    Raises ValueError when the range is empty or more than MAX_BUCKETS buckets are wanted.
    """
    first, last = first or 0, run.step if last is None else last
    if first < 0 or last < first:
        raise ValueError(f"from, to: {first} to {last} is no range of steps")
    if not 1 <= buckets_wanted <= MAX_BUCKETS:
        raise ValueError(f"buckets: {buckets_wanted} must lie in 1 to {MAX_BUCKETS}")
    width, segments = buckets.nice_width(first, last, buckets_wanted), segments_of(run)
    low, stop = first // width * width, (last // width + 1) * width
    wanted = list(dict.fromkeys([*names, TOKENS] if tokens else names))
    cursor, found = _read(run, wanted, segments, low, stop, width)
    series = dict(zip(wanted, found, strict=True))
    before = _tokens_before(run, segments, low) if tokens else 0.0
    return Chart(cursor, width, low, stop - 1, segments, {name: series[name] for name in names}, series[TOKENS] if tokens else None, before)


def _read(run: Run, names: list[str], segments: list[Segment], low: int, stop: int, width: int) -> tuple[int, list[Buckets]]:
    plan = buckets.plan(buckets.clip(segments, low, stop), width)
    row = fetch_columns(_READ, {"run": run.pk, "ids": _ids(run, names), **_ranges("raw", plan.raw), **_ranges("rolled", plan.rolled)})
    cursor, raw, rolled = row[0], row[1:5], row[5:]
    parts = aggregates.concatenate(aggregates.of_points(*raw[1:]), aggregates.Parts(*rolled[2:]))
    rank = np.concatenate([raw[0], rolled[0]]) - 1
    step = np.concatenate([raw[1], rolled[1] * ROLLUP_STEPS])
    return cursor, buckets.cut(rank, step, parts, width, len(names))


def _ranges(prefix: str, parts: list[Segment]) -> dict[str, np.ndarray]:
    return dict(zip((f"{prefix}_attempt", f"{prefix}_first", f"{prefix}_stop"), buckets.segment_columns(parts), strict=True))


def _ids(run: Run, names: Sequence[str]) -> np.ndarray:
    known = dict(Series.objects.filter(run=run, axis=Axis.STEP, name__in=names).values_list("name", "id"))
    return np.array([known.get(name, -1) for name in names], "int64")


def _tokens_before(run: Run, segments: list[Segment], step: int) -> float:
    if step <= 0:
        return 0.0
    whole = -(-step // ROLLUP_STEPS) * ROLLUP_STEPS
    _, (found,) = _read(run, [TOKENS], buckets.clip(segments, 0, step), 0, whole, ROLLUP_STEPS)
    return float(found.parts.total.sum())


# ---------------------------------------------------------------- last values
def tail(run: Run, names: Sequence[str], n: int) -> dict[str, Tail]:
    """The last `n` visible points of each of `names`; unknown ones are empty."""
    ranges = buckets.segment_columns(segments_of(run))
    rank, step, value, wall = fetch_columns(_TAIL, [_ids(run, names), *ranges, n])
    order = np.lexsort((step, rank))
    edges = np.searchsorted(rank[order], np.arange(1, len(names) + 2))
    pieces = [order[first:stop][-n:] for first, stop in zip(edges[:-1], edges[1:], strict=True)]
    return {name: Tail(step[rows], value[rows], wall[rows]) for name, rows in zip(names, pieces, strict=True)}


def latest(run: Run) -> dict[str, tuple[int, float]]:
    """The newest visible (step, value) of every series over steps."""
    names = list(Series.objects.filter(run=run, axis=Axis.STEP).order_by("name").values_list("name", flat=True))
    return {name: (int(found.step[-1]), float(found.value[-1])) for name, found in tail(run, names, 1).items() if len(found.step)}


@dataclass(frozen=True)
class SeriesName:
    """A series as lists show it; `last` is (x, value), x being a step or Unix seconds by `axis`."""

    name: str
    axis: str
    last: tuple[float, float] | None


def search_names(run: Run, search: str = "", after: str = "", limit: int = 100) -> list[SeriesName]:
    """Series whose name holds every word of `search`, by name, beginning after the name `after`."""
    rows = Series.objects.filter(run=run, name__gt=after)
    for word in search.split():
        rows = rows.filter(name__icontains=word)
    found = list(rows.order_by("name", "axis")[:limit])
    steps = tail(run, [series.name for series in found if series.axis == Axis.STEP], 1)
    walls = {series.pk: _last_sample(series) for series in found if series.axis == Axis.WALL}
    return [SeriesName(series.name, series.axis, walls[series.pk] if series.pk in walls else _last(steps[series.name])) for series in found]


def _last(found: Tail) -> tuple[float, float] | None:
    return (int(found.step[-1]), float(found.value[-1])) if len(found.step) else None


def _last_sample(series: Series) -> tuple[float, float] | None:
    return WallSample.objects.filter(series_id=series.pk).order_by("-wall").values_list("wall", "value").first()


# ---------------------------------------------------------------- wall-clock series, logs, export
def slowest_sample(run: Run, prefix: str, within_s: float) -> tuple[str, float] | None:
    """(series, value) of the largest among the newest samples of the wall-clock series named `prefix`…; None without one in that time."""
    recent = WallSample.objects.filter(series_id=OuterRef("pk"), wall__gte=time.time() - within_s).order_by("-wall")
    newest = Subquery(recent.values("value")[:1])
    rows = Series.objects.filter(run=run, axis=Axis.WALL, name__startswith=prefix).annotate(newest=newest)
    return rows.filter(newest__isnull=False).order_by("-newest").values_list("name", "newest").first()


def idlest_sample(run: Run, names: str, over_s: float) -> tuple[str, float] | None:
    """(series, largest value) of the wall-clock series whose largest value over the last `over_s` seconds is least; `names` is a regular
    expression. None while none of them was told of for that long and until now."""
    now = time.time()
    known = dict(Series.objects.filter(run=run, axis=Axis.WALL, name__regex=names).values_list("id", "name"))
    recent = WallSample.objects.filter(series_id__in=known, wall__gte=now - over_s)
    told = recent.values("series_id").annotate(most=Max("value"), first=Min("wall"), last=Max("wall"))
    slack = over_s / 5
    found = told.filter(first__lte=now - over_s + slack, last__gte=now - slack).order_by("most").first()
    return (known[found["series_id"]], found["most"]) if found else None


def read_samples(
    run: Run, names: Sequence[str], first: float | None = None, last: float | None = None, limit: int = 5_000
) -> dict[str, list[tuple[float, float]]]:
    """The newest `limit` samples of each wall-clock series within [first, last] Unix seconds, oldest first."""
    ids = dict(Series.objects.filter(run=run, axis=Axis.WALL, name__in=names).values_list("name", "id"))
    found = {}
    for name in names:
        rows = WallSample.objects.filter(series_id=ids.get(name, -1))
        rows = rows.filter(wall__gte=first) if first is not None else rows
        rows = rows.filter(wall__lte=last) if last is not None else rows
        found[name] = list(rows.order_by("-wall").values_list("wall", "value")[:limit])[::-1]
    return found


def search_logs(
    run: Run,
    *,
    search: str = "",
    components: Sequence[str] = (),
    levels: Sequence[str] = (),
    attempt: int | None = None,
    before: int | None = None,
    after: int | None = None,
    limit: int = 200,
) -> list[LogLine]:
    """Log lines in order of arrival: the newest `limit` below id `before`, or the oldest `limit` above id `after`."""
    rows = LogLine.objects.filter(run=run)
    rows = rows.filter(component__in=components) if components else rows
    rows = rows.filter(level__in=levels) if levels else rows
    rows = rows.filter(attempt=attempt) if attempt is not None else rows
    rows = rows.filter(message__icontains=search) if search else rows
    if after is not None:
        return list(rows.filter(id__gt=after).order_by("id")[:limit])
    rows = rows.filter(id__lt=before) if before is not None else rows
    return list(rows.order_by("-id")[:limit])[::-1]


async def export_csv(run: Run, names: Sequence[str] = ()) -> AsyncIterator[bytes]:
    """Every raw point of `names` (all when empty), hidden ones too, as CSV in pages: the whole is never in memory."""
    series = Series.objects.filter(run=run, axis=Axis.STEP).order_by("name")
    chosen = await database_sync_to_async(list)((series.filter(name__in=names) if names else series).values_list("id", "name"))
    visible = {part.attempt: part for part in await database_sync_to_async(segments_of)(run)}
    yield b"name,attempt,step,value,wall,visible\r\n"
    for id, name in chosen:
        after = (-1, -1)
        while page := await database_sync_to_async(_export_page)(id, after):
            after = page[-1][:2]
            yield "".join(_csv_line(name, visible, *row) for row in page).encode()


def _export_page(series: int, after: tuple[int, int]) -> list[tuple]:
    with connection.wrap_database_errors, column_cursor() as cursor:
        return cursor.execute(
            """
            SELECT attempt, step, value, wall FROM telemetry_point
            WHERE series_id = %s AND (attempt, step) > (%s, %s) ORDER BY attempt, step LIMIT %s
            """,
            [series, *after, _EXPORT_PAGE],
        ).fetchall()


def _csv_line(name: str, visible: dict[int, Segment], attempt: int, step: int, value: float, wall: float) -> str:
    part = visible.get(attempt)
    shown = part is not None and part.first <= step < part.stop
    quoted = '"' + name.replace('"', '""') + '"'
    # A cell that begins with one of these is run as a formula by spreadsheets.
    quoted = quoted.replace('"', "\"'", 1) if name[0] in "=+-@" else quoted
    return f"{quoted},{attempt},{step},{value!r},{wall!r},{str(shown).lower()}\r\n"
