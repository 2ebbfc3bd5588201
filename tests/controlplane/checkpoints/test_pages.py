from controlplane.checkpoints.models import Checkpoint
from runner.contract.states import CheckpointState
from tests.controlplane.factories import make_attempt, make_run
from tests.controlplane.pages import queries_of, read, signed_in


def make_checkpoint(run, step, **values):
    return Checkpoint.objects.create(**{"run": run, "attempt": 1, "step": step, "path": "/x", "state": CheckpointState.COMPLETE, "size": 3 << 20, **values})


def test_a_checkpoint_says_why_it_is_kept(owner, run, attempt):
    make_checkpoint(run, 40, kept_because=["last", "best:val/accuracy"], metrics={"val/accuracy": 0.5})
    make_checkpoint(run, 20, state=CheckpointState.BROKEN, reason="weights.bin: size differs <b>")
    html = read(owner, f"/runs/{run.pk}/checkpoints", queries=20)
    assert "best:val/accuracy" in html and "Held-out accuracy" in html and "3.0 MiB" in html and "size differs &lt;b&gt;" in html


def test_the_tab_takes_the_same_queries_however_many_there_are(owner, run, attempt):
    make_checkpoint(run, 1)
    one = queries_of(owner, f"/runs/{run.pk}/checkpoints")
    for step in range(2, 40):
        make_checkpoint(run, step, pinned_by=owner)
    assert queries_of(owner, f"/runs/{run.pk}/checkpoints") == one


def test_a_run_without_checkpoints_says_when_they_come(owner, team):
    assert "No checkpoint yet" in read(owner, f"/runs/{make_run(team, config=b'{}').pk}/checkpoints")


def test_a_member_pins_and_unpins_and_others_may_not(teammate, viewer, outsider, run, attempt):
    checkpoint = make_checkpoint(run, 40)
    path = f"/checkpoints/{checkpoint.pk}/pin"
    assert signed_in(outsider).post(path, {"pinned": "1"}).status_code == 404
    assert signed_in(viewer).post(path, {"pinned": "1"}).status_code == 403
    signed_in(teammate).post(path, {"pinned": "1"})
    checkpoint.refresh_from_db()
    assert checkpoint.pinned_by == teammate
    signed_in(teammate).post(path, {"pinned": "0"})
    checkpoint.refresh_from_db()
    assert checkpoint.pinned_at is None
