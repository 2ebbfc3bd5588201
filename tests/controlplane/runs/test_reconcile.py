"""The reconciler against a stand-in for Ray that fails in every way: what starts once, what ends, what is tried again."""

import json
import os
import socket
import subprocess
import sys
import time

import psutil
import pytest
from django.utils import timezone

from controlplane.checkpoints.models import Checkpoint
from controlplane.cluster import processes
from controlplane.cluster.models import Grant, Node, ReconcilerTick
from controlplane.runs.models import Attempt, Run
from controlplane.runs.paths import run_folder
from controlplane.runs.reconcile import reconcile_run, tick
from controlplane.runs.scheduling import claim_code
from controlplane.runs.services import request_stop, resume, retry
from tests.controlplane.runs.conftest import again, kinds, pass_time, run_due, running


# ---------------------------------------------------------------- from queue to running
def test_a_queued_run_is_granted_and_submitted_in_one_tick(launch, ray, db):
    run = launch()
    run_due()
    attempt = run.attempts.get()
    job = ray.jobs[f"assay-{attempt.pk}"]
    assert attempt.state == "starting" and attempt.submitted_at
    assert job["entrypoint"] == f"{sys.executable} -m runner.main"
    assert job["runtime_env"]["env_vars"] == {
        "ASSAY_URL": "http://127.0.0.1:8000", "ASSAY_ATTEMPT": str(attempt.pk), "ASSAY_CLAIM_CODE": claim_code(attempt)
    }
    assert job["entrypoint_resources"] == {"assay_node:local": 0.001}
    assert Node.objects.get().cpus == 2


def test_one_attempt_is_submitted_once_however_often_we_look(launch, ray):
    run = launch()
    for _ in range(4):
        again(run)
    assert ray.submissions == 1 and run.attempts.count() == 1


def test_a_submit_whose_answer_was_lost_is_adopted(launch, ray):
    ray.lose_submit = True
    run = launch()
    run_due()
    assert run.attempts.get().state == "granted"
    ray.lose_submit = False
    again(run)
    assert run.attempts.get().state == "starting" and ray.submissions == 1 and run.waiting == ""


def test_a_crash_before_the_submit_is_made_good(launch, ray):
    ray.fail = 500
    run = launch()
    Node.objects.create(name="local", address="127.0.0.1", resource="assay_node:local", cpus=2, last_seen_at=timezone.now())
    run_due()
    run.refresh_from_db()
    assert run.attempts.get().submitted_at and "Ray answered 500" in run.waiting
    ray.fail = 0
    again(run)
    assert run.attempts.get().state == "starting" and ray.submissions == 1


def test_a_claimed_attempt_is_never_submitted_again(launch, ray, driver_of):
    run = launch()
    run_due()
    driver_of(run.attempts.get()).claim()
    ray.jobs.clear()
    Attempt.objects.update(state="granted")
    again(run)
    assert ray.submissions == 1


def test_a_job_of_another_house_is_not_adopted(launch, ray):
    run = launch()
    ray.fail = 500
    Node.objects.create(name="local", address="127.0.0.1", resource="assay_node:local", cpus=2, last_seen_at=timezone.now())
    run_due()
    ray.fail = 0
    ray.add({"submission_id": run.attempts.get().submission_id, "metadata": {"run": "somebody else's"}})
    again(run)
    assert run.state == "failed" and "not this run's" in run.reason
    assert ray.jobs[run.attempts.get().submission_id]["status"] == "RUNNING"


def test_failures_push_the_next_check_away(launch, ray):
    run = launch()
    run_due()
    ray.fail = 500
    Run.objects.filter(pk=run.pk).update(next_check_at=timezone.now())
    Attempt.objects.update(state="granted")
    waits = []
    for _ in range(7):
        reconcile_run(run.pk)
        run.refresh_from_db()
        waits.append(round((run.next_check_at - timezone.now()).total_seconds()))
    assert waits == [2, 4, 8, 16, 32, 60, 60]


def test_a_waiting_run_says_why(launch, ray):
    first, second = launch(), launch(name="second")
    run_due()
    second.refresh_from_db()
    assert second.state == "queued" and second.waiting == "needs 2.0 CPUs, 0.0 free of 2.0; run first holds 2.0"


