"""Launch guards of container runs: each trap that blocks a launch is refused at its field, with the remedy."""

import pytest

from django.utils import timezone

from controlplane import storage
from controlplane.banks.anchors import record_anchor
from controlplane.banks.models import Bank, BankVersion, Task, WarmedTask
from controlplane.cluster.models import Node
from controlplane.evals import launching
from controlplane.runs.forms import build_form
from controlplane.runs.launch import check_launch
from runner.contract.anchors import AnchorResult
from runner.contract.states import RunState
from tests.controlplane.factories import make_run
from tests.controlplane.runs.forms.browser import post
from tests.controlplane.runs.test_launch import refusals, write_model

MENU = [{"file": "a.c", "old": "1", "new": "2", "label": "one"}, {"file": "a.c", "old": "3", "new": "4", "label": "two"}]


@pytest.fixture
def version(team):
    bank = Bank.objects.create(team=team, slug="repair", name="repair", environment="harbor")
    version = BankVersion.objects.create(bank=bank, number=1, digest="c" * 64, blob=storage.put(b"bank file"), size=9)
    for split in ("train", "eval"):
        for number in range(2):
            payload = {
                "task_digest": storage.put(f"listing {split} {number}".encode()),
                "name": f"demo/{split}-{number}",
                "category": "repair",
                "family": "sign",
                "instruction": "Mend it.",
                "floor": 0.35,
                "verifier_timeout_sec": 180.0,
                "gpus": 0,
                "menu": MENU,
                "findings": [],
            }
            Task.objects.create(
                version=version, key=f"demo/{split}-{number}", split=split, domain="heat", level="easy", family="sign", payload=payload
            )
    return version


@pytest.fixture
def proven(version):
    for task in version.tasks.all():
        common = {"task_digest": task.payload["task_digest"], "floor": 0.35, "backend": "docker"}
        record_anchor(version, task.key, "oracle", AnchorResult(score=1.0, raw_reward=1.0, **common))
        record_anchor(version, task.key, "nop", AnchorResult(score=0.0, raw_reward=0.0, **common))
    return version


@pytest.fixture
def document():
    return {
        "name": "repair",
        "model": {"max_length": 1024},
        "environment": {"type": "harbor", "bank": "repair", "agent": {"type": "menu"}},
        "sampling": {"max_new_tokens": 4},
        "stages": [{"type": "grpo", "steps": 10, "batch_size": 16, "group_size": 4, "train_truncated": False}],
    }


def terminal(document, **settings):
    document["environment"]["agent"] = {"type": "terminal", "context_margin": 0, **settings}
    document["sampling"]["max_new_tokens"] = 512
    document["model"]["max_length"] = 2048
    return document


def change(version, **payload):
    task = version.tasks.get(key="demo/train-0")
    task.payload |= payload
    task.save()


def test_a_proven_bank_may_be_trained_on(owner, team, proven, document):
    assert refusals(owner, team, document) == {}


def test_an_unproven_bank_needs_a_reason_that_stays(owner, team, version, document):
    assert "prove the anchors" in refusals(owner, team, document)["/environment/bank"]
    document["environment"]["unproven_reason"] = "short"
    assert "/environment/bank" in refusals(owner, team, document)
    document["environment"]["unproven_reason"] = "the verifier was checked by hand"
    assert refusals(owner, team, document) == {}


def test_a_broken_verifier_blocks(owner, team, proven, document):
    task = proven.tasks.first()
    record_anchor(proven, task.key, "nop", AnchorResult(score=0.4, raw_reward=0.6, floor=0.35, backend="docker"))
    assert "broken" in refusals(owner, team, document)["/environment/bank"]


def test_files_that_are_gone_block(owner, team, proven, document):
    change(proven, task_digest="e" * 64)
    assert "E13" in refusals(owner, team, document)["/environment/version"]


def test_a_verifier_cut_short_blocks(owner, team, proven, document):
    document["environment"]["verifier_timeout_sec"] = 60
    assert "180 s" in refusals(owner, team, document)["/environment/verifier_timeout_sec"]


def test_an_image_without_tmux_blocks_the_terminal_agent_only(owner, team, proven, document):
    change(proven, findings=[{"code": "E16", "detail": "no tmux"}])
    assert refusals(owner, team, document) == {}
    assert "E16" in refusals(owner, team, terminal(document, max_turns=1))["/environment/agent/type"]


def test_a_window_that_no_reply_fits_blocks(owner, team, proven, document):
    assert "more than 2048 together" in refusals(owner, team, terminal(document, max_turns=1))["/model/max_length"]
    assert "/model/max_length" not in refusals(owner, team, terminal(document, max_turns=1, context_margin=512))


def test_tasks_without_a_menu_block_where_none_is_left(owner, team, proven, document):
    change(proven, menu=[])
    assert refusals(owner, team, document) == {}
    for task in proven.tasks.all():
        task.payload["menu"] = []
        task.save()
    assert "none of the 4 tasks" in refusals(owner, team, document)["/environment/agent/type"]


def test_gpu_tasks_without_a_gpu_block(owner, team, proven, document):
    change(proven, gpus=1)
    assert "demo/train-0" in refusals(owner, team, document)["/resources/gpus"]


def test_a_trainer_smaller_than_the_longest_episode_blocks(owner, team, proven, document):
    document["stages"][0]["micro_batch_tokens"] = 512
    assert "1024" in refusals(owner, team, document)["/stages/0/micro_batch_tokens"]


def test_a_node_local_model_blocks_on_several_nodes(owner, team, proven, document, tmp_path):
    write_model(tmp_path / "model")
    document["model"]["source"] = {"type": "path", "path": str(tmp_path / "model")}
    assert str(tmp_path).startswith("/tmp") and "/model/source/path" not in refusals(owner, team, document)
    for name in ("a", "b"):
        Node.objects.create(name=name, address="127.0.0.1", resource=f"assay_node:{name}", cpus=8, gpus=0, memory=8 << 30)
    assert "shared storage" in refusals(owner, team, document)["/model/source/path"]


