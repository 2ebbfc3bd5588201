from types import SimpleNamespace

import pytest

from runner.contract.bank import Task
from runner.contract.baselines import choice_baselines
from runner.contract.metrics import lookup
from runner.contract.parse import parse
from runner.evaluation.evaluator import to_result
from runner.evaluation.protocol import protocol_document
from runner.evaluation.scores import Result, mean, metrics, summarise, wilson


def task(key, options, answer, domain="physics"):
    choices = [{"label": label, "text": text} for label, text in options.items()]
    return Task(
        key=key, split="eval", domain=domain, payload={"instruction": "", "question": "q", "choices": choices, "answer_key": answer}
    )


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
    assert choice_baselines([Task(key="1", split="eval", payload={"goal": "x"})]) == {
        "chance": None,
        "majority_letter": None,
        "longest_option": None,
    }


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
    told = {"val/accuracy": 1.0, "val/parsed_fraction": 1.0, "val/without_question": 0.0, "val/accuracy/a_b": 1.0}
    assert points == {**told, "val/n_effective": 1.0, "val/effective_fraction": 1.0}


def test_mean_of_nothing_is_missing():
    assert mean([]) is None and mean([None]) is None and mean([True, None, False]) == 0.5


# ---------------------------------------------------------------- episodes with a score and a success
def played(success, final, best, turns, domain="Biology", level="4-1"):
    return Result("t", domain, level, success, None, None, "e", None, final, best, turns)


LOST = Result("t", "Biology", "4-1", None, None, None, "e", turns=3)
PLAYED = [played(1.0, 10.0, 10.0, 5), played(0.0, -10.0, 7.5, 3), played(0.0, 2.5, 2.5, 12, "Matter", "1-1")]


def test_episodes_and_turns_are_two_averages():
    """The published score weighs an episode by its turns; ours does not, and failures count as they are unless the name says so."""
    points = metrics(summarise(PLAYED))
    assert points["val/score_mean"] == pytest.approx(2.5 / 3) and points["val/score_mean_clip0"] == pytest.approx(12.5 / 3)
    assert points["val/score_best_mean"] == pytest.approx(20 / 3)
    assert points["val/test_score_rowweighted"] == pytest.approx((50 - 30 + 30) / 20)
    assert points["val/success_rate"] == pytest.approx(1 / 3) and "val/accuracy" not in points
    assert (points["val/success_rate/Biology"], points["val/success_rate_of/1-1"]) == (0.5, 0.0)
    assert [name for name in points if lookup(name) is None] == []


def test_an_episode_that_the_environment_lost_is_in_no_average_and_in_the_number():
    points = metrics(summarise([*PLAYED, LOST]))
    assert points["val/n_effective"] == 3 and points["val/effective_fraction"] == 0.75
    assert {name: value for name, value in points.items() if "effective" not in name} == {
        name: value for name, value in metrics(summarise(PLAYED)).items() if "effective" not in name
    }


def test_the_band_of_success_is_wilson_s():
    assert wilson(44, 140) == pytest.approx((0.2432, 0.3953), abs=1e-4)
    assert wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == pytest.approx(1.0)
    points = metrics(summarise(PLAYED))
    assert points["val/success_rate_low"] < 1 / 3 < points["val/success_rate_high"]


def test_a_success_is_what_the_environment_calls_one_never_a_score():
    """Done with points left is no success."""
    evidence = {"success": False, "final_score": 75, "best_score": 80}
    outcome = SimpleNamespace(
        sample=SimpleNamespace(reward=7.5, parsed=None, turns=9), evidence=evidence, order=SimpleNamespace(episode="e")
    )
    found = to_result(task("4-1/3", {"A": "x", "B": "y"}, "A"), outcome, None, None)
    assert (found.score, found.final, found.best, found.turns) == (0.0, 7.5, 8.0, 9)
    outcome.sample.reward = None
    assert to_result(task("4-1/3", {"A": "x", "B": "y"}, "A"), outcome, None, None).final is None


def test_what_the_prompt_tells_is_part_of_a_protocol():
    document = {
        "name": "x",
        "environment": {"type": "scienceworld"},
        "stages": [{"type": "gigpo"}],
        "evaluation": {"type": "held_out", "temperature": 0.0},
    }

    def made(**changes):
        config = parse({**document, "environment": {"type": "scienceworld", **changes}})
        return protocol_document(config, config.evaluation, [], "digest")

    assert made()["simplification"] == "easy" and made()["temperature"] == 0.0
    for changes in (
        {"simplification": ""},
        {"history_length": 1},
        {"max_actions": 30},
        {"hints": "none"},
        {"context": "episode"},
        {"ambiguity": "auto_first"},
    ):
        assert made(**changes) != made(), changes
    assert made(heap_mb=512) == made(), "what does not touch the score is not in it"
