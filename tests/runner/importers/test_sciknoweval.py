import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from runner.contract.bank import read_bank
from runner.importers.__main__ import main
from runner.importers.errors import ImportRefused
from runner.importers.sciknoweval import COLUMNS, read_tasks

SHARED = Path(os.environ.get("ASSAY_SHARED", Path(__file__).parents[4] / "shared"))
REAL = SHARED / "data" / "sciknoweval.parquet"
real_file = pytest.mark.skipif(not REAL.is_file(), reason=f"{REAL} is absent; set ASSAY_SHARED to the folder that holds data/sciknoweval.parquet")


def row(number: int, **changes) -> dict:
    choices = [{"label": label, "text": f"option {label}{number}"} for label in "ABCD"]
    plain = {
        "id": f"q{number}", "domain": "Physics", "level": "L1", "task": "physics_QA", "question": f"question {number}?", "choices": choices,
        "answer_key": "ABCD"[number % 4], "instruction": "Give a letter.", "flags": [], "split": "eval" if number % 5 == 0 else "train",
        "split_naive": "train",
    }  # fmt: skip
    return {**plain, **changes}


@pytest.fixture
def parquet(tmp_path):
    def write(rows, **extra):
        path = tmp_path / "rows.parquet"
        columns = {name: [item[name] for item in rows] for name in COLUMNS if name in rows[0]}
        pq.write_table(pa.table({**columns, **extra}), path)
        return path

    return write


def test_rows_become_tasks_with_their_split(parquet):
    tasks, report = read_tasks(str(parquet([row(n) for n in range(1, 21)])))
    assert [task.split for task in tasks].count("eval") == 4
    document = report.document(tasks)
    assert (document["read"], document["kept"], document["dropped"]) == (20, 20, [])
    assert document["splits"]["train"]["baselines"]["chance"] == 0.25
    assert document["splits"]["eval"]["families"] == {"physics_QA": 4}


def test_what_the_file_drops_is_counted_by_its_strongest_reason(parquet):
    rows = [row(n) for n in range(1, 21)]
    rows[3].update(split="drop", flags=["duplicate", "conflicting_key"])
    rows[4].update(split="drop", flags=["latex_escape_repaired"])
    tasks, report = read_tasks(str(parquet(rows)))
    reasons = {item["reason"].split(":")[0]: item["examples"] for item in report.document(tasks)["dropped"]}
    assert reasons == {"conflicting_key": ["q4"], "shares its text with a held-out question": ["q5"]}
    assert len(read_tasks(str(parquet(rows)), "split_naive")[0]) == 20


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"answer_key": None}, "answer_key is empty"),
        ({"answer_key": "E"}, "none of the labels"),
        ({"question": "  "}, "question is empty"),
        ({"id": ""}, "id is empty"),
        ({"id": "q1"}, "already used by row 1"),
        ({"split": "test"}, "expected one of train, eval, drop"),
        ({"choices": [{"label": "A", "text": "alone"}]}, "choices"),
        ({"choices": None}, "choices"),
        ({"choices": [{"label": "A", "text": "x"}, {"label": "A", "text": "y"}], "answer_key": "A"}, "not distinct"),
        ({"choices": [{"label": "A", "text": ""}, {"label": "B", "text": "y"}], "answer_key": "A"}, "text"),
    ],
)
def test_a_broken_row_is_left_out_and_named(parquet, broken, reason):
    rows = [row(n) for n in range(1, 41)]
    rows[6] = {**rows[6], **broken}
    tasks, report = read_tasks(str(parquet(rows)))
    document = report.document(tasks)
    assert (document["read"], document["kept"]) == (40, 39)
    assert [item["row"] for item in document["broken"]] == [7]
    assert reason in document["broken"][0]["reason"]
    assert document["dropped"][0]["count"] == 1 and "row 7" in document["dropped"][0]["examples"][0]


def test_a_file_with_many_broken_rows_is_refused_whole(parquet, tmp_path, capsys):
    rows = [row(n, answer_key="E" if n % 10 == 0 else "A") for n in range(1, 41)]
    out = tmp_path / "bank"
    assert main(["sciknoweval", "--source", str(parquet(rows)), "--out", str(out), "--report", str(tmp_path / "report")]) == 1
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert "4 of 40 rows are broken" in last and "row 10" in last
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.parquet"]


def test_a_missing_column_is_refused_by_name_and_an_unknown_one_noted(parquet):
    rows = [row(n) for n in range(1, 5)]
    _, report = read_tasks(str(parquet(rows, extra=[1, 2, 3, 4])))
    assert report.notes == ["column 'extra' is unknown and was not read"]
    for item in rows:
        del item["answer_key"]
    with pytest.raises(ImportRefused, match="lacks the columns answer_key"):
        read_tasks(str(parquet(rows)))


def test_what_is_no_parquet_file_is_refused(tmp_path):
    (tmp_path / "notes.parquet").write_text("not columns")
    with pytest.raises(ImportRefused, match="no Parquet file"):
        read_tasks(str(tmp_path / "notes.parquet"))
    with pytest.raises(ImportRefused, match="neither a file"):
        read_tasks(str(tmp_path / "absent.parquet"))
    with pytest.raises(ImportRefused, match="choose one of split, split_naive"):
        read_tasks("x", "splits")


def test_without_a_network_the_hub_is_refused_with_the_remedy(monkeypatch):
    import huggingface_hub

    def unreachable(*args, **kwargs):
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", unreachable)
    with pytest.raises(ImportRefused, match="download the file elsewhere and give its path"):
        read_tasks("owner/name")


def test_a_hub_dataset_with_one_parquet_file_is_read(monkeypatch, parquet):
    import huggingface_hub

    path = parquet([row(n) for n in range(1, 9)])
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *args, **kwargs: ["README.md", "data/rows.parquet"])
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *args, **kwargs: str(path))
    assert len(read_tasks("owner/name")[0]) == 8
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda *args, **kwargs: ["a.parquet", "b.parquet"])
    with pytest.raises(ImportRefused, match="holds 2 Parquet files"):
        read_tasks("owner/name")


@real_file
def test_the_real_file_gives_the_counts_of_its_readme(tmp_path, capsys):
    out, report_path = tmp_path / "bank.zst", tmp_path / "report.json"
    assert main(["sciknoweval", "--source", str(REAL), "--out", str(out), "--report", str(report_path)]) == 0
    tasks, demonstrations, _ = read_bank(out.read_bytes())
    report = json.loads(report_path.read_text())
    assert not demonstrations and len(tasks) == report["kept"] == 17_596 + 800
    assert (report["read"], sum(item["count"] for item in report["dropped"]), report["broken"]) == (18_670, 274, [])
    assert report["splits"]["train"]["domains"] == {"Biology": 3935, "Chemistry": 6056, "Material": 4568, "Physics": 3037}
    assert set(report["splits"]["eval"]["domains"].values()) == {200}
    assert report["splits"]["eval"]["families"]["biology_literature_QA"] == 146
    assert report["splits"]["eval"]["baselines"]["chance"] == pytest.approx(0.254375)
    # The README counts strictly longest keys (about 37 %); here tied longest options share.
    assert report["splits"]["eval"]["baselines"]["longest_option"] == pytest.approx(0.431, abs=1e-3)
    assert "dropped 75: question_text_in_choice" in capsys.readouterr().out


@real_file
def test_the_naive_split_keeps_every_row():
    tasks, _ = read_tasks(str(REAL), "split_naive")
    assert sum(task.split == "eval" for task in tasks) == 800
    assert sum(task.split == "train" for task in tasks) == 17_870