def test_a_split_of_tasks_that_cannot_run_blocks(owner, team, proven, document):
    proven.tasks.filter(key="demo/train-0").update(split="blocked")
    document["environment"]["train_split"] = "blocked"
    assert "cannot run" in refusals(owner, team, document)["/environment/train_split"]


def test_an_unknown_family_names_the_known_ones(owner, team, proven, document):
    document["environment"]["families"] = ["coef"]
    assert "sign" in refusals(owner, team, document)["/environment/families/0"]


def test_masking_is_switched_off_only_for_a_reason_and_then_warns(owner, team, proven, document):
    del document["stages"][0]["train_truncated"]
    for reason in (None, "short"):
        document["environment"]["unmasked_reason"] = reason
        assert "switch it off to mask them" in refusals(owner, team, document)["/stages/0/train_truncated"], "on unless said otherwise"
    document["environment"]["unmasked_reason"] = "a control run beside the masked one"
    assert refusals(owner, team, document) == {}
    (warning,) = [item for item in check_launch(owner, team, document).warnings if item.pointer.endswith("train_truncated")]
    assert "collapsed" in warning.message


# ---------------------------------------------------------------- cold nodes
@pytest.fixture
def nodes():
    seen = {"address": "10.0.0.1", "cpus": 64, "memory": 64 << 30, "last_seen_at": timezone.now()}
    return [Node.objects.create(name=name, resource=f"assay_node:{name}", **seen) for name in ("one", "two")]


def warmed(version, node: str, seconds: float = 12.0, state=RunState.SUCCEEDED, **fields):
    about = {"document": {"resources": {"node": node}}, "kind": "evaluation", "method": "warming", "total_steps": 4, "state": state}
    run = make_run(version.bank.team, bank_version=version, **about, **fields)
    for place, task in enumerate(version.tasks.order_by("key")):
        taken = {"env_setup_seconds": seconds if place == 1 else 12.0, "verifier_seconds": 1.0, "termination": "finished", "score": 0.0}
        WarmedTask.objects.create(run=run, task=task, passes=1, **taken)


def cold(owner, team, document) -> str:
    """What is said of cold nodes; empty when nothing is. It never refuses the run."""
    checked = check_launch(owner, team, document)
    assert checked.errors == []
    found = [item for item in checked.warnings if item.pointer == "/environment/bank"]
    assert [item.value for item in found] == ["repair"] * len(found) and len(found) <= 1
    return found[0].message if found else ""


def test_a_node_that_was_never_warmed_is_named_with_the_remedy(owner, team, proven, document, nodes):
    warmed(proven, "one")
    assert cold(owner, team, document) == (
        "node two was never warmed; there the first episode of a task builds its images, for minutes; press Warm on the page of repair@1 first"
    )
    document["environment"]["backend"] = "process"
    assert cold(owner, team, document) == "", "no engine, no cache to fill"
    document["environment"]["backend"] = "docker"
    warmed(proven, "two")
    assert cold(owner, team, document) == ""


def test_a_cold_node_is_named_with_its_slow_task_and_a_failed_warming_with_its_reason(owner, team, proven, document, nodes):
    warmed(proven, "one", seconds=75.2)
    warmed(proven, "two", state=RunState.FAILED, reason="the engine does not answer")
    told = cold(owner, team, document)
    assert "node one is cold: 3 of 4 tasks are warm (demo/eval-1: set-up took 75.2 s, over 40 s)" in told
    assert "the warming of node two is failed: the engine does not answer" in told
    Node.objects.filter(name="one").update(state="cordoned")
    assert "node one" not in cold(owner, team, document), "no run is placed there"


def test_a_node_that_is_being_warmed_is_none_of_them_and_many_are_counted(owner, team, proven, document, nodes):
    for node in ("one", "two"):
        warmed(proven, node, state=RunState.ACTIVE)
    assert cold(owner, team, document) == ""
    for number in range(5):
        Node.objects.create(name=f"zz-{number}", address="10.0.0.2", cpus=8, last_seen_at=timezone.now())
    assert "node zz-2 was never warmed; and 2 more nodes;" in cold(owner, team, document)


def test_cold_nodes_are_told_over_rest_and_in_the_rail(client, owner, teammate, team, as_token, proven, document, nodes):
    answer = as_token(teammate, "submit").send("POST", "/runs/check", document).json()
    assert answer["errors"] == [] and answer["config"]
    assert [(item["pointer"], item["value"]) for item in answer["warnings"] if "never warmed" in item["message"]] == [
        ("/environment/bank", "repair")
    ]
    client.force_login(owner)
    rail = client.post("/launch/check", post(build_form(document))).content.decode()
    assert "Ready to launch" in rail and "node one was never warmed; node two was never warmed;" in rail


def test_an_evaluation_warns_of_the_node_that_it_names(owner, team, proven, nodes):
    def told(**more):
        checked = launching.check(owner, team, {"name": "n", "agent": "oracle", **more})
        return [item.message.partition(";")[0] for item in checked.warnings if item.pointer == "/environment/bank"]

    warmed(proven, "one")
    assert told() == told(resources={"node": "two"}) == ["node two was never warmed"]
    assert told(resources={"node": "one"}) == told(agent="anchors") == []


def test_turns_and_context_are_spent_together(owner, team, proven, document):
    warnings = check_launch(owner, team, terminal(document, max_turns=50, context_margin=512)).warnings
    assert any(item.pointer == "/environment/agent/max_turns" and "fit into" in item.message for item in warnings)
