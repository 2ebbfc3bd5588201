"""Any interleaving of people, runner, Ray and clock: states stay legal, the events fold to the rows, one attempt is open, nothing
is granted twice, and capacity is never oversubscribed."""

from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import transaction
from django.db.models import Prefetch
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from controlplane.cluster.models import Grant, Node
from controlplane.cluster.selectors import HOLDING
from controlplane.runs import attempts, reconcile, scheduling
from controlplane.runs.changes import fold
from controlplane.runs.exceptions import Conflict
from controlplane.runs.models import OPEN_ATTEMPT, Attempt, Run, RunEvent
from controlplane.runs.ray_jobs import Job, JobExists, RayUnreachable
from controlplane.runs.releasing import release_grants
from controlplane.runs.services import do_launch, request_stop, resume, retry
from runner.contract.states import AttemptState, is_allowed
from tests.controlplane.runs.conftest import pass_time

DOCUMENT = {
    "name": "run",
    "stages": [{"type": "grpo", "steps": 4, "batch_size": 8, "group_size": 4}],
    "resources": {"rollout_workers": 1, "worker_cpus": 0.5, "learner_cpus": 0.3, "driver_cpus": 0.2},
    "max_attempts": 2,
}


class ScriptedRay:
    """Ray's side as a dictionary of jobs, away when told so. Remembers jobs that were made for an attempt somebody had claimed."""

    def __init__(self):
        self.jobs, self.made_after_claim, self.away = {}, {}, False

    def job(self, submission_id):
        self._answer()
        status = self.jobs.get(submission_id)
        run = Attempt.objects.get(submission_id=submission_id).run_id
        return status and Job(submission_id, status, metadata={"run": str(run)})

    def submit(self, submission_id, **_):
        self._answer()
        if submission_id in self.jobs:
            raise JobExists("exists")
        self.jobs[submission_id] = "RUNNING"
        if Attempt.objects.filter(submission_id=submission_id, claimed_at__isnull=False).exists():
            self.made_after_claim[submission_id] = 1

    def stop(self, submission_id):
        self._answer()
        running = self.jobs.get(submission_id) == "RUNNING"
        if running:
            self.jobs[submission_id] = "STOPPED"
        return running

    def logs(self, submission_id):
        return ""

    def groups(self):
        self._answer()
        return []

    def _answer(self):
        if self.away:
            raise RayUnreachable("away")