def test_two_runs_that_fit_start_together(launch, ray):
    small = {"resources": {"rollout_workers": 1, "worker_cpus": 0.3, "learner_cpus": 0.5, "driver_cpus": 0.2}}
    launch(**small), launch(**small), launch(**small)
    run_due()
    assert sorted(Run.objects.values_list("state", flat=True)) == ["active", "active", "queued"]


def test_a_run_waits_while_ray_was_never_seen(launch, settings):
    settings.RAY_ADDRESS = "http://127.0.0.1:1"
    run = launch()
    run_due()
    run.refresh_from_db()
    assert run.state == "queued" and run.waiting.startswith("no node is ready")
    assert "did not answer" in ReconcilerTick.objects.get().error


def test_a_cordoned_node_takes_no_new_run(launch, ray, node):
    Node.objects.update(state="cordoned")
    run = launch()
    run_due()
    run.refresh_from_db()
    assert run.state == "queued" and Node.objects.get().state == "cordoned"


def test_a_driver_that_never_claims_fails_the_attempt(launch, ray):
    run = launch()
    run_due()
    pass_time(181, run.attempts.get())
    again(run)
    assert run.state == "failed" and "did not claim its attempt within 180 s" in run.reason
    assert ray.jobs[run.attempts.get().submission_id]["status"] == "STOPPED"


def test_a_job_that_dies_before_its_claim_fails_with_the_drivers_last_words(launch, ray):
    run = launch()
    run_due()
    ray.end(run.attempts.get().submission_id, "FAILED", "Job entrypoint command failed with exit code 1", 1)
    again(run)
    assert run.state == "failed" and "exit code 1" in run.reason and "last words of the driver" in run.reason
    assert run.attempts.count() == 1


@pytest.mark.parametrize("exit_code", [-9, 137])
def test_a_driver_that_is_killed_before_its_claim_is_tried_again(launch, ray, exit_code):
    run = launch()
    run_due()
    ray.end(run.attempts.get().submission_id, "FAILED", "killed", exit_code)
    again(run), again(run)
    assert [attempt.state for attempt in run.attempts.all()] == ["lost", "starting"]


