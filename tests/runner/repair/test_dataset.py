"""Datasets: exactly the published files and columns, one partition for all levels."""

import json

import pyarrow.parquet as pq
import pytest

from runner.repair.__main__ import main
from runner.repair.bank import read_bank
from runner.repair.dataset import SCHEMA, DatasetRefused, stale_rows, write_dataset
from runner.repair.layouts import discover
from tests.runner.repair import toy

FILES = {
    *(f"{part}/{level}.parquet" for part in ("train", "all") for level in ("L1", "L2", "L3")),
    *("eval/L1.parquet", "eval/L2.parquet", "eval/unhinted.parquet"),
    *(f"stats/{level}.json" for level in ("L1", "L2", "L3")),
    "split.json",
}


@pytest.fixture
def folder(compiled, tmp_path):
    return write_dataset(read_bank(discover(compiled)), tmp_path / "data", "toy", commit="abc")


def rows(path):
    return pq.read_table(path).to_pylist()


def names(path):
    return [row["task_name"] for row in rows(path)]


def test_the_file_set_is_exact(folder):
    assert folder.relative_to(folder.parents[1]).as_posix() == "toy/repair_easy"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == FILES
    assert [path.name for path in folder.parent.iterdir()] == ["repair_easy"]


def test_train_and_eval_are_disjoint_and_the_same_at_every_level(folder):
    held_out = json.loads((folder / "split.json").read_text())["val"]
    assert held_out == ["demo/toy-repair-coef-a"]
    for level in ("L1", "L2", "L3"):
        train, val = (
            names(folder / "train" / f"{level}.parquet"),
            names(folder / "eval" / f"{'unhinted' if level == 'L3' else level}.parquet"),
        )
        assert val == held_out and not set(train) & set(val)
        assert train == names(folder / "train" / "L1.parquet")
        assert sorted(train + val) == names(folder / "all" / f"{level}.parquet")


def test_the_columns(folder):
    for path in folder.rglob("*.parquet"):
        assert pq.read_schema(path).names == SCHEMA.names
    [first] = [row for row in rows(folder / "all" / "L1.parquet") if row["task_name"] == "demo/toy-repair-sign-a"]
    extra = first.pop("extra_info")
    assert first["data_source"] == "scienceide_rl" and first["reward_model"] == {"style": "rule", "ground_truth": ""}
    assert (first["category"], first["family"], first["tree"], first["floor"], first["bank_commit"]) == (
        "repair",
        "sign",
        "squares",
        0.2,
        "abc",
    )
    assert first["prompt"][0]["role"] == "user" and first["prompt"][0]["content"].endswith(extra["hint"])
    assert list(extra) == ["task_path", "reward_key", "task_name", "hint", "hint_level", "timeout_sec", "gpus"] + [
        *("category", "family", "tree", "mode", "floor", "checks", "network_mode")
    ]
    assert extra["task_path"].startswith("/") and extra["task_path"].endswith("toy/repair/easy/toy-repair-sign-a")
    assert (extra["reward_key"], extra["timeout_sec"], extra["gpus"], extra["hint_level"]) == ("reward_repair", 600.0, 0, "L1")
    assert extra["checks"] == ["sum-8", "sum-16"] and extra["network_mode"] == "no-network"


def test_what_each_level_tells(folder):
    hints = {level: [row["extra_info"]["hint"] for row in rows(folder / "all" / f"{level}.parquet")] for level in ("L1", "L2", "L3")}
    assert all("sim.py, line " in hint for hint in hints["L1"])
    assert all("sim.py" in hint and "line" not in hint for hint in hints["L2"])
    assert hints["L3"] == [""] * 4
    assert all("hint" not in row["prompt"][0]["content"].lower() for row in rows(folder / "eval" / "unhinted.parquet"))


def test_statistics(folder, compiled):
    stats = json.loads((folder / "stats" / "L1.json").read_text())
    assert stats == {
        "n_tasks": 4,
        "n_hinted": 4,
        "by_category": {"repair": 4},
        "by_reward_key": {"reward_repair": 4},
        "by_group": {
            f"repair/{family}/squares": {
                "n_tasks": n,
                "floor_min": 0.2,
                "floor_max": 0.2,
                "floor_mean": 0.2,
                "reward_key": ["reward_repair"],
            }
            for family, n in (("bounds", 1), ("coef", 1), ("sign", 2))
        },
        "repo": str(compiled),
        "env": "toy",
        "hint_level": "L1",
        "n_train": 3,
        "n_val": 1,
    }
    assert json.loads((folder / "stats" / "L3.json").read_text())["n_hinted"] == 0
    assert json.loads((folder / "split.json").read_text()) == {
        "env": "toy",
        "categories": ["repair"],
        "difficulty": "easy",
        "val_per_group": 1,
        "group_key": ["category", "family", "tree"],
        "val": ["demo/toy-repair-coef-a"],
    }


def test_the_bank_version_holds_out_what_the_dataset_does(folder, compiled):
    bank = read_bank(discover(compiled))
    assert [entry.record.key for entry in bank.entries if entry.record.split == "eval"] == json.loads((folder / "split.json").read_text())[
        "val"
    ]


def test_the_training_order_is_shuffled_once_and_stays(authored, tmp_path):
    from runner.repair.compile import compile_bank

    for number in range(20):
        toy.write_task(authored, f"toy-repair-sign-x{number:02}", "sign")
    compile_bank(authored, tmp_path / "big")
    orders = [
        names(write_dataset(read_bank(discover(tmp_path / "big")), tmp_path / data, "toy") / "train" / "L2.parquet")
        for data in ("one", "two")
    ]
    assert orders[0] == orders[1] != sorted(orders[0])


def test_a_task_that_cannot_run_is_in_no_dataset(authored, dense, compiled, tmp_path):
    with pytest.raises(DatasetRefused, match="E04 by compiling"):
        write_dataset(read_bank(discover(authored)), tmp_path / "data", "toy")
    (dense / "instruction.md").unlink()
    with pytest.raises(DatasetRefused, match="1 of 4 tasks cannot run .demo/toy-repair-sign-a: E03"):
        write_dataset(read_bank(discover(compiled)), tmp_path / "data", "toy")
    with pytest.raises(DatasetRefused, match="no hard task of toy"):
        write_dataset(read_bank(discover(compiled)), tmp_path / "data", "toy", tier="hard")
    assert not (tmp_path / "data").exists() or not list((tmp_path / "data").rglob("*.parquet"))


def test_rows_whose_files_changed_are_told(folder, dense):
    path = folder / "all" / "L3.parquet"
    assert stale_rows(path) == {}
    (dense / "instruction.md").write_text("another")
    assert list(stale_rows(path)) == ["demo/toy-repair-sign-a"]
    dense.rename(dense.with_name("moved"))
    assert "no longer exists" in stale_rows(path)["demo/toy-repair-sign-a"]


def test_the_command_line(compiled, tmp_path, capsys):
    assert main(["dataset", str(compiled), str(tmp_path / "data")]) == 0
    assert (tmp_path / "data" / "toy" / "repair_easy" / "split.json").exists()
    assert main(["dataset", str(compiled), str(tmp_path / "data"), "--tier", "hard"]) == 1
    assert "no hard task" in capsys.readouterr().err
