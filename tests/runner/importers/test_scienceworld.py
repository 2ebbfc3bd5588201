"""The bank of ScienceWorld, read from a real simulator."""

import json
from collections import Counter

import pytest

from runner.contract.bank import read_bank
from runner.contract.scienceworld import KINDS
from runner.environments.scienceworld import java as java_module
from runner.importers import __main__ as command
from runner.importers import scienceworld
from runner.importers.errors import ImportRefused
from tests.runner.environments.scienceworld.conftest import java, tasks_file  # noqa: F401  (fixtures)


def test_every_variation_is_a_task_in_its_split_and_gold_is_played(java, tasks_file, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(scienceworld, "KINDS", [kind for kind in KINDS if kind.id in ("4-2", "7-1")])
    out, report = tmp_path / "bank.zst", tmp_path / "report.json"
    assert command.main(["scienceworld", "--out", str(out), "--report", str(report), "--cap", "4", "--think", "empty"]) == 0
    tasks, demonstrations, _ = read_bank(out.read_bytes())
    rows = {row["task_id"]: row for row in tasks_file["tasks"] if row["task_id"] in ("4-2", "7-1")}
    expected = {(name, split): row[split]["n"] for name, row in rows.items() for split in ("train", "dev", "test")}
    assert Counter((task.level, task.split) for task in tasks) == expected
    shown = [pair for pair in demonstrations if pair.task == "4-2/0"]
    assert {pair.kind for pair in demonstrations} <= {"gold", "gold_cut"} and shown[0].split == "train"
    assert "Your task is to find" in shown[0].prompt and "Commands (OBJ" in shown[0].prompt and shown[0].completion.startswith("<think></think><action>")
    one = next(task for task in tasks if task.key == "4-2/150")
    assert (one.split, one.domain, one.family) == ("dev", "Classification", "find-non-living-thing")
    fixed = {task.key for task in tasks if "dev140" in task.flags}
    assert {key for key in fixed if key.startswith("4-2/")} == {f"4-2/{number}" for number in rows["4-2"]["dev140"]}
    found = {row["id"]: row for row in json.loads(report.read_text())["scienceworld"]["tasks"]}
    gold = found["4-2"]["gold"]
    assert gold["replayed"] == gold["solved"] == 1 and gold["shortest"] >= 3 and gold["fits"] == (gold["shortest"] <= 4)
    assert found["7-1"]["splits"] == {"train": 62, "dev": 31, "test": 32}


def test_without_java_nothing_is_imported_and_the_sentence_says_what_to_do(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(java_module, "candidates", list)
    assert command.main(["scienceworld", "--out", str(tmp_path / "bank")]) == 1
    assert "install Java 8 or newer" in capsys.readouterr().err and not (tmp_path / "bank").exists()


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({"simplification": "simple"}, "no simplification"),
        ({"cap": 0}, "max_actions"),
        ({"kinds": ("4-9",)}, "'4-9' is no task of ScienceWorld"),
    ],
)
def test_a_wrong_option_is_named_before_any_simulator_starts(about, told):
    with pytest.raises(ImportRefused, match=told):
        scienceworld.read_tasks(scienceworld.Options(**about))


def test_the_notes_name_the_kinds_whose_gold_fits_nowhere():
    report = scienceworld.ScienceWorldReport({})
    report.health = {"10-1": scienceworld.Health([126, 128], 2, 2, 2), "2-3": scienceworld.Health([31], 2, 1, 1)}
    first, second = scienceworld._notes(report)
    assert first == "1 kinds of task need more than 100 actions even by the oracle: 10-1 (shortest 126)"
    assert second == "not every gold path reaches 100 in two plays: 2-3"
