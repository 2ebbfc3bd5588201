"""Any interleaving of people, runner, Ray and clock: states stay legal, the events fold to the rows, one attempt is open, nothing
is granted twice, and capacity is never oversubscribed."""

import os
from datetime import timedelta
from decimal import Decimal

import pytest
from django.db import transaction
from django.db.models import Prefetch
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

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
        self.jobs, self.made_after_claim, self.away = {}, [], False

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
            self.made_after_claim.append(submission_id)

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


def unclaimed(machine):
    return [attempt for attempt in opened(machine) if not attempt.claimed_at and attempt.submission_id in machine.ray.jobs]


def claimed(machine):
    return [attempt for attempt in opened(machine) if attempt.claimed_at]


def starting(machine):
    return [attempt for attempt in claimed(machine) if attempt.state == AttemptState.STARTING]


def granted(machine):
    return [attempt for attempt in opened(machine) if attempt.state == AttemptState.GRANTED]


def opened(machine):
    return [attempt for attempt in machine.attempts if attempt.state in OPEN_ATTEMPT]


def with_job(machine):
    return [attempt for attempt in machine.attempts if machine.ray.jobs.get(attempt.submission_id) == "RUNNING"]


def unsettled(machine):
    return [attempt for attempt in machine.attempts if attempt.grant.state in HOLDING]


which = st.integers(0, 9)


def pick(rows, index):
    return rows[index % len(rows)]


class Lifecycle(RuleBasedStateMachine):
    team = user = ray_now = None
    between = staticmethod(lambda: None)
    visited: set = set()

    @initialize()
    def begin(self):
        self.atomic = transaction.atomic()
        self.atomic.__enter__()
        self.ray, self.runs, self.attempts = ScriptedRay(), [], []
        self.launch()

    def teardown(self):
        self.visited.update(RunEvent.objects.values_list("kind", "data__to"), Grant.objects.values_list("state", "attempt__state"))
        transaction.set_rollback(True)
        self.atomic.__exit__(None, None, None)

    # ------------------------------------------------------------ people
    @precondition(lambda self: len(self.runs) < 3)
    @rule()
    def launch(self):
        do_launch(self.user, self.team, DOCUMENT)

    @rule(index=which, verb=st.sampled_from([request_stop, retry, resume]))
    def person(self, index, verb):
        try:
            verb(self.user, pick(self.runs, index))
        except Conflict as refused:
            assert str(refused)

    # ------------------------------------------------------------ the runner
    @precondition(unclaimed)
    @rule(index=which)
    def claim(self, index):
        attempt = pick(unclaimed(self), index)
        Attempt.objects.filter(pk=attempt.pk).update(claimed_at=timezone.now(), last_heartbeat_at=timezone.now())
        attempts.begin(attempt)

    @precondition(starting)
    @rule(index=which)
    def start(self, index):
        attempts.move_attempt(pick(starting(self), index), AttemptState.RUNNING, running_at=timezone.now())

    @precondition(claimed)
    @rule(index=which, outcome=st.sampled_from(["succeeded", "failed", "stopped", "lost"]))
    def leave(self, index, outcome):
        record = {"outcome": outcome}
        attempts.end(pick(claimed(self), index), attempts.by_record(record).state, "", record)

    # ------------------------------------------------------------ the world
    @precondition(with_job)
    @rule(index=which, status=st.sampled_from(["SUCCEEDED", "FAILED", "STOPPED"]))
    def job_ends(self, index, status):
        self.ray.jobs[pick(with_job(self), index).submission_id] = status

    @precondition(with_job)
    @rule()
    def head_is_replaced(self):
        self.ray.jobs.clear()

    @rule(away=st.booleans())
    def ray_goes_or_comes(self, away):
        self.ray.away = away

    @precondition(unsettled)
    @rule(index=which, seconds=st.sampled_from([5, 20, 70, 200]))
    def time_passes(self, index, seconds):
        attempt = pick(unsettled(self), index)
        pass_time(seconds, attempt, attempt.run)

    # ------------------------------------------------------------ the reconciler
    @rule()
    def reconcile(self):
        scheduling.place_waiting()
        for attempt in Attempt.objects.filter(state__in=OPEN_ATTEMPT).select_related("run__project"):
            self.step(lambda attempt=attempt: reconcile.advance(attempt, self.ray))
        for run in self.runs:
            self.step(lambda run=run: release_grants(run.pk, self.ray))

    @rule(index=which, overtaken=st.booleans())
    def look_at_one(self, index, overtaken):
        """A whole look, whose last write may come after a grant that it has not seen."""
        Lifecycle.between = staticmethod(scheduling.place_waiting if overtaken else lambda: None)
        Lifecycle.ray_now = self.ray
        reconcile.reconcile_run(pick(self.runs, index).pk)

    def step(self, act):
        try:
            act()
        except RayUnreachable:
            assert self.ray.away

    @precondition(granted)
    @rule(index=which)
    def reconcile_crashes_after_the_submit(self, index):
        attempt = pick(granted(self), index)
        Attempt.objects.filter(pk=attempt.pk, submitted_at=None).update(submitted_at=timezone.now())
        if attempt.submission_id not in self.ray.jobs and not self.ray.away:
            self.ray.submit(attempt.submission_id)

    # ------------------------------------------------------------ what always holds
    @invariant()
    def runs_and_attempts_are_what_their_events_tell(self):
        for run in self.look():
            events, states = run.events.all(), {attempt.number: attempt.state for attempt in run.attempts.all()}
            folded = fold(events)
            assert (folded.run, folded.attempts) == (run.state, states)
            moves = [event.data for event in events if event.kind == "attempt_state" and event.data["from"]]
            assert all(is_allowed(AttemptState(move["from"]), AttemptState(move["to"])) for move in moves)
            assert sum(state in OPEN_ATTEMPT for state in states.values()) == (run.state == "active")

    def look(self):
        """Read everything once a step; the preconditions of the next one use it too."""
        events = Prefetch("events", RunEvent.objects.order_by("id"))
        runs = Run.objects.select_related("project__team").prefetch_related(events, "attempts__grant__shares").order_by("created_at")
        self.runs = list(runs)
        self.attempts = [attempt for run in self.runs for attempt in run.attempts.all()]
        return self.runs

    @invariant()
    def grants_are_held_by_open_attempts_and_fit_the_node(self):
        grants = [attempt.grant for attempt in self.attempts]
        assert all((attempt.grant.state == "held") == (attempt.state in OPEN_ATTEMPT) for attempt in self.attempts)
        assert sum((share.cpus for grant in grants if grant.state in HOLDING for share in grant.shares.all()), Decimal(0)) <= 2

    @invariant()
    def no_active_run_is_forgotten(self):
        assert all(run.next_check_at for run in self.runs if run.state == "active")

    @invariant()
    def no_job_was_made_twice_after_its_claim(self):
        assert not self.ray.made_after_claim


