"""What weights were trained on travels with them, and cannot be held out for them."""

import uuid
from types import SimpleNamespace

import pytest

from controlplane.banks.models import Bank, BankVersion, Task
from controlplane.checkpoints.lineage import overlap
from controlplane.checkpoints.services import Report, record_report, settle_writing
from controlplane.runs.preflight import Findings, check_lineage
from runner.contract.parse import parse

pytestmark = pytest.mark.django_db

SEEN = ["quiz/a", "quiz/b", "scienceworld/1-1/3"]


def saved(attempt, write, state="complete", **files):
    folder, manifest = write(1, **files)
    body = {"state": state, "stage": 0, "step": 1, "path": str(folder), "manifest": manifest, "metrics": {}}
    return record_report(attempt, uuid.uuid4(), Report.read({**body, **({"trained_on": SEEN} if state == "complete" else {})}))


def test_a_report_carries_it_and_names_of_another_simulator_do_not_count(attempt, write):
    row = saved(attempt, write)
    row.refresh_from_db()
    assert row.trained_on == SEEN
    assert overlap(row.pk, "quiz", ["b", "c", "1-1/3"]) == ["b"] and overlap(row.pk, "scienceworld", ["a", "1-1/3"]) == ["1-1/3"]
    assert overlap(uuid.uuid4(), "quiz", ["a"]) == []


def test_where_the_last_report_was_lost_the_folder_tells(attempt, write):
    row = saved(attempt, write, "writing", **{"driver.json": b'{"trained_on": ["quiz/z"]}'})
    settle_writing(attempt)
    row.refresh_from_db()
    assert (row.state, row.trained_on) == ("complete", ["quiz/z"])


@pytest.mark.parametrize("told", ["quiz/a", [1], [{}], ["x" * 301]])
def test_anything_but_names_is_refused(told):
    with pytest.raises(ValueError, match="trained_on"):
        Report.read({"state": "complete", "stage": 0, "step": 1, "trained_on": told})


@pytest.fixture
def version(team):
    bank = Bank.objects.create(team=team, slug="quiz", name="Quiz", environment="quiz")
    version = BankVersion.objects.create(bank=bank, number=1, digest="d" * 64, blob="b" * 64, size=1)
    for key, split in (("a", "eval"), ("c", "eval"), ("b", "train")):
        Task.objects.create(version=version, key=key, split=split, payload={})
    return version


def findings(version, row, **changes):
    source = {"type": "checkpoint", "checkpoint": str(row.pk)}
    config = parse({"name": "x", "model": {"source": source}, "stages": [{"type": "grpo"}], **changes})
    found = Findings(bank_version=version, facts=SimpleNamespace())
    check_lineage(config, found)
    return found.errors


def test_a_run_that_would_evaluate_on_what_its_model_has_seen_is_refused(attempt, write, version):
    (error,) = findings(version, saved(attempt, write))
    assert error.pointer == "/environment/eval_split" and "1 of its 2 tasks (a among them) were trained on" in error.message


def test_training_on_them_again_or_evaluating_nothing_is_no_overlap(attempt, write, version):
    row = saved(attempt, write)
    assert findings(version, row, evaluation={"type": "none"}) == []
    Task.objects.filter(key="a").delete()
    assert findings(version, row) == []
