"""The generator writes what the product would have written: a small filling, read back through the product."""

from urllib.parse import urlencode

import pytest

from benchmarks.fill import LONG_SERIES, Sizes, column, fill, fill_conversations
from benchmarks.transcript import FOUND, KINDS, words_of
from controlplane.accounts.models import Project
from controlplane.episodes.models import Episode, Turn
from controlplane.runs.models import Run
from controlplane.telemetry.models import Point, Rollup
from controlplane.telemetry.points import write_points
from controlplane.telemetry.selectors import read_chart
from runner.contract.events import Points
from tests.controlplane.factories import make_run
from tests.controlplane.pages import read, signed_in

SMALL = Sizes(runs=12, names=15, steps=1_000, episodes=80, tokens=300, turns=30, logs=5)
ROLLED = ("bucket", "count", "nan", "minimum", "maximum", "total", "last_step", "last_value", "last_wall")


@pytest.fixture
def filled(db, team, owner, settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    return fill(Project.objects.create(team=team, slug="filled", name="Filled"), owner, SMALL)


def test_it_makes_the_sizes_it_promises(filled):
    assert Run.objects.count() == 13 and Episode.objects.count() == 81
    assert Run.objects.get(pk=filled.large).series.count() == 15
    assert Point.objects.count() == 12 * 100 + 10 * 1_000 + 5 * 100


def test_its_rollups_are_those_of_the_ingest_service(filled, team):
    series = column("SELECT id FROM telemetry_series WHERE run_id = %s AND name = %s", filled.large, LONG_SERIES[0])[0]
    rows = list(Point.objects.filter(series_id=series).order_by("step").values_list("step", "value", "wall"))
    step, value, wall = map(list, zip(*rows, strict=True))
    again = make_run(team)
    import numpy as np

    write_points(again.pk, 1, Points(["x"], np.zeros(len(step), "int32"), np.array(step), np.array(value), np.array(wall)))
    own = again.series.get().pk
    ours, theirs = (list(Rollup.objects.filter(series_id=one).order_by("bucket").values(*ROLLED)) for one in (series, own))
    assert len(ours) == 10
    for left, right in zip(ours, theirs, strict=True):
        assert left.pop("total") == pytest.approx(right.pop("total"), rel=1e-12) and left == right


def test_its_charts_agree_with_its_points(filled):
    chart = read_chart(Run.objects.get(pk=filled.large), LONG_SERIES[:1], 600)
    assert int(chart.series[LONG_SERIES[0]].parts.count.sum()) == 1_000


def test_every_page_of_it_opens(filled, owner):
    for path in (
        "/runs",
        f"/runs/{filled.large}",
        f"/runs/{filled.episodes_run}/episodes?search=biology",
        f"/episodes/{filled.transcript}",
    ):
        read(owner, path)
    read(owner, f"/compare?runs={','.join(map(str, filled.compared[:2]))}")
    answer = signed_in(owner).get(f"/api/v1/episodes/{filled.transcript}/tokens").json()
    assert answer["total"] == 300 and len(answer["text"]) == 300


def test_its_conversations_are_found_by_every_kind_of_search(filled, owner):
    run = filled.compared[-1]
    fill_conversations(run, 800, 8)
    assert Turn.objects.filter(episode__run=run).count() == 800
    for said in words_of(run, 3):
        for words in KINDS.values():
            assert FOUND in read(owner, f"/runs/{run}/episodes?{urlencode({'search': words(*said)})}"), words(*said)
    assert FOUND not in read(owner, f"/runs/{run}/episodes?search=zyzzyva")


def test_a_missing_reward_is_missing_in_it_too(filled):
    broken = Episode.objects.filter(termination="verifier_error")
    assert broken.exists() and not broken.filter(score__isnull=False).exists()
