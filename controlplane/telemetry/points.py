"""Writing points: one insert that keeps the first value of a step, and the rollup of exactly the rows it returned."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from django.db import connection, transaction

from controlplane.telemetry import aggregates
from controlplane.telemetry.arrays import column_cursor, fetch_columns
from controlplane.telemetry.models import ROLLUP_STEPS, Axis, Series
from runner.contract.events import Points, Samples

_INSERT_POINTS = """
    WITH inserted AS (
        INSERT INTO telemetry_point (series_id, attempt, step, value, wall)
        SELECT series_id, %s::int2, step, value, wall FROM unnest(%s, %s, %s, %s) AS sent (series_id, step, value, wall)
        ON CONFLICT DO NOTHING
        RETURNING series_id, step, value, wall
    )
    SELECT coalesce(array_agg(series_id), '{}'), coalesce(array_agg(step), '{}'),
        coalesce(array_agg(value), '{}'), coalesce(array_agg(wall), '{}')
    FROM inserted
"""
# Postgres holds NaN equal to NaN, so that a repeated NaN is no conflict.
_COUNT_CONFLICTS = """
    SELECT count(*) FROM unnest(%s, %s, %s) AS sent (series_id, step, value)
    JOIN telemetry_point AS kept ON kept.series_id = sent.series_id AND kept.attempt = %s AND kept.step = sent.step
    WHERE kept.value <> sent.value
"""
# Postgres refuses a sum that leaves float64, and one refused batch would be sent for ever: such a total becomes infinite instead.
_ADD_ROLLUPS = """
    INSERT INTO telemetry_rollup AS kept (series_id, attempt, bucket, count, nan, positive_infinite, negative_infinite,
                                          minimum, maximum, total, last_step, last_value, last_wall)
    SELECT series_id, %s::int2, bucket, count, nan, positive_infinite, negative_infinite,
           nullif(minimum, 'NaN'), nullif(maximum, 'NaN'), CASE WHEN count > 0 THEN total END,
           nullif(last_step, -1), nullif(last_value, 'NaN'), last_wall
    FROM unnest(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
        AS added (series_id, bucket, count, nan, positive_infinite, negative_infinite,
                  minimum, maximum, total, last_step, last_value, last_wall)
    ON CONFLICT (series_id, attempt, bucket) DO UPDATE SET
        count = kept.count + excluded.count,
        nan = kept.nan + excluded.nan,
        positive_infinite = kept.positive_infinite + excluded.positive_infinite,
        negative_infinite = kept.negative_infinite + excluded.negative_infinite,
        minimum = least(kept.minimum, excluded.minimum),
        maximum = greatest(kept.maximum, excluded.maximum),
        total = CASE
            WHEN kept.total IS NULL OR excluded.total IS NULL THEN coalesce(kept.total, excluded.total)
            WHEN greatest(abs(kept.total), abs(excluded.total)) < 8e307 THEN kept.total + excluded.total
            ELSE sign(CASE WHEN abs(kept.total) >= abs(excluded.total) THEN kept.total ELSE excluded.total END) * 'Infinity'::float8
        END,
        last_value = CASE
            WHEN excluded.last_step > kept.last_step OR kept.last_step IS NULL THEN excluded.last_value ELSE kept.last_value
        END,
        last_step = greatest(kept.last_step, excluded.last_step),
        last_wall = greatest(kept.last_wall, excluded.last_wall)
"""
_INSERT_SAMPLES = """
    INSERT INTO telemetry_wallsample (series_id, wall, value) SELECT * FROM unnest(%s, %s, %s) ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True)
class Written:
    """What became of the points of a batch; `inserted` holds the new rows, `names` the series that were new to the run."""

    inserted: Points
    repeated: int = 0
    conflicting: int = 0
    names: tuple[str, ...] = ()


def write_points(run_id, attempt: int, points: Points) -> Written:
    """Insert inside the caller's transaction. A step keeps the first value it got; another one is counted as a conflict."""
    if not len(points):
        return Written(Points())
    ids, new = series_ids(run_id, Axis.STEP, points.names)
    series = ids[points.series]
    inserted = fetch_columns(_INSERT_POINTS, [attempt, series, points.step, points.value, points.wall])
    add_rollups(attempt, *inserted)
    missing = len(points) - len(inserted[0])
    conflicting = fetch_columns(_COUNT_CONFLICTS, [series, points.step, points.value, attempt])[0] if missing else 0
    return Written(_named(points.names, ids, *inserted), missing - conflicting, conflicting, new)


def _named(names: list[str], ids: np.ndarray, series: np.ndarray, step, value, wall) -> Points:
    order = np.argsort(ids, kind="stable")
    return Points(names, order[np.searchsorted(ids, series, sorter=order)].astype("int32"), step, value, wall)


def add_rollups(attempt: int, series: np.ndarray, step: np.ndarray, value: np.ndarray, wall: np.ndarray) -> None:
    """Add just inserted rows to their rollups."""
    if not len(series):
        return
    distinct, series_rank = np.unique(series, return_inverse=True)
    buckets, bucket_rank = np.unique(step // ROLLUP_STEPS, return_inverse=True)
    groups, parts = aggregates.merge(series_rank * len(buckets) + bucket_rank, aggregates.of_points(step, value, wall))
    with connection.wrap_database_errors, column_cursor() as cursor:
        cursor.execute(_ADD_ROLLUPS, [attempt, distinct[groups // len(buckets)], buckets[groups % len(buckets)], *parts.columns()])


def write_samples(run_id, samples: Samples) -> tuple[str, ...]:
    """Insert wall-clock samples; returns the names that were new to the run."""
    if not len(samples):
        return ()
    ids, new = series_ids(run_id, Axis.WALL, samples.names)
    with connection.wrap_database_errors, column_cursor() as cursor:
        cursor.execute(_INSERT_SAMPLES, [ids[samples.series], samples.wall, samples.value])
    return new


def series_ids(run_id, axis: Axis, names: list[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """The series of each name, made where missing, and the names that were. The caller holds the run's lock."""
    known = {name: found for name in set(names) if (found := _cached_ids(run_id, axis).get(name))}
    if missing := sorted(set(names) - known.keys()):
        found = dict(Series.objects.filter(run_id=run_id, axis=axis, name__in=missing).values_list("name", "id"))
        created = Series.objects.bulk_create(Series(run_id=run_id, axis=axis, name=name) for name in missing if name not in found)
        fresh = found | {series.name: series.pk for series in created}
        # Only once they are committed: a rolled-back series must not be remembered.
        transaction.on_commit(lambda: _cached_ids(run_id, axis).update(fresh))
        known |= fresh
        missing = [series.name for series in created]
    return np.array([known[name] for name in names], "int64"), tuple(missing)


@lru_cache(maxsize=256)
def _cached_ids(run_id, axis: Axis) -> dict[str, int]:
    return {}
