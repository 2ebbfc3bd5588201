import numpy as np
import pytest

from controlplane.telemetry.points import write_points, write_samples
from controlplane.telemetry.sparklines import LONG, POINTS, sparklines, thinned
from tests.controlplane.factories import make_points, make_run, make_samples

NAME = "critic/score/mean"


def test_a_young_run_shows_its_points(team):
    run = make_run(team, step=2)
    write_points(run.pk, 1, make_points({NAME: [(0, 0.1), (1, float("nan")), (2, 0.3)], "other": [(0, 9.0)]}))
    assert sparklines([run.pk], NAME) == {run.pk: [0.1, None, 0.3]}


def test_the_newest_attempt_wins_a_step(team):
    run = make_run(team, step=2)
    write_points(run.pk, 1, make_points({NAME: [(0, 1.0), (1, 1.0), (2, 1.0)]}))
    write_points(run.pk, 2, make_points({NAME: [(1, 5.0)]}))
    assert sparklines([run.pk], NAME)[run.pk] == [1.0, 5.0, 1.0]


def test_a_long_run_shows_its_rollups(team):
    run, values = make_run(team, step=LONG), np.arange(LONG, dtype=float)
    write_points(run.pk, 1, make_points({NAME: list(enumerate(values))}))
    assert sparklines([run.pk], NAME)[run.pk] == pytest.approx([float(values[at : at + 100].mean()) for at in range(0, LONG, 100)])


def test_many_runs_take_one_query(team, django_assert_num_queries):
    runs = [make_run(team, step=1) for _ in range(5)]
    for run in runs:
        write_points(run.pk, 1, make_points({NAME: [(0, 1.0), (1, 2.0)]}))
    with django_assert_num_queries(1):
        assert sparklines([run.pk for run in runs], NAME).keys() == {run.pk for run in runs}


def test_a_series_over_the_wall_clock_is_another_one(team):
    run = make_run(team)
    write_samples(run.pk, make_samples({NAME: [(1000.0, 1.0)]}))
    assert sparklines([run.pk], NAME) == {} == sparklines([], NAME)


@pytest.mark.parametrize("count", [1, 2, POINTS - 1, POINTS, POINTS + 1, 997])
def test_thinning_leaves_out_no_value(count):
    values = [float(value) for value in range(count)]
    thin = thinned(values, POINTS)
    assert len(thin) == min(count, POINTS) and thin == sorted(thin)
    sizes = [(at + 1) * count // len(thin) - at * count // len(thin) for at in range(len(thin))]
    assert sum(size * mean for size, mean in zip(sizes, thin, strict=True)) == pytest.approx(sum(values))
