"""Exact aggregates that merge: raw points and rollups alike become rows of `Parts`, and rows of one group become one row.

Finite values give min, max, total and last (by step); NaN, +∞ and −∞ are counted apart. Merging rollups and merging the raw points under
them give the same result, except that a total of float64 values depends in its last bits on the order of addition.
"""

from dataclasses import dataclass, fields

import numpy as np

NO_STEP = -1


@dataclass
class Parts:
    """Equally long columns. Where `count` is 0: minimum, maximum and last_value are NaN, total is 0, last_step is NO_STEP."""

    count: np.ndarray
    nan: np.ndarray
    positive_infinite: np.ndarray
    negative_infinite: np.ndarray
    minimum: np.ndarray
    maximum: np.ndarray
    total: np.ndarray
    last_step: np.ndarray
    last_value: np.ndarray
    last_wall: np.ndarray

    def __len__(self) -> int:
        return len(self.count)

    def columns(self) -> list[np.ndarray]:
        return [getattr(self, field.name) for field in fields(self)]

    def take(self, rows) -> "Parts":
        return Parts(*(column[rows] for column in self.columns()))


def of_points(step: np.ndarray, value: np.ndarray, wall: np.ndarray) -> Parts:
    """One row a point."""
    finite = np.isfinite(value)
    known = np.where(finite, value, np.nan)
    return Parts(
        count=finite.astype("int64"),
        nan=np.isnan(value).astype("int64"),
        positive_infinite=np.isposinf(value).astype("int64"),
        negative_infinite=np.isneginf(value).astype("int64"),
        minimum=known,
        maximum=known,
        total=np.where(finite, value, 0.0),
        last_step=np.where(finite, step, NO_STEP),
        last_value=known,
        last_wall=np.asarray(wall, "float64"),
    )


def concatenate(*several: Parts) -> Parts:
    return Parts(*(np.concatenate(columns) for columns in zip(*(parts.columns() for parts in several), strict=True)))


def merge(group: np.ndarray, parts: Parts) -> tuple[np.ndarray, Parts]:
    """The distinct groups in rising order, and one row for each. `group` holds one whole number a row."""
    if not len(group):
        return group, parts
    group, parts = _in_order(group, parts)
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    ends = np.r_[starts[1:], len(group)] - 1
    with np.errstate(over="ignore", invalid="ignore"):
        merged = Parts(
            count=np.add.reduceat(parts.count, starts),
            nan=np.add.reduceat(parts.nan, starts),
            positive_infinite=np.add.reduceat(parts.positive_infinite, starts),
            negative_infinite=np.add.reduceat(parts.negative_infinite, starts),
            minimum=np.fmin.reduceat(parts.minimum, starts),
            maximum=np.fmax.reduceat(parts.maximum, starts),
            total=np.add.reduceat(parts.total, starts),
            last_step=parts.last_step[ends],
            last_value=parts.last_value[ends],
            last_wall=np.maximum.reduceat(parts.last_wall, starts),
        )
    return group[starts], merged


def _in_order(group: np.ndarray, parts: Parts) -> tuple[np.ndarray, Parts]:
    """Rows by group and then by last finite step, so that the last row of a group holds its last value."""
    rising = (group[1:] > group[:-1]) | ((group[1:] == group[:-1]) & (parts.last_step[1:] >= parts.last_step[:-1]))
    if rising.all():
        return group, parts
    order = np.lexsort((parts.last_step, group))
    return group[order], parts.take(order)
