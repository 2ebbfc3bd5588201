"""Taking over a run that was driven without a control plane."""

import pytest
from django.utils import timezone

from controlplane.runs import offline
from controlplane.runs.changes import fold
from controlplane.runs.exceptions import Conflict
from controlplane.runs.models import Attempt, Run
from runner.contract.events import encode_batch
from runner.contract.parse import InvalidDocument
from tests.controlplane.factories import make_attempt, make_batch, make_run

RECORD = {"outcome": "succeeded", "reason": "", "step": 10, "error": None, "at": 1_700_000_000.0, "begun": 1_699_999_000.0}


@pytest.fixture
def adopted(owner, team, bank, document):
    return lambda record=RECORD, **changes: offline.adopt(owner, team, {**document, **changes}, record)


def test_the_run_and_its_attempt_stand_in_their_last_states_and_nobody_schedules_them(adopted):
    run = adopted()
    attempt = run.attempts.get()
    assert (run.state, run.started_at.timestamp(), run.ended_at.timestamp()) == ("succeeded", RECORD["begun"], RECORD["at"])
    assert (attempt.state, attempt.first_step, attempt.exit_record) == ("succeeded", 1, RECORD)
    assert run.next_check_at is None and not hasattr(Attempt.objects.get(), "grant")
    folded = fold(run.events.order_by("id"))
    assert folded.run == run.state and folded.attempts == {1: attempt.state}


def test_what_it_told_is_taken_for_a_day_from_now_under_the_newest_token(adopted, client, owner):
    attempt, first = offline.open_delivery(owner, adopted())
    _, token = offline.open_delivery(owner, attempt.run)
    path = offline.batches_url(attempt).partition("/api/")[2]
    batch = encode_batch(make_batch(0, {"critic/score/mean": [(1, 0.5)]}))

    def send(token):
        headers = {"authorization": f"Bearer {token}"}
        return client.generic("POST", f"/api/{path}", batch, content_type="application/octet-stream", headers=headers)

    assert send(first).status_code == 401
    answer = send(token)
    assert answer.status_code == 200, answer.content
    assert Attempt.objects.get().points_accepted == 1
    Attempt.objects.update(ended_at=timezone.now() - timezone.timedelta(hours=25))
    assert send(token).status_code == 410
    with pytest.raises(Conflict, match="more than a day ago"):
        offline.open_delivery(owner, attempt.run)


def test_no_other_run_takes_data_afterwards(owner, team):
    run = make_run(team)
    make_attempt(run)
    with pytest.raises(Conflict, match="driven by this control plane"):
        offline.open_delivery(owner, run)


def test_a_run_that_asked_for_gpus_this_house_lacks_is_taken_over_all_the_same(adopted, node):
    assert adopted(resources={"gpus": 8, "rollout_workers": 4}).state == "succeeded"


@pytest.mark.parametrize(
    ("changes", "record", "pointer"),
    [
        ({"environment": {"type": "quiz", "bank": "other"}}, RECORD, "/environment/bank"),
        ({}, {**RECORD, "outcome": "won"}, "/exit"),
        ({}, {**RECORD, "at": "yesterday"}, "/exit"),
        ({}, {"outcome": "succeeded", "error": "none"}, "/exit"),
    ],
)
def test_what_cannot_be_taken_over_is_named_and_nothing_is_written(adopted, changes, record, pointer):
    with pytest.raises(InvalidDocument) as refused:
        adopted(record, **changes)
    assert [error.pointer for error in refused.value.errors] == [pointer]
    assert not Run.objects.exists()
