"""Checkpoints are believed only after they were read, kept by rule, and removed without ever being half there."""

import json
import uuid

import pytest
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from controlplane.checkpoints.models import Checkpoint
from controlplane.checkpoints.selectors import resume_point, retention_plan
from controlplane.checkpoints.services import ForeignCheckpoint, Report, apply_retention, record_report, remove_files, set_pinned, settle_writing
from controlplane.checkpoints.verify import manifest_hash
from controlplane.runs.models import Run
from tests.controlplane.factories import make_attempt, make_run


def report(attempt, folder, manifest=None, state="complete", key=None, step=1, **changes):
    body = {"state": state, "stage": 0, "step": step, "path": str(folder), "manifest": manifest, "metrics": {}, **changes}
    return record_report(attempt, key or uuid.uuid4(), Report.read(body))


# ---------------------------------------------------------------- writing → complete
def test_a_whole_checkpoint_becomes_complete(attempt, write):
    folder, manifest = write(1)
    key = uuid.uuid4()
    assert report(attempt, folder, state="writing", key=key).state == "writing"
    row = report(attempt, folder, manifest, key=key, metrics={"critic/score/mean": 0.5, "bad": float("nan")})
    assert (row.state, row.reason) == ("complete", "")
    assert row.size == 702 and row.manifest_hash == manifest_hash(manifest) and row.completed_at
    assert row.metrics == {"critic/score/mean": 0.5}
    states = [event.data["state"] for event in attempt.run.events.filter(kind="checkpoint").order_by("id")]
    assert states == ["writing", "complete"]


def test_a_report_may_be_repeated(attempt, write):
    folder, manifest = write(1)
    key = uuid.uuid4()
    first, second = report(attempt, folder, manifest, key=key), report(attempt, folder, manifest, key=key)
    assert first.completed_at == second.completed_at and Checkpoint.objects.count() == 1


def test_metrics_that_are_known_later_are_added(attempt, write):
    folder, manifest = write(1)
    key = uuid.uuid4()
    report(attempt, folder, manifest, key=key, metrics={"critic/score/mean": 0.5})
    row = report(attempt, folder, manifest, key=key, metrics={"val/accuracy": 0.4})
    assert Checkpoint.objects.get().metrics == row.metrics == {"critic/score/mean": 0.5, "val/accuracy": 0.4}


def truncate(folder):
    (folder / "weights.bin").write_bytes(b"short")


def corrupt(folder):
    (folder / "weights.bin").write_bytes(b"WEIGHTS" * 100)


def remove(folder):
    (folder / "sub" / "state.json").unlink()


def lose_manifest(folder):
    (folder / "manifest.json").unlink()


def change_manifest(folder):
    manifest = json.loads((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "step": 99}))


@pytest.mark.parametrize(
    "damage, told",
    [
        (truncate, "weights.bin has 5 bytes, the manifest says 700"),
        (corrupt, "weights.bin has other content"),
        (remove, "sub/state.json is missing"),
        (lose_manifest, "manifest.json cannot be read"),
        (change_manifest, "is not the manifest that was reported"),
    ],
)
def test_a_damaged_checkpoint_is_broken_with_the_reason(attempt, write, damage, told):
    folder, manifest = write(1)
    damage(folder)
    row = report(attempt, folder, manifest)
    assert row.state == "broken" and told in row.reason


@pytest.mark.parametrize(
    "manifest, told",
    [
        ({}, "lists no files"),
        ({"files": [], "topology": {}}, "lists no files"),
        ({"files": [{"path": "a", "size": 1, "sha256": "0" * 64}]}, "names no topology"),
        ({"files": [{"path": "a"}], "topology": {}}, "needs path, size and sha256"),
        ({"files": [{"path": "../a", "size": 1, "sha256": "0" * 64}], "topology": {}}, "outside of the checkpoint"),
        ({"files": [{"path": "/etc/passwd", "size": 1, "sha256": "0" * 64}], "topology": {}}, "outside of the checkpoint"),
    ],
)
def test_a_manifest_that_proves_nothing_is_refused(attempt, write, manifest, told):
    folder, _ = write(1)
    row = report(attempt, folder, manifest)
    assert row.state == "broken" and told in row.reason


def test_a_path_outside_of_the_runs_folder_is_broken(attempt, write, storage_folder, tmp_path_factory):
    _, manifest = write(1)
    other = tmp_path_factory.mktemp("elsewhere")
    link = storage_folder / "runs" / str(attempt.run_id) / "checkpoints" / "link"
    link.symlink_to(other)
    for step, path in enumerate([other, link, storage_folder / "runs" / "x", f"{link}/../../../../..", "relative/path"], start=10):
        row = report(attempt, path, manifest, step=step)
        assert row.state == "broken" and "does not lie in the run's storage folder" in row.reason, path


def test_a_storage_that_is_not_visible_here_is_said(attempt, settings, tmp_path_factory):
    settings.ASSAY_STORAGE = tmp_path_factory.mktemp("other") / "absent"
    manifest = {"files": [{"path": "a", "size": 5, "sha256": "0" * 64}], "topology": {}}
    row = report(attempt, settings.ASSAY_STORAGE / "runs" / str(attempt.run_id) / "checkpoints" / "step_1", manifest)
    assert row.state == "complete" and "not read again" in row.reason


def test_an_identifier_of_another_run_is_foreign(attempt, write, team):
    folder, manifest = write(1)
    row = report(attempt, folder, manifest)
    stranger = make_attempt(make_run(team))
    with pytest.raises(ForeignCheckpoint):
        report(stranger, folder, manifest, key=row.pk)
    with pytest.raises(ForeignCheckpoint):
        report(attempt, folder, manifest, key=uuid.uuid4())