# ---------------------------------------------------------------- the end of an attempt
def test_a_driver_that_lost_a_process_says_so_and_is_tried_again(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    assert driver.exit("lost", reason="ProcessLost: the learner's process is gone").json() == {"state": "lost"}
    run.refresh_from_db()
    assert run.state == "queued" and "attempt 1 was lost" in run.reason


def test_a_run_that_loses_a_process_while_it_stops_is_stopped(launch, ray, owner, driver_of):
    run, driver = running(launch, driver_of)
    request_stop(owner, run)
    assert driver.exit("lost", reason="ProcessLost: the learner's process is gone").json() == {"state": "stopped"}
    run.refresh_from_db()
    assert run.state == "stopped" and "learner" in run.reason


def test_the_exit_record_on_disk_is_enough(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    folder = run_folder(run.pk) / "attempts" / "1"
    folder.mkdir(parents=True)
    (folder / "exit.json").write_text(json.dumps({"outcome": "succeeded", "step": 10}))
    again(run)
    assert run.state == "succeeded" and run.attempts.get().exit_record["step"] == 10


@pytest.mark.parametrize(("age", "state"), [(5, "active"), (215, "succeeded")])
def test_a_driver_that_left_its_record_may_first_deliver_what_it_reported(launch, ray, driver_of, age, state):
    run, driver = running(launch, driver_of)
    folder = run_folder(run.pk) / "attempts" / "1"
    folder.mkdir(parents=True)
    (folder / "exit.json").write_text(json.dumps({"outcome": "succeeded", "step": 10, "at": time.time() - age}))
    assert again(run).state == state
    driver.exit("succeeded")
    run.refresh_from_db()
    assert run.state == "succeeded"


def test_a_torn_exit_record_is_no_exit_record(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    folder = run_folder(run.pk) / "attempts" / "1"
    folder.mkdir(parents=True)
    (folder / "exit.json").write_text('{"outcome": "succ')
    again(run)
    assert run.state == "active"


def test_the_exit_record_wins_over_rays_word_and_the_conflict_is_told(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    driver.exit("succeeded")
    ray.end(driver.attempt.submission_id, "FAILED", "head was replaced", 0)
    again(run)
    assert run.state == "succeeded"
    conflict = run.events.get(kind="exit_conflict")
    assert conflict.data == {"record": "succeeded", "ray": "FAILED", "message": "head was replaced"}


def test_a_driver_that_dies_without_a_word_is_lost_and_tried_again(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    ray.end(driver.attempt.submission_id, "FAILED", "killed", -9)
    pass_time(16, driver.attempt)
    again(run)
    first = run.attempts.get(number=1)
    assert first.state == "lost" and "without an exit record" in first.reason
    # The same tick's look at the grant saw the job over, so the next one starts the second attempt.
    run_due()
    assert run.attempts.get(number=2).state in ("granted", "starting")
    assert "1 of 3 used" in run.events.filter(kind="run_state", data__to="queued").last().data["reason"]


def test_attempts_are_not_used_up_without_end(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    for number in (1, 2, 3):
        attempt = run.attempts.get(number=number)
        if number > 1:
            driver = driver_of(attempt)
            driver.claim()
        ray.end(attempt.submission_id, "FAILED", "killed")
        pass_time(16, attempt)
        again(run), again(run), again(run)
    assert run.attempts.count() == 3 and run.state == "lost"


def test_a_person_may_try_again_after_the_attempts_were_used_up(launch, ray, driver_of, owner):
    run, driver = running(launch, driver_of)
    Run.objects.filter(pk=run.pk).update(config=json.dumps({**json.loads(bytes(run.config)), "max_attempts": 1}).encode())
    ray.end(driver.attempt.submission_id, "FAILED")
    pass_time(16, driver.attempt)
    again(run)
    assert run.state == "lost"
    retry(owner, run)
    again(run)
    assert run.state == "active" and run.attempts.count() == 2


# ---------------------------------------------------------------- contact
def test_silence_raises_a_flag_and_no_verdict(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    pass_time(31, driver.attempt)
    again(run)
    attempt = run.attempts.get()
    assert attempt.contact_lost_at and attempt.state == "running"
    assert run.events.get(kind="contact_lost").data["silence_s"] >= 31
    pass_time(3600, attempt)
    assert again(run).state == "active"


def test_a_heartbeat_takes_the_flag_down(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    pass_time(31, driver.attempt)
    again(run)
    driver.beat()
    assert run.attempts.get().contact_lost_at is None
    assert kinds(run)[-1] == "contact_regained"


def test_silence_while_we_were_away_does_not_count(launch, ray, driver_of, web_answers):
    run, driver = running(launch, driver_of)
    web_answers["web"] = False
    pass_time(100, driver.attempt)
    again(run)
    assert run.attempts.get().contact_lost_at is None
    web_answers["web"] = True
    again(run)
    assert run.attempts.get().contact_lost_at is None
    ReconcilerTick.objects.update(answering_since=timezone.now() - timezone.timedelta(seconds=31))
    again(run)
    assert run.attempts.get().contact_lost_at is not None


def test_a_gap_between_ticks_counts_as_our_absence(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    pass_time(100, driver.attempt)
    ReconcilerTick.objects.update(at=timezone.now() - timezone.timedelta(seconds=60))
    again(run)
    assert run.attempts.get().contact_lost_at is None


def test_a_lost_ray_head_ends_a_run_whose_driver_is_gone_from_this_host(launch, ray, driver_of, settings):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    run, driver = running(launch, driver_of, host=socket.gethostname(), pid=process.pid, started=psutil.Process(process.pid).create_time())
    settings.RAY_ADDRESS = "http://127.0.0.1:1"
    again(run)
    assert run.state == "active"
    process.kill()
    process.wait()
    again(run)
    assert run.attempts.get().state == "lost" and "process is gone and Ray does not answer" in run.attempts.get().reason


def test_a_new_head_that_does_not_know_the_job_ends_the_attempt(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    ray.jobs.clear()
    pass_time(16, driver.attempt)
    again(run)
    assert run.attempts.get(number=1).state == "lost" and "head was replaced" in run.attempts.get(number=1).reason


# ---------------------------------------------------------------- stop
def test_a_waiting_run_stops_at_once(launch, owner, settings):
    settings.RAY_ADDRESS = "http://127.0.0.1:1"
    run = request_stop(owner, launch())
    assert (run.state, run.reason) == ("stopped", "stopped while waiting")


def test_a_granted_run_that_was_not_submitted_stops_without_a_job(launch, ray, owner, node):
    run = launch()
    tick(lambda run_id: None)
    assert run.attempts.get().state == "granted"
    request_stop(owner, run)
    again(run)
    assert run.state == "stopped" and ray.submissions == 0
    assert Grant.objects.get().state == "released"


def test_a_stop_is_obeyed_by_the_driver(launch, ray, owner, driver_of):
    run, driver = running(launch, driver_of)
    request_stop(owner, run)
    assert run.attempts.get().state == "stopping" and driver.beat().json()["command"] == "stop"
    driver.exit("stopped", step=4)
    ray.end(driver.attempt.submission_id, "SUCCEEDED")
    again(run)
    assert run.state == "stopped" and Grant.objects.get().state == "released"


def test_a_driver_that_does_not_obey_is_ended_after_the_grace(launch, ray, owner, driver_of):
    run, driver = running(launch, driver_of)
    request_stop(owner, run)
    again(run)
    assert ray.jobs[driver.attempt.submission_id]["status"] == "RUNNING"
    run.refresh_from_db()
    pass_time(121, run, driver.attempt)
    again(run)
    assert ray.jobs[driver.attempt.submission_id]["status"] == "STOPPED"
    again(run)
    assert run.state == "stopped" and "by force" in run.reason and run.attempts.count() == 1
    assert "stop_forced" in kinds(run)


def test_a_stop_asked_twice_is_one_stop(launch, ray, owner, driver_of):
    run, driver = running(launch, driver_of)
    request_stop(owner, run), request_stop(owner, run)
    assert kinds(run).count("stop_requested") == 1


# ---------------------------------------------------------------- grants
def test_capacity_returns_only_after_job_group_and_processes_are_gone(launch, ray, driver_of):
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        run, driver = running(launch, driver_of)
        driver.beat(components={"worker-0": {"pid": process.pid, "started": psutil.Process(process.pid).create_time(), "host": socket.gethostname()}})
        driver.exit("succeeded")
        again(run)
        assert Grant.objects.get().state == "releasing"
        ray.end(driver.attempt.submission_id, "SUCCEEDED")
        ray.groups = [{"name": driver.attempt.submission_id, "state": "CREATED", "creator_job_id": "01"}]
        again(run)
        ray.groups = []
        again(run)
        assert Grant.objects.get().state == "releasing"
        process.kill()
        process.wait()
        again(run)
        assert Grant.objects.get().state == "released"
    finally:
        process.kill()
        process.wait()


def test_a_process_that_outstays_its_attempt_is_killed(launch, ray, driver_of):
    process = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"])
    run, driver = running(launch, driver_of, host=socket.gethostname(), pid=process.pid, started=psutil.Process(process.pid).create_time())
    driver.exit("succeeded")
    ray.end(driver.attempt.submission_id, "SUCCEEDED")
    pass_time(41, driver.attempt)
    again(run)
    assert process.wait(timeout=10) == -9
    again(run)
    assert Grant.objects.get().state == "released"


def test_a_reused_pid_is_not_our_process(launch, ray, driver_of):
    run, driver = running(launch, driver_of, host=socket.gethostname(), pid=os.getpid(), started=1000.0)
    driver.exit("succeeded")
    ray.end(driver.attempt.submission_id, "SUCCEEDED")
    again(run)
    assert Grant.objects.get().state == "released"


def test_what_cannot_be_seen_free_is_quarantined_with_the_reason_and_freed_later(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    driver.exit("succeeded")
    ray.end(driver.attempt.submission_id, "SUCCEEDED")
    ray.groups = [{"name": driver.attempt.submission_id, "state": "CREATED", "creator_job_id": "01"}]
    pass_time(61, driver.attempt)
    again(run)
    grant = Grant.objects.get()
    assert grant.state == "quarantined" and "its placement group is CREATED" in grant.reason
    waiting = launch(name="next")
    run_due()
    waiting.refresh_from_db()
    assert waiting.state == "queued"
    ray.groups = []
    again(run)
    assert Grant.objects.get(pk=grant.pk).state == "released"
    again(waiting)
    assert waiting.state == "active"


def test_a_process_that_no_signal_ends_is_named(monkeypatch):
    entry = {"component": "worker-0", "host": "here", "pid": os.getpid(), "started": 0.0}
    assert processes.describe(entry) == f"worker-0 (pid {os.getpid()} on here)"
    monkeypatch.setattr(psutil.Process, "status", lambda _: psutil.STATUS_DISK_SLEEP)
    assert processes.describe(entry) == f"worker-0 (pid {os.getpid()} on here, in uninterruptible sleep)"


def test_a_job_whose_attempt_is_closed_is_stopped(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    driver.exit("failed")
    again(run)
    assert ray.jobs[driver.attempt.submission_id]["status"] == "RUNNING"
    pass_time(21, driver.attempt)
    again(run)
    assert ray.jobs[driver.attempt.submission_id]["status"] == "STOPPED"


def test_jobs_of_others_are_left_alone(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    driver.exit("failed")
    ray.jobs[driver.attempt.submission_id]["metadata"] = {"run": "another house's"}
    ray.add({"submission_id": "assay-999999", "metadata": {}})
    ray.add({"submission_id": "raysubmit_x", "metadata": {}})
    pass_time(21, driver.attempt)
    tick(lambda run_id: None)
    assert {job["status"] for job in ray.jobs.values()} == {"RUNNING"}


# ---------------------------------------------------------------- resume
def complete(run, step, attempt=1):
    return Checkpoint.objects.create(
        run=run, attempt=attempt, step=step, state="complete", path=f"/s/step_{step}", completed_at=timezone.now(), policy_version=step
    )


def test_a_lost_run_continues_from_its_newest_complete_checkpoint(launch, ray, driver_of):
    run, driver = running(launch, driver_of)
    complete(run, 3), complete(run, 6)
    Checkpoint.objects.create(run=run, attempt=1, step=9, state="broken", path="/s/step_9")
    ray.end(driver.attempt.submission_id, "FAILED")
    pass_time(16, driver.attempt)
    again(run), again(run)
    second = run.attempts.get(number=2)
    assert second.resumed_from.step == 6
    answer = driver_of(second).claim().json()
    assert answer["resume"] == {"checkpoint": str(second.resumed_from.pk), "path": "/s/step_6", "step": 6, "stage": 0, "policy_version": 6}


def test_an_attempt_begun_from_an_older_checkpoint_stays_on_its_line(launch, ray, driver_of, owner):
    run, driver = running(launch, driver_of)
    older = complete(run, 3)
    complete(run, 6)
    driver.exit("failed")
    resume(owner, run, older)
    ray.end(driver.attempt.submission_id, "SUCCEEDED")
    again(run), again(run)
    second = driver_of(run.attempts.get(number=2))
    assert second.claim().json()["resume"]["step"] == 3
    second.exit("failed")
    retry(owner, run)
    ray.end(second.attempt.submission_id, "SUCCEEDED")
    again(run), again(run)
    assert run.attempts.get(number=3).resumed_from == older


@pytest.mark.parametrize("left", [True, False])
def test_records_that_a_dead_driver_left_are_delivered_once_it_is_gone(launch, ray, driver_of, monkeypatch, storage_folder, left):
    sent = []
    monkeypatch.setattr("controlplane.runs.releasing.send_bulk", lambda *call: sent.append(call))
    run, driver = running(launch, driver_of)
    folder = storage_folder / "runs" / str(run.pk) / "attempts" / "1"
    folder.mkdir(parents=True, exist_ok=True)
    if left:
        (folder / "connection.json").write_text("{}")
    driver.exit("failed")
    ray.end(driver.attempt.submission_id, "FAILED")
    again(run), again(run)
    assert sent == ([("controlplane.telemetry.tasks.deliver_leftovers", str(folder))] if left else [])
