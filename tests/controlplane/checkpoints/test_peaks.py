"""Selection from stored points, and peaks whose weights are gone."""

import uuid

import pytest

from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.peaks import lost_peaks
from controlplane.checkpoints.selectors import retention_plan
from controlplane.checkpoints.services import Report, apply_retention, record_report
from controlplane.runs.models import Attempt, Run
from tests.controlplane.factories import deliver, make_attempt, make_batch
from tests.controlplane.pages import read, signed_in

pytestmark = pytest.mark.django_db


@pytest.fixture
def attempt(run):
    return make_attempt(run, first_step=1)


def save(attempt, write, step, **metrics):
    folder, manifest = write(step)
    return record_report(attempt, uuid.uuid4(), Report("complete", 0, step, str(folder), step, manifest, metrics))


def score(client, attempt, **series):
    assert (
        deliver(
            client, attempt, make_batch(score.sequence, {name.replace("__", "/"): points for name, points in series.items()})
        ).status_code
        == 200
    )
    score.sequence += 1


score.sequence = 0


def test_the_best_of_each_metric_and_the_last_remain_with_their_files(client, run, attempt, write):
    """Section 8's test: A peaks at 20, B at 40, the run ends at 60."""
    Run.objects.filter(pk=run.pk).update(config=run.config.replace(b'"keep_last": 2', b'"keep_last": 1'), state="succeeded")
    score(client, attempt, val__success_rate=[(20, 0.3), (40, 0.2), (60, 0.1)], val__score_mean=[(20, 4.0), (40, 5.0), (60, 1.0)])
    for step in (10, 20, 30, 40, 50, 60):
        save(attempt, write, step)
    apply_retention(run.pk)
    left = dict(Checkpoint.objects.filter(state="complete").values_list("step", "kept_because"))
    assert left == {20: ["best:val/success_rate"], 40: ["best:val/score_mean"], 60: ["final", "last"]}
    assert {path.name for path in write(60)[0].parent.iterdir()} == {"step_20", "step_40", "step_60"}


def test_a_metric_that_came_later_still_chooses_among_what_is_on_disk(client, run, attempt, write):
    for step in (10, 20, 30, 40):
        save(attempt, write, step)
    assert [row.step for row, reasons in retention_plan(run) if reasons] == [40, 30]
    score(client, attempt, val__score_mean_clip0=[(10, 3.0), (20, 1.0)])
    assert {row.step: reasons for row, reasons in retention_plan(run)}[10] == ["best:val/score_mean_clip0"]


def test_a_peak_whose_weights_are_gone_is_shown_as_lost(client, run, attempt, write):
    score(client, attempt, val__score_mean=[(140, 5.5), (210, 5.7), (300, 5.1)], val__success_rate=[(140, 0.314), (300, 0.2)])
    for step in (140, 300):
        save(attempt, write, step)
    (lost,) = lost_peaks(run)
    assert (lost.metric, lost.step, lost.value, lost.held_step, lost.held) == ("val/score_mean", 210, 5.7, 140, 5.5)


@pytest.mark.parametrize("reported", [{}, {"val/score_mean": 5.7}])
def test_no_peak_is_lost_while_its_weights_are_there(client, run, attempt, write, reported):
    score(client, attempt, val__score_mean=[(0, 9.0), (210, 5.7), (300, 5.7)])
    save(attempt, write, 210, **reported)
    assert lost_peaks(run) == [], "an equal later value is no peak, and the model the run began from is not the run's to keep"


def test_an_incomplete_pass_is_no_peak(client, run, attempt, write):
    score(client, attempt, val__score_mean=[(10, 9.0), (20, 1.0)], val__effective_fraction=[(10, 0.9), (20, 1.0)])
    save(attempt, write, 20)
    assert lost_peaks(run) == []


def test_steps_that_were_run_again_are_not_what_the_run_reached(client, run, attempt, write):
    score(client, attempt, val__score_mean=[(10, 1.0), (20, 9.0)])
    save(attempt, write, 10)
    Attempt.objects.filter(pk=attempt.pk).update(state="lost")
    later = make_attempt(run, 2, first_step=11)
    score(client, later, val__score_mean=[(20, 0.5)])
    assert lost_peaks(run) == []


def test_the_page_and_the_api_tell_of_it(client, run, attempt, write, owner, outsider):
    score(client, attempt, val__score_mean=[(140, 5.5), (210, 5.7)])
    save(attempt, write, 140)
    html = read(owner, f"/runs/{run.pk}/checkpoints")
    assert "Lost peak" in html and "5.700" in html and "step 210" in html
    (peak,) = signed_in(owner).get(f"/api/v1/runs/{run.pk}/lost-peaks").json()
    assert peak == {"metric": "val/score_mean", "step": 210, "value": 5.7, "held_step": 140, "held": 5.5}
    assert signed_in(outsider).get(f"/api/v1/runs/{run.pk}/lost-peaks").status_code == 404