class Lifecycle(RuleBasedStateMachine):
    team = user = None

    @initialize()
    def begin(self):
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.ray, self.runs = ScriptedRay(), []

    def teardown(self):
        transaction.set_rollback(True)
        self.atomic.__exit__(None, None, None)

    # ------------------------------------------------------------ people
    @rule()
    def launch(self):
        if len(self.runs) < 3:
            self.runs.append(do_launch(self.user, self.team, DOCUMENT).pk)

    @rule(index=st.integers(0, 2), verb=st.sampled_from([request_stop, retry, resume]))
    def person(self, index, verb):
        if index < len(self.runs):
            try:
                verb(self.user, Run.objects.get(pk=self.runs[index]))
            except Conflict as refused:
                assert str(refused)

    # ------------------------------------------------------------ the runner
    @rule(index=st.integers(0, 2))
    def claim(self, index):
        attempt = self.open_attempt(index)
        if attempt and attempt.claimed_at is None and attempt.submission_id in self.ray.jobs:
            Attempt.objects.filter(pk=attempt.pk).update(claimed_at=timezone.now(), last_heartbeat_at=timezone.now())
            attempts.begin(attempt)

    @rule(index=st.integers(0, 2))
    def start(self, index):
        attempt = self.open_attempt(index)
        if attempt and attempt.claimed_at and attempt.state == AttemptState.STARTING:
            attempts.move_attempt(attempt, AttemptState.RUNNING, running_at=timezone.now())

    @rule(index=st.integers(0, 2), outcome=st.sampled_from(["succeeded", "failed", "stopped"]))
    def leave(self, index, outcome):
        attempt = self.open_attempt(index)
        if attempt and attempt.claimed_at:
            attempts.end(attempt, attempts.by_record({"outcome": outcome}).state, "", {"outcome": outcome})

    # ------------------------------------------------------------ the world
    @rule(index=st.integers(0, 2), status=st.sampled_from(["SUCCEEDED", "FAILED", "STOPPED"]))
    def job_ends(self, index, status):
        attempt = self.last_attempt(index)
        if attempt and self.ray.jobs.get(attempt.submission_id) == "RUNNING":
            self.ray.jobs[attempt.submission_id] = status

    @rule()
    def head_is_replaced(self):
        self.ray.jobs.clear()

    @rule(away=st.booleans())
    def ray_goes_or_comes(self, away):
        self.ray.away = away

    @rule(index=st.integers(0, 2), seconds=st.sampled_from([5, 20, 70, 200]))
    def time_passes(self, index, seconds):
        attempt = self.last_attempt(index)
        if attempt:
            pass_time(seconds, attempt)

    # ------------------------------------------------------------ the reconciler
    @rule()
    def place(self):
        scheduling.place_waiting()

    @rule(index=st.integers(0, 2))
    def reconcile_one(self, index):
        attempt = self.open_attempt(index)
        try:
            if attempt:
                reconcile.advance(attempt, self.ray)
            if index < len(self.runs):
                release_grants(self.runs[index], self.ray)
        except RayUnreachable:
            assert self.ray.away

    @rule(index=st.integers(0, 2))
    def reconcile_crashes_after_the_submit(self, index):
        attempt = self.open_attempt(index)
        if attempt and attempt.state == AttemptState.GRANTED and not self.ray.away and attempt.claimed_at is None:
            Attempt.objects.filter(pk=attempt.pk, submitted_at=None).update(submitted_at=timezone.now())
            if attempt.submission_id not in self.ray.jobs:
                self.ray.submit(attempt.submission_id)

    def open_attempt(self, index):
        if index < len(self.runs):
            return Attempt.objects.filter(run=self.runs[index], state__in=OPEN_ATTEMPT).select_related("run__project").first()

    def last_attempt(self, index):
        if index < len(self.runs):
            return Attempt.objects.filter(run=self.runs[index]).last()

    # ------------------------------------------------------------ what always holds
    @invariant()
    def runs_and_attempts_are_what_their_events_tell(self):
        for run in Run.objects.prefetch_related("attempts", Prefetch("events", RunEvent.objects.order_by("id"))):
            events, states = run.events.all(), {attempt.number: attempt.state for attempt in run.attempts.all()}
            folded = fold(events)
            assert (folded.run, folded.attempts) == (run.state, states)
            moves = [event.data for event in events if event.kind == "attempt_state" and event.data["from"]]
            assert all(is_allowed(AttemptState(move["from"]), AttemptState(move["to"])) for move in moves)
            assert sum(state in OPEN_ATTEMPT for state in states.values()) == (run.state == "active")

    @invariant()
    def grants_are_held_by_open_attempts_and_fit_the_node(self):
        grants = Grant.objects.select_related("attempt").prefetch_related("shares")
        assert all((grant.state == "held") == (grant.attempt.state in OPEN_ATTEMPT) for grant in grants)
        assert sum((share.cpus for grant in grants if grant.state in HOLDING for share in grant.shares.all()), Decimal(0)) <= 2

    @invariant()
    def no_job_was_made_twice_after_its_claim(self):
        claimed = Attempt.objects.exclude(claimed_at=None).values_list("submission_id", flat=True)
        assert all(self.ray.made_after_claim.get(submission_id, 0) == 0 for submission_id in claimed)


@pytest.mark.slow
def test_no_interleaving_breaks_a_run(monkeypatch, team, owner, bank):
    Node.objects.create(name="local", address="127.0.0.1", cpus=2, last_seen_at=timezone.now() + timedelta(days=9))
    Lifecycle.team, Lifecycle.user = team, owner
    monkeypatch.setattr("controlplane.runs.services._send_nudge", lambda: None)
    run_state_machine_as_test(Lifecycle, settings=_EXAMPLES)


_EXAMPLES = settings(max_examples=200, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
