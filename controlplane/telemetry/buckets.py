"""The arithmetic of charts: which attempt is visible where, how wide a bucket is, and which rows make it exact."""

from dataclasses import dataclass
from itertools import count

import numpy as np

from controlplane.telemetry import aggregates
from controlplane.telemetry.models import ROLLUP_STEPS

END = 2**62
"""A step beyond every step."""


@dataclass(frozen=True)
class Segment:
    """Steps [first, stop) on which an attempt is visible."""

    attempt: int
    first: int
    stop: int


def visible_segments(first_steps: list[tuple[int, int]]) -> list[Segment]:
    """Where each attempt is visible, given (number, first step) in order of number.

    Attempt i is visible from its first step until the first step of any later attempt; the earliest visible one also shows what it reported
    before its first step. Attempts that are hidden altogether are left out.
    """
    segments, stop = [], END
    for number, first in reversed(first_steps):
        if first < stop:
            segments.append(Segment(number, first, stop))
            stop = first
    segments.reverse()
    if segments:
        segments[0] = Segment(segments[0].attempt, 0, segments[0].stop)
    return segments


def clip(segments: list[Segment], first: int, stop: int) -> list[Segment]:
    """The parts of `segments` within [first, stop)."""
    parts = (Segment(part.attempt, max(part.first, first), min(part.stop, stop)) for part in segments)
    return [part for part in parts if part.first < part.stop]


def segment_columns(parts: list[Segment]) -> list[np.ndarray]:
    """Attempts, first and stop steps as columns for a query."""
    kinds = (("attempt", "int16"), ("first", "int64"), ("stop", "int64"))
    return [np.array([getattr(part, name) for part in parts], kind) for name, kind in kinds]


def nice_width(first: int, last: int, buckets: int) -> int:
    """The smallest of 1, 2, 5, 10, 20, 100, 200, 500, … with which at most `buckets` cover [first, last]; edges are multiples of it.

    Edges do not depend on where the data begins or ends: more data adds buckets, until the next width is due.
    """
    # 50 is left out: it would read the raw points of the longest ranges, where 100 reads a hundredth as many rollups.
    widths = (digit * 10**power for power in count() for digit in (1, 2, 5) if digit * 10**power != 50)
    return next(width for width in widths if last // width - first // width < buckets)


@dataclass(frozen=True)
class Plan:
    """Which rows cover a range exactly: whole rollups where a segment holds them whole, raw points at its ends.

    `raw` are segments of steps, `rolled` segments of rollup numbers.
    """

    raw: list[Segment]
    rolled: list[Segment]


def plan(segments: list[Segment], width: int) -> Plan:
    """The cheapest exact plan for `segments`, which the caller clipped to whole buckets of `width`."""
    if width % ROLLUP_STEPS:
        return Plan(segments, [])
    raw, rolled = [], []
    for part in segments:
        first, stop = -(-part.first // ROLLUP_STEPS), part.stop // ROLLUP_STEPS
        if first >= stop:
            raw.append(part)
            continue
        rolled.append(Segment(part.attempt, first, stop))
        raw.append(Segment(part.attempt, part.first, first * ROLLUP_STEPS))
        raw.append(Segment(part.attempt, stop * ROLLUP_STEPS, part.stop))
    return Plan([part for part in raw if part.first < part.stop], rolled)


@dataclass(frozen=True)
class Buckets:
    """Buckets of one series in rising order; only those that hold a value. Steps [start, start + width)."""

    start: np.ndarray
    parts: aggregates.Parts

    @property
    def mean(self) -> np.ndarray:
        """Mean of the finite values, NaN where there are none; infinite when their sum leaves float64."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.parts.count > 0, self.parts.total / self.parts.count, np.nan)


def cut(series: np.ndarray, step: np.ndarray, parts: aggregates.Parts, width: int, number: int) -> list[Buckets]:
    """Merge rows into buckets of `width`, for series 0 to `number` − 1. `step` is any step of a row's bucket."""
    if not len(series):
        return [Buckets(step, parts) for _ in range(number)]
    bucket = step // width
    low = int(bucket.min())
    span = int(bucket.max()) - low + 1
    groups, merged = aggregates.merge(series * span + (bucket - low), parts)
    edges = np.searchsorted(groups, np.arange(number + 1) * span)
    pieces = [slice(first, stop) for first, stop in zip(edges[:-1], edges[1:], strict=True)]
    return [Buckets((groups[piece] % span + low) * width, merged.take(piece)) for piece in pieces]
