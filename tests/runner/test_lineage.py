"""Lineage of weights: kept over runs, and told where it meets what is held out."""

import json

from runner.assignment import open_bank
from runner.contract.bank import Demonstration, Task, write_bank
from runner.contract.parse import parse
from runner.lineage import Lineage, inherited


def test_it_grows_and_goes_on_from_the_checkpoint_it_came_from(tmp_path):
    first = Lineage("scienceworld")
    first.learned(["4-2/1", "4-2/0", "4-2/1", ""])
    assert first.tasks == ["scienceworld/4-2/0", "scienceworld/4-2/1"]
    (tmp_path / "driver.json").write_text(json.dumps({"step": 3, "trained_on": first.tasks}))
    second = Lineage.after("scienceworld", tmp_path)
    second.learned(["7-1/0"])
    assert second.overlap(["7-1/0", "7-1/1", "4-2/0"]) == ["7-1/0", "4-2/0"]
    assert first.overlap(["7-1/0"]) == [], "the parent has not learned what its child did"


def test_of_a_model_from_elsewhere_nothing_is_known(tmp_path):
    assert Lineage.after("quiz", None).tasks == [] == inherited(tmp_path)
    (tmp_path / "driver.json").write_text("{}")
    assert inherited(tmp_path) == []


def test_equal_keys_of_another_environment_are_other_tasks(tmp_path):
    (tmp_path / "driver.json").write_text(json.dumps({"trained_on": ["quiz/a"]}))
    assert Lineage.after("sciknoweval", tmp_path).overlap(["a"]) == []


def test_gold_goes_with_its_task_as_this_bank_splits_it():
    """A later bank on the same simulator may hold out what an earlier one trained on: its gold is then no demonstration."""
    tasks = [
        Task(key=key, split=split, level=key[:3], payload={"x": 1})
        for key, split in (("4-2/0", "train"), ("4-2/1", "dev"), ("7-1/0", "train"))
    ]
    told = {"kind": "gold", "completion": "<action>wait</action>"}
    gold = [Demonstration(key=f"{task.key}/000", task=task.key, **told) for task in tasks]
    data, _ = write_bank([*tasks, *gold, Demonstration(key="fact", **told)])
    document = {"name": "x", "environment": {"type": "scienceworld"}, "stages": [{"type": "sft"}]}
    assert {item.key for item in open_bank(data, parse(document)).demonstrations} == {"4-2/0/000", "7-1/0/000", "fact"}
    narrow = {**document, "environment": {"type": "scienceworld", "levels": ["4-2"]}}
    assert {item.key for item in open_bank(data, parse(narrow)).demonstrations} == {"4-2/0/000", "fact"}
