"""What checkpoints scored, from the stored points rather than a trainer's memory: a metric added later can still choose among them.

A peak is the best held-out value that a run reached. Where its weights are gone, the page says so instead of showing the best that is
left as if it were the best there was.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.retention import MIN_DELTA, Item, may_win, worth
from controlplane.runs.models import Run
from controlplane.telemetry.buckets import Segment
from controlplane.telemetry.models import Axis, Point, Series
from controlplane.telemetry.selectors import segments_of
from runner.contract.metrics import EFFECTIVE, is_tracked
from runner.contract.states import CheckpointState

Scores = dict[tuple[int, int], dict[str, float]]
HELD = (CheckpointState.COMPLETE, CheckpointState.WRITING)


@dataclass(frozen=True)
class LostPeak:
    """The best value of a held-out metric, whose weights are gone. `held_step` and `held` are of the best that is left, None without one."""

    metric: str
    step: int
    value: float
    held_step: int | None
    held: float | None


def stored_scores(run: Run) -> Scores:
    """(attempt, step) → held-out values of every tracked metric there, also of attempts whose steps were run again."""
    series = Series.objects.filter(run=run, axis=Axis.STEP, name__startswith="val/").values_list("id", "name")
    names = {id: name for id, name in series if is_tracked(name) or name == EFFECTIVE}
    scores: Scores = defaultdict(dict)
    for id, attempt, step, value in Point.objects.filter(series_id__in=names).values_list("series_id", "attempt", "step", "value"):
        if math.isfinite(value):
            scores[attempt, step][names[id]] = value
    return scores


def item_of(row: Checkpoint, scores: Scores) -> Item:
    """A checkpoint as retention sees it: what its runner told of it, and what is stored at its step."""
    metrics = scores.get((row.attempt, row.step), {}) | row.metrics
    return Item(row.pk, row.step, row.completed_at, metrics, row.pinned_at is not None, bool(row.manifest.get("adapter")))


def lost_peaks(run: Run) -> list[LostPeak]:
    """Held-out peaks of the run, as its charts show them, that no checkpoint on disk comes up to."""
    scores = stored_scores(run)
    rows, visible = Checkpoint.objects.filter(run=run, state__in=HELD), segments_of(run)
    held = [(row.step, scores.get((row.attempt, row.step), {}) | row.metrics) for row in rows]
    # Step 0 is the model the run began from, which it does not keep.
    seen = [(step, values) for (attempt, step), values in scores.items() if step and _is_visible(visible, attempt, step)]
    names = sorted({name for _, values in seen for name in values if is_tracked(name)})
    found = (_lost(name, seen, held) for name in names)
    return [peak for peak in found if peak]


def _is_visible(visible: list[Segment], attempt: int, step: int) -> bool:
    return any(part.attempt == attempt and part.first <= step < part.stop for part in visible)


def _lost(name: str, seen: list[tuple[int, dict]], held: list[tuple[int, dict]]) -> LostPeak | None:
    peak, left = _best(name, seen), _best(name, held)
    if peak is None or (left and worth(name, left[1]) >= worth(name, peak[1]) - MIN_DELTA):
        return None
    return LostPeak(name, peak[0], peak[1][name], left and left[0], left and left[1][name])


def _best(name: str, scored: list[tuple[int, dict]]) -> tuple[int, dict] | None:
    able = sorted((item for item in scored if may_win(name, item[1])), key=lambda item: item[0])
    return max(able, key=lambda item: worth(name, item[1]), default=None)
