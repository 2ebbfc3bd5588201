"""Checkpoints as the control plane hears of them, before and beside the steps."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.checkpointing import Checkpointer
from runner.reporting.emitter import Emitter


class Rows:
    def __init__(self):
        self.rows = []

    def checkpoint(self, **row):
        self.rows.append(row)


def checkpointer_of(assignment, tmp_path, fail=False):
    class Gang:
        def save(self, root, extra):
            if fail:
                raise OSError("disk full")
            return root / "step_4", {"step": 4}

    rows = Rows()
    return Checkpointer(assignment, Gang(), rows, Emitter(tmp_path / "spool", "driver")), rows


def test_a_checkpoint_is_told_as_writing_then_complete_and_later_with_its_score(assignment, tmp_path):
    checkpointer, rows = checkpointer_of(assignment, tmp_path)
    checkpointer.remember({"critic/score/mean": 0.5, "actor/lr": 1.0})
    identifier = checkpointer.save(1, 4, {})
    assert checkpointer.save(1, 4, {}) == identifier and checkpointer.saved_step == 4
    checkpointer.scored(identifier, {"val/accuracy": 0.25, "val/accuracy/physics": 0.5})
    checkpointer.scored("another", {"val/accuracy": 1.0})
    assert [row["state"] for row in rows.rows] == ["writing", "complete", "complete"]
    assert rows.rows[1]["metrics"] == {"critic/score/mean": 0.5} and rows.rows[2]["metrics"] == {
        "critic/score/mean": 0.5,
        "val/accuracy": 0.25,
    }
    assert {row["checkpoint"] for row in rows.rows} == {identifier} and rows.rows[1]["manifest"]["step"] == 4


def test_lineage_goes_on_from_the_resumed_checkpoint(assignment, tmp_path):
    checkpointer, rows = checkpointer_of(assignment, tmp_path)
    checkpointer.resumed("first", 3)
    second = checkpointer.save(1, 4, {})
    checkpointer.save(1, 5, {})
    assert [row["parent"] for row in rows.rows if row["state"] == "writing"] == ["first", second]


def test_a_save_that_fails_is_told_as_broken_and_ends_the_run(assignment, tmp_path):
    checkpointer, rows = checkpointer_of(assignment, tmp_path, fail=True)
    with pytest.raises(OSError):
        checkpointer.save(1, 4, {})
    assert [row["state"] for row in rows.rows] == ["writing", "broken"] and "disk full" in rows.rows[1]["reason"]


def test_a_save_is_begun_only_with_time_to_spare(assignment, tmp_path):
    checkpointer, _ = checkpointer_of(assignment, tmp_path)
    checkpointer.last_seconds = 10.0
    assert checkpointer.fits(15.1) and not checkpointer.fits(14.9) and checkpointer.fits(float("inf"))


def background_checkpointer(assignment, tmp_path, *answers):
    """Whose learner answers with `answers` when it is asked whether the checkpoint is written."""
    left = list(answers)

    def saved():
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    rows, begun = Rows(), []
    gang = SimpleNamespace(begin_save=lambda root, extra: begun.append(root), saved=saved)
    checkpoints = assignment.config.checkpoints.model_copy(update={"in_background": True})
    behind = replace(assignment, config=assignment.config.model_copy(update={"checkpoints": checkpoints}))
    return Checkpointer(behind, gang, rows, Emitter(tmp_path / "spool", "driver")), rows


def test_a_checkpoint_in_the_background_is_complete_when_it_is_written(assignment, tmp_path):
    checkpointer, rows = background_checkpointer(assignment, tmp_path, None, None, (Path("/c/step_4"), {"step": 4}))
    checkpointer.remember({"critic/score/mean": 0.5})
    identifier = checkpointer.save(1, 4, {"trained_on": ["a"]})
    checkpointer.remember({"critic/score/mean": 0.75})
    checkpointer.look()
    checkpointer.scored(identifier, {"val/accuracy": 0.25})
    assert checkpointer.save(1, 4, {}) == identifier and [row["state"] for row in rows.rows] == ["writing"]
    checkpointer.finish()
    checkpointer.finish()
    assert [row["state"] for row in rows.rows] == ["writing", "complete"]
    told = rows.rows[1]
    assert (told["path"], told["manifest"], told["trained_on"]) == ("/c/step_4", {"step": 4}, ["a"])
    assert told["metrics"] == {"critic/score/mean": 0.5, "val/accuracy": 0.25}, "of its own step"
    checkpointer.scored(identifier, {"val/accuracy": 0.5})
    assert rows.rows[2]["metrics"]["val/accuracy"] == 0.5


def test_the_next_checkpoint_waits_for_the_one_being_written(assignment, tmp_path):
    checkpointer, rows = background_checkpointer(assignment, tmp_path, (Path("/c/step_4"), {"step": 4}))
    first = checkpointer.save(1, 4, {})
    checkpointer.save(1, 5, {})
    assert [(row["step"], row["state"]) for row in rows.rows] == [(4, "writing"), (4, "complete"), (5, "writing")]
    assert rows.rows[2]["parent"] == first


def test_a_checkpoint_that_breaks_in_the_background_ends_the_run(assignment, tmp_path):
    checkpointer, rows = background_checkpointer(assignment, tmp_path, OSError("disk full"))
    checkpointer.save(1, 4, {})
    with pytest.raises(OSError):
        checkpointer.look()
    assert [row["state"] for row in rows.rows] == ["writing", "broken"] and "disk full" in rows.rows[1]["reason"]
