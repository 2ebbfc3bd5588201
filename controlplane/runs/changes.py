"""How a run or an attempt changes: compare-and-set, its event, the cursor and the live notice, in one transaction."""

from dataclasses import dataclass, field

from django.utils import timezone

from controlplane.runs.models import Attempt, Run, RunEvent
from controlplane.telemetry import live
from controlplane.telemetry.services import next_seq
from controlplane.transitions import transition
from runner.contract.states import AttemptState, RunState

RUN_STATE = "run_state"
ATTEMPT_STATE = "attempt_state"


def lock_run(run_id) -> Run:
    """The run's row, locked before any other row of it. Leaves events, points and other references free to be inserted."""
    return Run.objects.select_for_update(no_key=True, of=("self",)).select_related("project").get(pk=run_id)


def append_event(run: Run, kind: str, *, attempt: int | None = None, step: int | None = None, actor=None, **data) -> RunEvent:
    """Append to the run's log and tell its viewers once the transaction commits."""
    event = RunEvent.objects.create(run=run, attempt=attempt, kind=kind, step=step, data=data, actor=actor, at=timezone.now())
    announce(run)
    return event


def announce(run: Run) -> None:
    """Move the run's cursor; its page and every list that shows it are told once the transaction commits."""
    run.seq = next_seq(run.pk)
    live.notify_run(run.pk, run.seq)
    live.notify_runs(run.project.team_id, run.pk)


def move_run(run: Run, target: RunState, *, reason: str = "", actor=None, **changes) -> bool:
    """Move `run` from the state it was read in. False when another writer was first."""
    source = RunState(run.state)
    if not transition(run, source, target, reason=reason, **changes):
        return False
    append_event(run, RUN_STATE, actor=actor, **{"from": source, "to": target, "reason": reason})
    return True


def move_attempt(attempt: Attempt, target: AttemptState, *, reason: str = "", actor=None, **changes) -> bool:
    """Move `attempt` from the state it was read in. False when another writer was first."""
    source = AttemptState(attempt.state)
    if not transition(attempt, source, target, reason=reason, **changes):
        return False
    append_event(attempt.run, ATTEMPT_STATE, attempt=attempt.number, actor=actor, **{"from": source, "to": target, "reason": reason})
    return True


@dataclass
class Folded:
    """What a run's events say: the state of the run and of each of its attempts."""

    run: RunState = RunState.DRAFT
    attempts: dict[int, AttemptState] = field(default_factory=dict)


def fold(events) -> Folded:
    """States as the events tell them, oldest first. Equal to the rows, always; the property test holds us to it."""
    folded = Folded()
    for event in events:
        if event.kind == RUN_STATE:
            folded.run = RunState(event.data["to"])
        elif event.kind == ATTEMPT_STATE:
            folded.attempts[event.attempt] = AttemptState(event.data["to"])
    return folded
