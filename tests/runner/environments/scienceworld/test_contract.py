import pytest
from pydantic import ValidationError

from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.contract.scienceworld import KINDS, check_simplification, fixed_dev, kind_of


def test_the_thirty_tasks_are_those_of_the_simulator(tasks_file):
    expected = [(item["task_id"], item["task"], item["topic"], item["title"], item["electrical"]) for item in tasks_file["tasks"]]
    assert [(kind.id, kind.name, kind.topic, kind.title, kind.is_wiring) for kind in KINDS] == expected


def test_the_fixed_dev_list_is_the_frozen_one(tasks_file):
    rows = tasks_file["tasks"]
    found = fixed_dev({row["task_id"]: row["dev"]["first"] for row in rows}, {row["task_id"]: row["dev"]["n"] for row in rows})
    assert found == {row["task_id"]: row["dev140"] for row in rows} and sum(map(len, found.values())) == 140


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("simple", "'simple' is no simplification; choose easy"),
        (
            "easy,openContainers",
            "easy stands alone; spell its parts out, such as teleportAction,openDoors,selfWateringFlowerPots,openContainers",
        ),
        ("openDoors, teleportAction", "' teleportAction' is no simplification"),
    ],
)
def test_a_simplification_the_simulator_would_choke_on_is_refused_with_the_remedy(text, told):
    with pytest.raises(ValueError, match=told):
        check_simplification(text)
    with pytest.raises(ValidationError, match=told):
        Settings(simplification=text)


def test_wiring_cannot_be_played_without_wires():
    assert check_simplification("openDoors,noElectricalAction", kind_of("4-2"))
    with pytest.raises(ValueError, match="3-1 power-component is about wiring"):
        check_simplification("openDoors,noElectricalAction", kind_of("3-1"))


def test_tasks_are_named_by_id_or_name_and_an_unknown_one_is_refused():
    assert Settings(levels=["4-2", "lifespan-longest-lived"]).levels == ["4-2", "7-1"]
    with pytest.raises(ValidationError, match="'9-9' is no task of ScienceWorld; its ids are 1-1, 1-2"):
        Settings(levels=["9-9"])


def test_the_fixed_list_is_one_of_the_dev_split_only():
    assert Settings(eval_split="test").eval_tasks == "all" and Settings(eval_tasks="dev140").eval_split == "dev"
    with pytest.raises(ValidationError, match="dev140 is a list of the dev split, not of test"):
        Settings(eval_split="test", eval_tasks="dev140")
