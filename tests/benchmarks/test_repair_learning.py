"""The record of the repair proof, from what its passes left."""

import json
from types import SimpleNamespace

import pytest

from benchmarks.prove import repair_learning as proof
from benchmarks.prove._laboratory import Told
from runner.contract.run_config import RunConfig


def rows(means: dict[str, float], episodes: int, termination: str = "finished") -> list[dict]:
    """`episodes` of each task, a share `mean` of them solved."""
    return [
        {"task": task, "score": float(number < mean * episodes), "termination": termination}
        for task, mean in means.items()
        for number in range(episodes)
    ]


TRAINED, HELD_OUT = [f"t{number:02}" for number in range(14)], [f"h{number}" for number in range(4)]


@pytest.fixture
def out(tmp_path, monkeypatch):
    """A folder whose passes gain 0.4 on every trained task and nothing on the others, without a spool."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    curves = {"run": {}, "drill": {"termination/verifier_error/fraction": {1: 0.0, 2: 0.125}}}
    monkeypatch.setattr(proof.laboratory, "read", lambda folder, kept: Told({}, curves[folder.name]))
    leave(tmp_path, "run", "before", rows(dict.fromkeys(TRAINED, 0.2), 5), rows(dict.fromkeys(HELD_OUT, 0.25), 16))
    leave(tmp_path, "run", "after", rows(dict.fromkeys(TRAINED, 0.6), 5), rows(dict.fromkeys(HELD_OUT, 0.25), 16))
    return tmp_path


def leave(out, name: str, moment: str, trained: list[dict], held_out: list[dict]) -> None:
    for side, results in (("trained", trained), ("held_out", held_out)):
        proof.pass_file(out, name, moment, side).write_text(json.dumps({"results": results}))


def test_trained_and_held_out_tasks_stand_apart_and_gains_are_paired_by_task(out):
    found = proof.summary(out)
    assert (found["ours"], found["peer"]) == (0.6, 0.2)
    assert found["also"]["trained"]["gain"]["interval"][0] == 0.4 and found["also"]["trained"]["gain"]["n"] == 14
    assert found["also"]["held_out"]["gain"]["interval"] == [0, 0, 0] and found["also"]["held_out"]["before"]["n"] == 64
    assert found["also"]["broken"] == []


def test_the_claim_counts_finished_episodes_and_the_others_are_told(out):
    cut = rows(dict.fromkeys(TRAINED, 1.0), 1, "max_turns_exceeded")
    leave(out, "run", "before", rows(dict.fromkeys(TRAINED, 0.2), 5) + cut, rows(dict.fromkeys(HELD_OUT, 0.25), 16))
    before = proof.summary(out)["also"]["trained"]["before"]
    assert before["interval"][0] == 0.2 and before["graded"]["interval"][0] == 0.3333
    assert before["terminations"] == {"finished": 70, "max_turns_exceeded": 14}


def test_a_gain_that_noise_explains_and_too_few_episodes_break_the_claim(out):
    after = rows(dict.fromkeys(TRAINED[:7], 0.6) | dict.fromkeys(TRAINED[7:], 0.0), 5)
    leave(out, "run", "after", after, rows(dict.fromkeys(HELD_OUT, 0.5), 8))
    broken = proof.summary(out)["also"]["broken"]
    assert "expected above 0" in broken[0] and "held_out: 32 graded episodes after, expected 64" in broken[1]


def test_the_drill_is_paired_with_the_run_and_has_to_show_its_errors(out):
    leave(out, "drill", "after", rows(dict.fromkeys(TRAINED, 0.6), 5), rows(dict.fromkeys(HELD_OUT, 0.5), 16))
    found = proof.summary(out)["also"]
    assert found["drill"]["difference"]["trained"]["interval"] == [0, 0, 0] and found["broken"] == []
    leave(out, "drill", "after", rows(dict.fromkeys(TRAINED, 0.2), 5), rows(dict.fromkeys(HELD_OUT, 0.5), 16))
    assert "the drill changes the trained tasks' mean by -0.4" in proof.summary(out)["also"]["broken"][0]


@pytest.mark.parametrize(("name", "rate"), [("run", 0.0), ("drill", 0.1)])
def test_run_and_drill_differ_by_the_verifiers_that_fail_and_by_nothing_else(name, rate):
    document = proof.document(SimpleNamespace(seed=3, settings=None), name)
    config = RunConfig.model_validate(document)
    assert (config.seed, config.environment.verifier_fault_rate, config.evaluation.type) == (3, rate, "none")
    document["environment"].pop("verifier_fault_rate", None)
    plain = proof.document(SimpleNamespace(seed=3, settings=None), "run")
    assert document == plain


def test_the_passes_play_at_least_sixty_four_episodes_a_side():
    assert proof.SAMPLES["trained"] * len(TRAINED) >= proof.EPISODES <= proof.SAMPLES["held_out"] * len(HELD_OUT)
