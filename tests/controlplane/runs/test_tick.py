"""The reconciler's tick: one at a time, each due run handed out once, no date that somebody asked for forgotten."""

import socket
import time

import pytest
from django.db import connection
from django.utils import timezone

from controlplane.cluster.models import ReconcilerTick
from controlplane.runs import reconcile, scheduling
from controlplane.runs.changes import fold
from controlplane.runs.models import Run
from controlplane.runs.ray_jobs import RayUnreachable
from controlplane.runs.reconcile import TICK_LOCK, reconcile_run, tick
from controlplane.runs.services import request_stop
from tests.controlplane.runs.conftest import again, run_due, running


@pytest.mark.django_db(transaction=True)
def test_only_one_reconciler_runs_at_a_time(launch, ray):
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [TICK_LOCK])
        assert tick(lambda run_id: None) is False
    finally:
        other.close()
    deadline = time.monotonic() + 10  # the server gives the lock back when it notices that the other has left
    while not tick(lambda run_id: None):
        assert time.monotonic() < deadline


def test_a_due_run_is_handed_out_once(launch, ray):
    run = launch()
    handed = []
    tick(handed.append)
    tick(handed.append)
    assert handed == [str(run.pk)]


def test_a_grant_that_comes_while_a_look_ends_is_not_forgotten(launch, ray, driver_of, monkeypatch):
    """The look that freed the run's last grant has nothing more to do; the next grant is written before its date is."""
    run, driver = running(launch, driver_of, host=socket.gethostname(), pid=2**22 - 1)
    ray.end(driver.attempt.submission_id, "FAILED", "signal 9", -9)
    granted, original = [], reconcile.next_check

    def overtaken(run_id):
        found = original(run_id)
        granted.extend(scheduling.place_waiting())
        return found

    monkeypatch.setattr(reconcile, "next_check", overtaken)
    again(run)
    assert [attempt.number for attempt in granted] == [2] and Run.objects.get().next_check_at is not None
    run_due()
    assert run.attempts.get(number=2).state == "starting"


def test_an_active_run_without_a_date_is_looked_at(launch, ray):
    run = launch()
    run_due()
    Run.objects.update(next_check_at=None)
    assert reconcile.take_due() == [str(run.pk)]


def test_a_failing_look_leaves_the_earlier_date_that_somebody_asked_for(launch, ray, owner, monkeypatch):
    run = launch()
    run_due()

    def stop_and_fail(*_):
        request_stop(owner, Run.objects.get(pk=run.pk))
        raise RayUnreachable("away")

    monkeypatch.setattr(reconcile, "advance", stop_and_fail)
    reconcile_run(run.pk)
    run.refresh_from_db()
    assert run.next_check_at <= timezone.now() and run.check_failures == 1


def test_the_tick_leaves_its_word(launch, ray):
    run_due()
    word = ReconcilerTick.objects.get()
    assert word.error == "" and (timezone.now() - word.at).total_seconds() < 5 and word.answering_since


def test_the_events_tell_the_whole_story(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    driver.exit("succeeded")
    folded = fold(run.events.order_by("id"))
    run.refresh_from_db()
    assert (folded.run, folded.attempts) == (run.state, {1: "succeeded"})
