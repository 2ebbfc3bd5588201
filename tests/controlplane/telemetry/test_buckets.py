"""Buckets are exact: they equal brute force over the visible points, whatever the history of the run."""

import math
from collections import defaultdict

import numpy as np
import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.runs.models import Attempt, Run
from controlplane.telemetry import selectors
from controlplane.telemetry.buckets import END, Segment, nice_width, plan, visible_segments
from controlplane.telemetry.services import accept_batch
from runner.contract.states import AttemptState
from tests.controlplane.factories import make_attempt, make_batch, make_run


class TestWidth:
    @pytest.mark.parametrize(
        ("first", "last", "buckets", "width"),
        [
            (0, 0, 600, 1),
            (0, 599, 600, 1),
            (0, 600, 600, 2),
            (0, 99_999, 600, 200),
            (0, 29_999, 600, 100),
            (50_000, 50_400, 600, 1),
            (0, 10**6, 600, 2000),
            (7, 8, 1, 5),
            (9, 10, 1, 20),
        ],
    )
    def test_it_is_the_smallest_nice_one(self, first, last, buckets, width):
        assert nice_width(first, last, buckets) == width

    @given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 2000))
    def test_there_are_never_more_buckets_than_wanted(self, first, length, buckets):
        width = nice_width(first, first + length, buckets)
        assert (first + length) // width - first // width + 1 <= buckets
        assert str(width).rstrip("0") in ("1", "2", "5") and width != 50

    @given(st.integers(0, 10**6), st.integers(0, 10**6))
    def test_more_data_never_means_narrower_buckets(self, length, growth):
        assert nice_width(0, length + growth, 600) >= nice_width(0, length, 600)


