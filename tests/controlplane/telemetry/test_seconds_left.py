"""What is left of a run is told at the pace of what is left: never a warm start's pace for the stage after it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.runs.models import Attempt, RunEvent
from controlplane.telemetry.delta import run_state
from tests.controlplane.factories import make_attempt, make_run

pytestmark = pytest.mark.django_db


def enter(run, attempt, stage: int, step: int, seconds_ago: float) -> None:
    at = timezone.now() - timedelta(seconds=seconds_ago)
    RunEvent.objects.create(run=run, attempt=attempt.number, kind="stage_started", step=step, data={"stage": stage}, at=at)


def left(run, attempt) -> float | None:
    return run_state(run, [attempt])["eta_s"]


@pytest.fixture
def run(team):
    return make_run(team, method="sft + grpo", total_steps=100, step=60)


@pytest.fixture
def attempt(run):
    return make_attempt(run, first_step=0, running_at=timezone.now() - timedelta(seconds=90))


def test_it_is_unknown_while_a_stage_is_still_to_come(run, attempt):
    assert left(run, attempt) is None
    enter(run, attempt, 0, 0, 60)
    assert left(run, attempt) is None


def test_the_last_stage_is_timed_by_its_own_steps(run, attempt):
    enter(run, attempt, 0, 0, 600)
    enter(run, attempt, 1, 60, 30)
    assert left(run, attempt) is None, "it has made no step yet"
    run.step = 70
    assert left(run, attempt) == pytest.approx(30 / 10 * 30, rel=0.05)


def test_a_resumed_attempt_is_timed_by_what_it_did_itself(run, attempt):
    enter(run, attempt, 1, 40, 5000)
    Attempt.objects.filter(pk=attempt.pk).update(state="lost")
    resumed = make_attempt(run, 2, first_step=60)
    run.step = 65
    assert left(run, resumed) is None
    enter(run, resumed, 1, 60, 10)
    assert left(run, resumed) == pytest.approx(10 / 5 * 35, rel=0.05)


def test_an_evaluation_has_no_stages(team):
    run = make_run(team, kind="evaluation", method="evaluate oracle", total_steps=8, step=2)
    attempt = make_attempt(run, first_step=0, running_at=timezone.now() - timedelta(seconds=20))
    assert left(run, attempt) == pytest.approx(60, rel=0.05)
