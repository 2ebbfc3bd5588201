"""The record of the SciKnowEval proof, from what a spool tells."""

import json

import pytest

from benchmarks.prove import sciknoweval_learning as proof
from benchmarks.prove._laboratory import Told
from runner.contract.parse import parse


def evaluation(scores: dict[str, float | None]) -> dict:
    rows = [{"task": task, "domain": {"b": "Biology", "p": "Physics"}[task[0]], "score": score} for task, score in scores.items()]
    return {
        "results": rows,
        "summary": {"parsed_fraction": 1.0, "forced_choice": 0.5},
        "baselines": {"chance": 0.25},
        "protocol": {"temperature": 1.0},
    }


@pytest.fixture
def summary(monkeypatch, tmp_path):
    """summary(before, after) → the record of a run with these held-out scores."""
    (tmp_path / "run.json").write_text("{}")

    def summary(before: dict, after: dict) -> dict:
        curves = {"timing_s/learn": {1: 60.0, 2: 1.0, 3: 3.0}, "critic/score/mean": {1: 0.1}, "val/accuracy": {0: 0.1}}
        told = Told({"before stage 0": evaluation(before), "after stage 0": evaluation(after)}, curves)
        monkeypatch.setattr(proof.laboratory, "read", lambda out: told)
        return proof.summary(tmp_path)

    return summary


def test_gains_are_paired_and_told_for_each_domain(summary):
    before = {f"b{i}": 0.0 for i in range(20)} | {f"p{i}": 1.0 for i in range(20)}
    found = summary(before, before | {f"b{i}": 1.0 for i in range(10)})
    assert (found["ours"], found["peer"]) == (0.75, 0.5)
    domains = found["also"]["gain_by_domain"]
    assert domains["Biology"]["interval"][0] == 0.5 and domains["Biology"]["better"] == 10 and domains["Physics"]["interval"] == [0, 0, 0]
    assert found["also"]["accuracy"]["after stage 0"]["Biology"]["n"] == 20 and found["also"]["broken"] == []
    # The first step compiles; curves that are not asked for stay out.
    assert found["also"]["seconds_of_a_step"] == {"timing_s/learn": 2.0} and "val/accuracy" not in found["also"]["curves"]


def test_what_was_not_graded_is_no_wrong_answer(summary):
    found = summary({"b1": 0.0, "b2": 1.0}, {"b1": None, "b2": 1.0})
    assert found["ours"] == 1.0 and found["also"]["accuracy"]["after stage 0"]["all"]["n"] == 1


def test_a_run_that_gains_nothing_breaks_the_claim(summary):
    same = {f"b{i}": float(i % 2) for i in range(20)}
    assert "expected above 0" in summary(same, same)["also"]["broken"][0]


def test_settings_are_laid_over_the_document(tmp_path):
    file = tmp_path / "small.json"
    file.write_text(json.dumps({"stages": [{"steps": 2}], "evaluation": {"limit": 8}}))
    options = proof.parse(["--bank", "b", "--out", str(tmp_path), "--gpus", "1", "--settings", str(file)])
    config = parse(proof.document(options))
    assert (config.total_steps, config.evaluation.limit, config.resources.gpus, config.engine.type) == (2, 8, 1, "vllm")