class TestVisibility:
    def test_a_later_attempt_hides_the_steps_it_runs_again(self):
        assert visible_segments([(1, 0), (2, 40)]) == [Segment(1, 0, 40), Segment(2, 40, END)]

    def test_going_back_behind_an_attempt_hides_it_altogether(self):
        assert visible_segments([(1, 0), (2, 40), (3, 20)]) == [Segment(1, 0, 20), Segment(3, 20, END)]

    def test_what_was_reported_before_the_first_step_is_shown(self):
        assert visible_segments([(1, 1)]) == [Segment(1, 0, END)]

    def test_nothing_started_nothing_visible(self):
        assert visible_segments([]) == []

    @given(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
    def test_each_step_is_visible_once(self, firsts):
        segments = visible_segments(list(enumerate(firsts, 1)))
        assert segments[0].first == 0 and segments[-1].stop == END
        assert all(one.stop == two.first for one, two in zip(segments, segments[1:], strict=False))
        assert segments[-1].attempt == len(firsts)


@given(st.lists(st.integers(0, 2000), min_size=1, max_size=5), st.sampled_from([1, 50, 100, 500, 1000]))
def test_a_plan_covers_each_step_once(firsts, width):
    segments = visible_segments(list(enumerate(firsts, 1)))
    made = plan([part if part.stop < END else Segment(part.attempt, part.first, 5000) for part in segments], width)
    covered = defaultdict(int)
    for part in made.raw:
        for step in range(part.first, part.stop):
            covered[part.attempt, step] += 1
    for part in made.rolled:
        for step in range(part.first * 100, part.stop * 100):
            covered[part.attempt, step] += 1
    assert set(covered.values()) == {1} and sorted(step for _, step in covered) == list(range(5000))


VALUES = st.one_of(st.floats(-1e6, 1e6), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e300, -1e300, 5e-324]))
STEPS = st.one_of(st.integers(0, 450), st.integers(0, 450).map(lambda step: step // 50 * 50), st.integers(0, 20_000))
BATCH = st.tuples(st.integers(1, 3), st.lists(st.tuples(st.sampled_from(["a", "b"]), STEPS, VALUES), max_size=30))


@pytest.mark.django_db
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    batches=st.lists(BATCH, min_size=1, max_size=6),
    firsts=st.tuples(st.integers(0, 300), st.integers(0, 300), st.integers(0, 300)),
    wanted=st.sampled_from([1, 3, 7, 50, 600]),
    window=st.one_of(st.none(), st.tuples(st.integers(0, 500), st.integers(0, 500))),
)
def test_buckets_equal_brute_force(team, storage, batches, firsts, wanted, window):
    """NaN, infinity, repeated and out-of-order steps, over attempts that overlap; from rollups and from raw points."""
    with transaction.atomic():
        run = make_run(team)
        attempts = [make_attempt(run, number, state=AttemptState.LOST, first_step=first) for number, first in enumerate(firsts, 1)]
        kept = _deliver(attempts, batches)
        run.refresh_from_db()
        first, last = (min(window), max(window)) if window else (0, max((step for _, _, step in kept), default=0))
        chart = selectors.read_chart(run, ["a", "b"], wanted, first, last)
        assert chart.cursor == len(batches)
        visible = _visible(firsts, kept)
        for name in "ab":
            _compare(chart, name, {step: value for (series, step), value in visible.items() if series == name})
        _compare_tails(run, visible)
        transaction.set_rollback(True)


def _deliver(attempts, batches) -> dict:
    """Send the batches; the slow reference keeps the first value of (series, attempt, step)."""
    kept = {}
    for sequence, (number, rows) in enumerate(batches):
        series = {name: [(step, value) for other, step, value in rows if other == name] for name in "ab"}
        for name, points in series.items():
            for step, value in points:
                kept.setdefault((name, number, step), value)
        attempt = Attempt.objects.select_related("run__project").get(pk=attempts[number - 1].pk)
        accept_batch(attempt, make_batch(sequence, series, emitter=f"e{number}"))
    return kept


def _visible(firsts, kept) -> dict:
    """A step shows the newest attempt that began at or before it; steps before every beginning show the one that began first."""

    def shown(step):
        begun = [number for number, first in enumerate(firsts, 1) if first <= step]
        return max(begun) if begun else max(number for number, first in enumerate(firsts, 1) if first == min(firsts))

    return {(name, step): value for (name, number, step), value in kept.items() if number == shown(step)}


def _compare(chart, name, points) -> None:
    expected = defaultdict(list)
    for step, value in sorted(points.items()):
        if chart.first <= step <= chart.last:
            expected[step // chart.width * chart.width].append((step, value))
    found, parts = chart.series[name], chart.series[name].parts
    assert found.start.tolist() == sorted(expected)
    for index, start in enumerate(found.start.tolist()):
        values = np.array([value for _, value in expected[start]])
        finite = values[np.isfinite(values)]
        counts = (len(finite), np.isnan(values).sum(), np.isposinf(values).sum(), np.isneginf(values).sum())
        assert (parts.count[index], parts.nan[index], parts.positive_infinite[index], parts.negative_infinite[index]) == counts
        assert parts.last_wall[index] == 1000.0 + max(step for step, _ in expected[start])
        if len(finite):
            assert (parts.minimum[index], parts.maximum[index], parts.last_value[index]) == (finite.min(), finite.max(), finite[-1])
            # The order of addition is free; nothing else is.
            assert found.mean[index] == pytest.approx(math.fsum(finite) / len(finite), rel=1e-9, abs=1e-12 * np.abs(finite).max())
        else:
            assert np.isnan([parts.minimum[index], parts.maximum[index], parts.last_value[index], found.mean[index]]).all()


def _compare_tails(run, visible) -> None:
    for name, tail in selectors.tail(run, ["a", "b"], 3).items():
        steps = sorted(step for series, step in visible if series == name)[-3:]
        assert tail.step.tolist() == steps
        assert np.array_equal(tail.value, np.array([visible[name, step] for step in steps]), equal_nan=True)


@pytest.mark.django_db
class TestChart:
    @pytest.fixture
    def run(self, team):
        run = make_run(team)
        attempt = make_attempt(run)
        series = {"loss": [(step, float(step)) for step in range(1000)], "perf/total_num_tokens": [(step, 10.0) for step in range(1000)]}
        accept_batch(attempt, make_batch(0, series))
        return Run.objects.get(pk=run.pk)

    def test_the_default_range_is_the_whole_run(self, run):
        chart = selectors.read_chart(run, ["loss"], 10)
        assert (chart.width, chart.first, chart.last) == (100, 0, 999)
        assert chart.series["loss"].parts.count.tolist() == [100] * 10

    def test_a_window_gets_whole_buckets(self, run):
        chart = selectors.read_chart(run, ["loss"], 10, 255, 344)
        assert (chart.width, chart.first, chart.last) == (10, 250, 349)
        assert chart.series["loss"].mean.tolist() == [254.5 + 10 * k for k in range(10)]

    def test_an_unknown_name_is_empty_and_keeps_its_place(self, run):
        chart = selectors.read_chart(run, ["nothing", "loss"], 10)
        assert len(chart.series["nothing"].start) == 0 and len(chart.series["loss"].start) == 10

    def test_tokens_accumulate_from_the_beginning_of_the_run(self, run):
        chart = selectors.read_chart(run, ["loss"], 10, 250, 259, tokens=True)
        assert chart.tokens_before == 2500.0
        assert chart.tokens.parts.total.tolist() == [10.0] * 10

    @pytest.mark.parametrize(
        ("arguments", "message"), [((600, 5, 4), "no range"), ((0,), "buckets"), ((6000,), "buckets"), ((10, -1, 4), "no range")]
    )
    def test_nonsense_is_refused_by_name(self, run, arguments, message):
        with pytest.raises(ValueError, match=message):
            selectors.read_chart(run, ["loss"], *arguments)

    def test_edges_stay_while_data_grows(self, run):
        before = selectors.read_chart(run, ["loss"], 20)
        attempt = Attempt.objects.select_related("run__project").get(run=run)
        accept_batch(attempt, make_batch(1, {"loss": [(step, 1.0) for step in range(1000, 1900)]}))
        run.refresh_from_db()
        after = selectors.read_chart(run, ["loss"], 20)
        assert set(before.series["loss"].start[::2]) <= set(after.series["loss"].start)

    def test_several_series_are_read_in_one_round_trip(self, run, django_assert_num_queries, monkeypatch):
        trips = []
        original = selectors.fetch_columns
        monkeypatch.setattr(selectors, "fetch_columns", lambda *arguments: trips.append(1) or original(*arguments))
        with django_assert_num_queries(2):  # the attempts and the ids of the names
            selectors.read_chart(run, ["loss", "perf/total_num_tokens"], 10)
        assert len(trips) == 1
