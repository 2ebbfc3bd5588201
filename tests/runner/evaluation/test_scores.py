import pytest

from runner.contract.bank import Task
from runner.contract.baselines import choice_baselines
from runner.evaluation.scores import Result, mean, metrics, summarise


def task(key, options, answer, domain="physics"):
    choices = [{"label": label, "text": text} for label, text in options.items()]
    return Task(key=key, split="eval", domain=domain, payload={"instruction": "", "question": "q", "choices": choices, "answer_key": answer})


def test_baselines_by_hand():
    tasks = [
        task("1", {"A": "x", "B": "long", "C": "y", "D": "z"}, "B"),  # longest is right
        task("2", {"A": "long", "B": "x"}, "B"),  # longest is wrong
        task("3", {"A": "aa", "B": "bb", "C": "c", "D": "d"}, "A"),  # tied with B: half
        task("4", {"A": "aaa", "B": "b"}, "B"),
    ]
    baselines = choice_baselines(tasks)
    assert baselines["chance"] == pytest.approx((0.25 + 0.5 + 0.25 + 0.5) / 4)
    assert baselines["majority_letter"] == 3 / 4
    assert baselines["longest_option"] == pytest.approx((1 + 0 + 0.5 + 0) / 4)


def test_no_choices_no_baselines():
    assert choice_baselines([Task(key="1", split="eval", payload={"goal": "x"})]) == {"chance": None, "majority_letter": None, "longest_option": None}


def result(score, forced=None, parsed=True, domain="physics", level="L1", without_question=None):
    return Result("t", domain, level, score, forced, parsed, "e", without_question)


def test_missing_scores_enter_no_mean_and_are_counted():
    summary = summarise([result(1.0, 1.0), result(None, 0.0, None), result(0.0, None, False, "biology")])
    assert summary["accuracy"] == 0.5 and summary["graded"] == 2 and summary["tasks"] == 3
    assert summary["forced_choice"] == 0.5 and summary["forced"] == 2
    assert summary["parsed_fraction"] == pytest.approx(1 / 3)
    assert summary["by_domain"]["biology"]["accuracy"] == 0.0 and summary["by_domain"]["physics"]["graded"] == 1


def test_metric_names_and_absent_values():
    points = metrics(summarise([result(1.0, domain="a/b", without_question=0.0)]))
    assert points == {"val/accuracy": 1.0, "val/parsed_fraction": 1.0, "val/without_question": 0.0, "val/accuracy/a_b": 1.0}


def test_mean_of_nothing_is_missing():
    assert mean([]) is None and mean([None]) is None and mean([True, None, False]) == 0.5