def test_the_writer_may_say_that_it_broke(attempt, write):
    folder, _ = write(1)
    row = report(attempt, folder, state="broken", reason="disk full")
    assert (row.state, row.reason) == ("broken", "disk full")


def test_a_later_attempt_replaces_the_folder_of_the_same_step(run, attempt, write):
    folder, manifest = write(1)
    first = report(attempt, folder, manifest)
    attempt.state = "lost"
    attempt.save()
    folder, manifest = write(1, **{"more.bin": b"x"})
    second = report(make_attempt(run, 2), folder, manifest)
    first.refresh_from_db()
    assert (first.state, first.reason, second.state) == ("deleted", "replaced by attempt 2", "complete")
    apply_retention(run.pk)
    assert folder.exists()


# ---------------------------------------------------------------- a writer that dies
def test_a_checkpoint_whose_last_report_was_lost_is_complete_if_its_folder_is(attempt, write):
    folder, _ = write(3)
    row = report(attempt, folder, state="writing", step=3)
    settle_writing(attempt)
    row.refresh_from_db()
    assert row.state == "complete"


def test_a_checkpoint_without_its_folder_is_broken_when_the_writer_died(attempt, write, storage_folder):
    write(1)
    row = report(attempt, storage_folder / "runs" / str(attempt.run_id) / "checkpoints" / "step_3", state="writing", step=3)
    settle_writing(attempt)
    row.refresh_from_db()
    assert row.state == "broken" and "its writer ended" in row.reason


# ---------------------------------------------------------------- retention
def history(attempt, write, scores):
    return [
        report(attempt, *write(step), step=step, metrics={"critic/score/mean": score} if score is not None else {})
        for step, score in enumerate(scores, start=1)
    ]


def test_what_no_rule_keeps_is_deleted_with_its_files(run, attempt, write):
    rows = history(attempt, write, [0.1, 0.9, 0.2, 0.3, 0.4])
    doomed = apply_retention(run.pk)
    assert [row.step for row in sorted(doomed, key=lambda row: row.step)] == [1, 3]
    states = dict(Checkpoint.objects.values_list("step", "state"))
    assert states == {1: "deleted", 2: "complete", 3: "deleted", 4: "complete", 5: "complete"}
    names = {path.name for path in (write(5)[0].parent).iterdir()}
    assert names == {"step_2", "step_4", "step_5"}
    assert Checkpoint.objects.get(step=2).kept_because == ["best:critic/score/mean"]
    assert run.events.filter(kind="checkpoint", data__state="deleted").count() == 2
    assert rows


def test_the_plan_is_shown_before_anything_is_deleted(run, attempt, write):
    history(attempt, write, [None, None, None])
    assert [(row.step, bool(reasons)) for row, reasons in retention_plan(run)] == [(3, True), (2, True), (1, False)]
    assert Checkpoint.objects.filter(state="complete").count() == 3


def test_a_crash_between_the_row_and_its_files_is_made_good(run, attempt, write):
    history(attempt, write, [None] * 4)
    Checkpoint.objects.filter(step__in=[1, 2]).update(state="deleted")
    folder = write(4)[0].parent
    (folder / "step_2").rename(folder / f"step_2.deleted-{Checkpoint.objects.get(step=2).pk.hex}")
    apply_retention(run.pk)
    assert {path.name for path in folder.iterdir()} == {"step_3", "step_4"}


def test_a_checkpoint_that_the_open_attempt_began_from_stays(run, attempt, write):
    rows = history(attempt, write, [None] * 4)
    attempt.resumed_from = rows[0]
    attempt.save()
    apply_retention(run.pk)
    rows[0].refresh_from_db()
    assert (rows[0].state, rows[0].kept_because) == ("complete", ["in use"])


def test_a_checkpoint_that_another_run_trains_from_stays(run, attempt, write, team):
    rows = history(attempt, write, [None] * 4)
    other = make_run(team, document={"model": {"source": {"type": "checkpoint", "checkpoint": str(rows[0].pk)}}})
    apply_retention(run.pk)
    rows[0].refresh_from_db()
    assert rows[0].state == "complete"
    Run.objects.filter(pk=other.pk).update(archived_at=timezone.now())
    apply_retention(run.pk)
    rows[0].refresh_from_db()
    assert rows[0].state == "deleted"


def test_files_outside_of_the_runs_folder_are_never_removed(run, tmp_path_factory):
    precious = tmp_path_factory.mktemp("precious")
    (precious / "file").write_text("keep")
    remove_files(Checkpoint(run=run, path=str(precious)))
    assert (precious / "file").read_text() == "keep"


# ---------------------------------------------------------------- pins and resume
def test_a_pin_holds_a_checkpoint_until_it_is_taken_off(run, attempt, write, owner):
    rows = history(attempt, write, [None] * 4)
    set_pinned(owner, rows[0], True)
    apply_retention(run.pk)
    assert Checkpoint.objects.get(pk=rows[0].pk).kept_because == ["user"]
    set_pinned(owner, rows[0], False)
    apply_retention(run.pk)
    assert Checkpoint.objects.get(pk=rows[0].pk).state == "deleted"


def test_a_viewer_may_not_pin(attempt, write, viewer):
    row = report(attempt, *write(1))
    with pytest.raises(PermissionDenied):
        set_pinned(viewer, row, True)


def test_resume_offers_only_complete_ones(run, attempt, write):
    assert resume_point(run) is None
    report(attempt, *write(1))
    report(attempt, write(2)[0], state="broken", step=2)
    report(attempt, write(3)[0], state="writing", step=3)
    assert resume_point(run).step == 1
