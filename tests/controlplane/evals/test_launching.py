"""An evaluation becomes a run: what is refused at which field, what is pinned, and how proving a bank's anchors begins and ends."""

import json

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.utils import timezone

from controlplane.banks import anchors
from controlplane.checkpoints.models import Checkpoint
from controlplane.cluster.models import Node
from controlplane.evals import launching
from controlplane.runs import attempts, scheduling
from controlplane.runs.models import Run
from controlplane.runs.services import request_stop, retry
from runner.contract.anchors import AnchorResult, AnchorState
from runner.contract.parse import InvalidDocument
from runner.contract.states import AttemptState, CheckpointState, RunState
from tests.controlplane.banks.repair import repair_task, repair_version, three_tasks
from tests.controlplane.factories import make_run

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def store(settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path


@pytest.fixture
def version(team, owner):
    return repair_version(team, owner)


def document(agent="oracle", **fields):
    return {"kind": "evaluation", "name": "how good", "agent": agent, **fields}


def prove(version):
    for key in ("demo/a", "demo/b"):
        for agent, earned in (("oracle", 1.0), ("nop", 0.0)):
            anchors.record_anchor(version, key, agent, AnchorResult(score=earned, raw_reward=earned, floor=0.35))


def refusals(user, team, given):
    return {error.pointer: error.message for error in launching.check(user, team, given).errors}


SERVED = {"source": {"type": "served", "name": "m", "url": "http://127.0.0.1:1/v1"}, "max_length": 16384}
TERMINAL = {"environment": {"type": "harbor", "agent": {"type": "terminal"}}, "sampling": {"max_new_tokens": 1024}}


def test_an_evaluation_is_a_run_with_everything_pinned(owner, team, version):
    run = launching.launch(owner, team, document(selection={"samples": 2}))
    config = json.loads(bytes(run.config))
    assert (run.kind, run.method, run.model, run.state, run.total_steps) == ("evaluation", "evaluate oracle", "none", RunState.QUEUED, 4)
    assert config["environment"]["version"] == version.digest and run.bank_version == version
    assert [(bundle.name, float(bundle.cpus)) for bundle in scheduling.bundles_of(run)] == [("driver", 1.0)]


def test_a_viewer_may_look_but_not_launch(viewer, team, version):
    assert launching.check(viewer, team, document()).trials == 2
    with pytest.raises(PermissionDenied):
        launching.launch(viewer, team, document())


@pytest.mark.parametrize(
    "fields, pointer, words",
    [
        ({"environment": {"type": "harbor", "bank": "other"}}, "/environment/bank", "there are: repair"),
        ({"environment": {"type": "harbor", "version": "0" * 64}}, "/environment/version", "no version of that digest"),
        ({"selection": {"splits": ["test"]}}, "/selection", "no task is left after selection.splits"),
        ({"agent": "model"}, "/model", "needs one"),
        ({"typo": 1}, "/typo", "unknown key"),
        ({"environment": {"type": "harbor", "verifier_timeout_sec": 60}}, "/environment/verifier_timeout_sec", "W09"),
    ],
)
def test_what_is_wrong_is_refused_at_its_field(owner, team, version, fields, pointer, words):
    assert words in refusals(owner, team, document(**fields))[pointer]
    with pytest.raises(InvalidDocument):
        launching.launch(owner, team, document(**fields))
    assert not Run.objects.exists()


def test_more_than_the_cluster_has_is_refused(owner, team, version):
    Node.objects.create(name="n", address="10.0.0.1", cpus=2, gpus=0)
    assert "add a node" in refusals(owner, team, document(resources={"cpus": 8.0}))["/resources/cpus"]


def test_a_model_on_an_unproven_bank_needs_a_reason_that_stays(owner, team, version):
    given = document("model", model=SERVED, **TERMINAL)
    assert "prove the anchors" in refusals(owner, team, given)["/environment/bank"]
    assert not refusals(owner, team, document("oracle")), "the anchors themselves need no proof"
    given["environment"] = {**given["environment"], "unproven_reason": "the verifier is being mended today"}
    checked = launching.check(owner, team, given)
    assert not checked.errors and "/environment/unproven_reason" in [item.pointer for item in checked.warnings]
    run = launching.launch(owner, team, given)
    assert json.loads(bytes(run.config))["environment"]["unproven_reason"] == "the verifier is being mended today"
    prove(version)
    assert not refusals(owner, team, document("model", model=SERVED, **TERMINAL))


def test_a_quarantined_and_a_blocked_task_are_not_evaluated(owner, team, version):
    anchors.quarantine(owner, version, "demo/a", "odd")
    assert launching.check(owner, team, document()).tasks == ["demo/b"]


def test_a_base_model_is_called_one(owner, team):
    repair_version(team, owner, [repair_task("demo/a", menu=[{"file": "a", "old": "1", "new": name, "label": name} for name in "23"])])
    reason = {"type": "harbor", "unproven_reason": "only the model is looked at"}
    model = {"source": {"type": "builtin", "name": "assay-tiny"}, "max_length": 512}
    checked = launching.check(owner, team, document("model", model=model, environment=reason))
    assert not checked.errors and "base model" in {item.pointer: item.message for item in checked.warnings}["/model/source"]
    assert checked.config.model.source.revision, "pinned"


@pytest.mark.parametrize(
    ("learners", "files", "told"),
    [(16, ["trainer/shards/__0_0.distcp"], "was written by 16 learners and holds no whole weights"), (16, ["model/config.json"], ""), (1, [], "")],
)
def test_a_checkpoint_without_whole_weights_is_refused(owner, team, learners, files, told):
    repair_version(team, owner, [repair_task("demo/a", menu=[{"file": "a", "old": "1", "new": name, "label": name} for name in "23"])])
    manifest = {"files": [{"path": path, "size": 1, "sha256": "0" * 64} for path in files], "topology": {"learners": learners}}
    common = {"attempt": 1, "step": 7, "path": "/x", "state": CheckpointState.COMPLETE, "size": 1, "manifest_hash": "a" * 64}
    kept = Checkpoint.objects.create(run=make_run(team, owner=owner), manifest=manifest, **common)
    model = {"source": {"type": "checkpoint", "checkpoint": str(kept.pk)}, "max_length": 512}
    reason = {"type": "harbor", "unproven_reason": "only the model is looked at"}
    found = refusals(owner, team, document("model", model=model, environment=reason))
    assert told in found.get("/model/source/checkpoint", "") and bool(found) == bool(told)


# ---------------------------------------------------------------- the anchors
def test_proving_is_a_run_and_ends_with_it(owner, team, version, viewer):
    with pytest.raises(PermissionDenied):
        launching.start_proving(viewer, version)
    version = launching.start_proving(owner, version)
    run = anchors.proofs(version).get()
    assert (run.method, run.total_steps, run.state) == ("anchors", 4, RunState.QUEUED)
    assert anchors.summary(version).state == AnchorState.PROVING
    with pytest.raises(ValidationError, match="its anchors run since"):
        launching.start_proving(owner, version)
    request_stop(owner, run)
    assert anchors.summary(version).state == AnchorState.UNPROVEN, "nothing stays proving when its run has ended"
    retry(owner, run)
    assert anchors.summary(version).state == AnchorState.PROVING


def test_a_proof_whose_driver_is_gone_proves_no_longer(owner, team, version):
    Node.objects.create(name="n", address="10.0.0.1", cpus=2, gpus=0, last_seen_at=timezone.now())
    version = launching.start_proving(owner, version)
    run = anchors.proofs(version).get()
    for number in (1, 2, 3):
        [attempt] = scheduling.place_waiting()
        assert attempt.number == number and anchors.summary(version).state == AnchorState.PROVING
        attempts.end(attempt, AttemptState.LOST, "the driver is gone")
        attempt.grant.state = "released"
        attempt.grant.save()
    run.refresh_from_db()
    assert run.state == RunState.LOST and anchors.summary(version).state == AnchorState.UNPROVEN
    assert launching.start_proving(owner, version)


def test_a_word_that_it_is_finished_ends_the_proving_before_the_run_ends(owner, team, version):
    version = launching.start_proving(owner, version)
    prove(version)
    assert anchors.finish_proving(version).state == AnchorState.PROVEN


def test_what_cannot_be_proven(team, owner):
    blocked = repair_version(team, owner, [repair_task("demo/a", codes=("E04",))])
    with pytest.raises(ValidationError, match="no task can run"):
        launching.start_proving(owner, blocked)
    assert anchors.summary(blocked).state == AnchorState.UNPROVEN
    slow = repair_version(team, owner, [repair_task("demo/s", verifier_timeout_sec=5000.0), *three_tasks()[:1]])
    assert launching.start_proving(owner, slow), "a slow verifier gets its own time"
