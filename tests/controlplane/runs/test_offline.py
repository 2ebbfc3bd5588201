"""Taking over a run that was driven without a control plane."""

import pytest
from django.utils import timezone

from controlplane.runs import offline
from controlplane.runs.changes import fold
from controlplane.runs.models import Attempt, Run
from runner.contract.events import encode_batch
from runner.contract.parse import InvalidDocument
from tests.controlplane.factories import make_batch

RECORD = {"outcome": "succeeded", "reason": "", "step": 10, "error": None, "at": 1_700_000_000.0, "begun": 1_699_999_000.0}


@pytest.fixture
def adopted(owner, team, bank, document):
    return lambda record=RECORD, **changes: offline.adopt(owner, team, {**document, **changes}, record)


def test_the_run_and_its_attempt_stand_in_their_last_states_and_nobody_schedules_them(adopted):
    attempt, _ = adopted()
    run = Run.objects.get()
    assert (run.state, run.started_at.timestamp(), run.ended_at.timestamp()) == ("succeeded", RECORD["begun"], RECORD["at"])
    assert (attempt.state, attempt.first_step, attempt.exit_record) == ("succeeded", 1, RECORD)
    assert run.next_check_at is None and not hasattr(Attempt.objects.get(), "grant")
    folded = fold(run.events.order_by("id"))
    assert folded.run == run.state and folded.attempts == {1: attempt.state}


def test_what_it_told_is_taken_for_a_day_from_now(adopted, client):
    attempt, token = adopted()
    path = offline.batches_url(attempt).partition("/api/")[2]
    headers = {"authorization": f"Bearer {token}"}
    batch = encode_batch(make_batch(0, {"critic/score/mean": [(1, 0.5)]}))
    answer = client.generic("POST", f"/api/{path}", batch, content_type="application/octet-stream", headers=headers)
    assert answer.status_code == 200, answer.content
    assert Attempt.objects.get().points_accepted == 1
    Attempt.objects.update(ended_at=timezone.now() - timezone.timedelta(hours=25))
    assert client.generic("POST", f"/api/{path}", batch, content_type="application/octet-stream", headers=headers).status_code == 410


def test_a_run_that_asked_for_gpus_this_house_lacks_is_taken_over_all_the_same(adopted, node):
    attempt, _ = adopted(resources={"gpus": 8, "rollout_workers": 4})
    assert attempt.run.state == "succeeded"


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
