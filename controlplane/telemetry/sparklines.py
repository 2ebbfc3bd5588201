"""Small curves of one series for many runs in one query: points of young runs, rollups of long ones."""

import math
import uuid
from collections.abc import Sequence

from django.db import connection

POINTS = 40
# From here on a run has enough rollups to draw a curve, and too many points to read for fifty runs at once.
LONG = 1000
_READ = """
    SELECT series.run_id, curve.values
    FROM telemetry_series AS series
    JOIN runs_run AS run ON run.id = series.run_id
    CROSS JOIN LATERAL (
        SELECT array_agg(value ORDER BY x) AS values FROM (
            SELECT DISTINCT ON (x) x, value FROM (
                SELECT step AS x, attempt, value FROM telemetry_point WHERE series_id = series.id AND run.step < %(long)s
                UNION ALL
                SELECT bucket, attempt, total / count FROM telemetry_rollup WHERE series_id = series.id AND count > 0 AND run.step >= %(long)s
            ) AS every
            ORDER BY x, attempt DESC
        ) AS newest
    ) AS curve
    WHERE series.run_id = ANY(%(runs)s) AND series.name = %(name)s AND series.axis = 'step' AND curve.values IS NOT NULL
"""


def sparklines(runs: Sequence[uuid.UUID], name: str, points: int = POINTS) -> dict[uuid.UUID, list[float | None]]:
    """At most `points` values of series `name` over each run's steps, the newest attempt's where several reported; None where not finite."""
    if not runs:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(_READ, {"runs": list(runs), "name": name, "long": LONG})
        return {run: thinned(values, points) for run, values in cursor.fetchall()}


def thinned(values: list[float], points: int) -> list[float | None]:
    """The means of at most `points` even slices of `values`."""
    count = min(points, len(values))
    pieces = [values[at * len(values) // count : (at + 1) * len(values) // count] for at in range(count)]
    if all(map(math.isfinite, values)):
        return [sum(piece) / len(piece) for piece in pieces]
    return [_mean([value for value in piece if math.isfinite(value)]) for piece in pieces]


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
