"""Launching on ScienceWorld: what would be wasted is refused or warned of, with the numbers."""

import pytest

from controlplane.banks.models import Bank, BankVersion, Task
from controlplane.cluster.models import Node
from controlplane.runs.preflight import instant
from runner.contract.parse import parse

pytestmark = pytest.mark.django_db
GOLD = {"4-2": 3, "10-1": 126}


@pytest.fixture(autouse=True)
def version(team):
    bank = Bank.objects.create(team=team, slug="scienceworld", name="scienceworld", environment="scienceworld")
    rows = [{"id": kind, "gold": {"shortest": shortest}} for kind, shortest in GOLD.items()]
    report = {"scienceworld": {"simplification": "easy", "tasks": rows}}
    version = BankVersion.objects.create(bank=bank, number=1, digest="d" * 64, blob="b" * 64, size=9, report=report)
    for kind in ("4-2", "10-1", "3-1"):
        for number, split in enumerate(("train", "dev", "test")):
            Task.objects.create(version=version, key=f"{kind}/{number}", split=split, level=kind, payload={"variation": number})
    return version


@pytest.fixture
def document():
    return {
        "name": "laboratory",
        "model": {"max_length": 2048},
        "environment": {"type": "scienceworld", "levels": ["4-2", "10-1"]},
        "sampling": {"max_new_tokens": 64},
        "stages": [{"type": "grpo", "steps": 2, "batch_size": 8, "group_size": 4}],
    }


def warnings(document, team):
    return {warning.pointer: warning.message for warning in instant(parse(document), team).warnings}


def test_a_cap_below_every_gold_is_refused_and_below_some_is_warned_of(document, team):
    told = warnings(document, team)["/environment/max_actions"]
    assert told.startswith("is smaller than the shortest gold of 1 of 2 kinds of task (10-1 126)")
    document["environment"]["levels"] = ["10-1"]
    (error,) = instant(parse(document), team).errors
    assert error.pointer == "/environment/max_actions" and error.value == 100
    assert error.message == "is smaller than the shortest gold of every task chosen (10-1 126); raise it to 126 or more"
    document["environment"]["max_actions"] = 126
    assert not instant(parse(document), team).errors


def test_wiring_tasks_and_a_simplification_without_wires_do_not_go_together(document, team):
    document["environment"] |= {"levels": ["3-1"], "simplification": "openDoors,noElectricalAction"}
    (error,) = instant(parse(document), team).errors
    assert error.pointer == "/environment/simplification" and "is about wiring" in error.message


def test_gold_measured_under_another_simplification_is_said_to_be(document, team):
    document["environment"]["simplification"] = "openDoors"
    assert "measured under 'easy'" in warnings(document, team)["/environment/simplification"]


def test_sixty_four_simulators_on_four_gigabytes_are_degraded_with_the_numbers(document, team):
    Node.objects.create(name="small", address="10.0.0.1", cpus=8, memory=4 << 30)
    document["environment"]["max_concurrent_episodes"] = 32
    document["resources"] = {"rollout_workers": 2}
    told = warnings(document, team)["/environment/max_concurrent_episodes"]
    assert (
        told
        == "64 simulators need 28.8 GB at 0.45 GB each, the largest node has 4.0 GB: about 8 will run at a time, the other episodes wait"
    )


def test_a_node_that_cannot_hold_one_simulator_refuses_the_run(document, team):
    Node.objects.create(name="tiny", address="10.0.0.1", cpus=8, memory=300 << 20)
    found = {error.pointer: error.message for error in instant(parse(document), team).errors}
    assert "not even one fits; lower environment.heap_mb 256" in found["/environment/max_concurrent_episodes"]