@pytest.mark.slow
def test_no_interleaving_breaks_a_run(monkeypatch, team, owner, bank):
    Node.objects.create(name="local", address="127.0.0.1", cpus=2, last_seen_at=timezone.now() + timedelta(days=9))
    Lifecycle.team, Lifecycle.user = team, owner
    monkeypatch.setattr("controlplane.runs.services._send_nudge", lambda: None)
    monkeypatch.setattr(reconcile, "RayJobs", lambda: Lifecycle.ray_now)
    next_check = reconcile.next_check
    monkeypatch.setattr(reconcile, "next_check", lambda run_id: (next_check(run_id), Lifecycle.between())[0])
    run_state_machine_as_test(Lifecycle, settings=_EXAMPLES)
    # A machine that never got anywhere would hold every invariant. A search must reach every end; the fixed few examples most.
    ends = {("attempt_state", state) for state in ("succeeded", "failed", "stopped", "lost")}
    landmarks = ends | {("requeued", None), ("stop_requested", None), ("released", "lost")}
    assert len(landmarks - Lifecycle.visited) <= (0 if _SEARCH else 2), landmarks - Lifecycle.visited


# The same examples at each run, so that what they visit is certain; ASSAY_EXAMPLES=2000 searches for new ones.
_SEARCH = os.environ.get("ASSAY_EXAMPLES")
_EXAMPLES = settings(
    max_examples=int(_SEARCH or 60), stateful_step_count=30, derandomize=not _SEARCH, deadline=None, suppress_health_check=list(HealthCheck)
)
