"""Which tasks an evaluation takes, and how its lines add up."""

from types import SimpleNamespace

import pytest

from runner.contract.evaluation_config import parse_evaluation
from runner.contract.evaluation_results import block, error_class, select, summarise
from runner.contract.parse import InvalidDocument


def task(key, family="sign", split="train", category="repair", tree="", menu=(), **payload):
    given = {"category": category, "tree": tree, "menu": list(menu), **payload}
    return SimpleNamespace(key=key, split=split, domain="heat", level="easy", family=family, payload=given)


TASKS = [task("b"), task("a"), task("c", "coef"), task("d", "coef", "eval"), task("g", gpus=1), task("x", split="blocked")]


def chosen(tasks=TASKS, **selection):
    config = parse_evaluation({"name": "n", "agent": "oracle", "selection": selection})
    return [item.key for item in select(tasks, config)]


def test_by_name_then_the_first_of_each_stratum_then_the_first_of_all():
    assert chosen() == ["a", "b", "c", "d"]
    assert chosen(per_family=1) == ["a", "c"]
    assert chosen(per_family=1, limit=1) == ["a"]
    assert chosen(splits=["eval"]) == ["d"]
    assert chosen(task_glob="[bc]") == ["b", "c"]
    assert chosen(gpu_tasks=True)[-1] == "g"


@pytest.mark.parametrize("selection, words", [({"splits": ["no"]}, "selection.splits"), ({"categories": ["x"]}, "selection.categories")])
def test_the_filter_that_left_nothing_is_named(selection, words):
    with pytest.raises(ValueError, match=f"no task is left after {words}"):
        chosen(**selection)


def test_a_menu_agent_takes_only_tasks_that_have_a_menu():
    document = {"name": "n", "agent": "model", "model": {"source": {"type": "builtin"}}, "environment": {"type": "harbor"}}
    tasks = [task("a"), task("b", menu=[{}, {}])]
    assert [item.key for item in select(tasks, parse_evaluation(document))] == ["b"]


@pytest.mark.parametrize(
    "document, pointer",
    [
        ({"agent": "model"}, "/model"),
        ({"agent": "oracle", "model": {"source": {"type": "builtin"}}}, "/model"),
        ({"agent": "nop", "environment": {"type": "harbor", "verifier_fault_rate": 0.1}}, "/environment"),
        ({"agent": "nop", "selection": {"samples": 0}}, "/selection/samples"),
        ({"agent": "model", "model": {"source": {"type": "served", "name": "m", "url": "ftp://x"}}}, "/model/source/url"),
    ],
)
def test_a_document_is_refused_at_its_field(document, pointer):
    with pytest.raises(InvalidDocument) as refused:
        parse_evaluation({"name": "n", **document})
    assert [error.pointer for error in refused.value.errors] == [pointer]


@pytest.mark.parametrize(
    "exception, termination, graded, name",
    [
        ("", "finished", True, "ok"),
        ("", "verifier_error", False, "no_reward"),
        ("reward_missing: no file", "verifier_error", False, "other"),
        ("This model's maximum context length is 8", "policy_error", False, "prompt_overflow"),
        ("", "max_response_length_exceeded", True, "prompt_overflow"),
        ("", "agent_timeout", True, "timeout"),
    ],
)
def test_error_classes(exception, termination, graded, name):
    assert error_class(exception, termination, graded) == name


def line(name="a", score=1.0, **fields):
    empty = dict.fromkeys(("n_turns", "n_total_tokens", "n_output_tokens", "traj_chars", "prompt_chars", "agent_chars", "env_chars"))
    rewards = {} if score is None else {"reward": score}
    base = {
        "task_name": name,
        "category": "repair",
        "family": "sign",
        "tree": "2d",
        "score": score,
        "raw_reward": score,
        "success": score == 1.0,
    }
    rest = {"error_class": "ok", "regraded": False, "rewards": rewards, "floor_reported": 0.35, "floor_expected": 0.35}
    return {**empty, **base, **rest, "agent_seconds": 2.0, "total_seconds": None, **fields}


def test_a_missing_reward_enters_no_mean_and_the_published_figure_stands_beside():
    found = block([line("a"), line("b", None, error_class="no_reward"), line("c", 0.0)])
    assert (found["n_trials"], found["n_graded"], found["n_unmeasured"], found["n_errors"], found["n_success"]) == (3, 2, 1, 1, 1)
    assert found["mean_score"] == 0.5 and found["mean_score_all_trials"] == pytest.approx(1 / 3)
    assert found["pass_rate"] == 0.5 and found["pass_any_rate"] == pytest.approx(1 / 3) and found["mean_agent_seconds"] == 2.0
    assert found["mean_total_seconds"] is None and found["mean_turns"] is None
    empty = block([])
    assert empty["mean_score"] is None and empty["pass_any_rate"] is None


def test_a_summary_is_by_category_and_family_and_names_floors_that_differ():
    records = [
        line("a"),
        line("b", 0.2, family="coef", floor_reported=0.0),
        line("c", None, category="implementation", error_class="timeout"),
    ]
    found = summarise(records, {"agent": "nop"}, lambda rows: {"n": len(rows)})
    assert set(found["by_family"]) == {"repair/sign/2d", "repair/coef/2d", "implementation/sign/2d"}
    assert found["by_category"]["implementation"]["mean_score"] is None and found["overall"]["n"] == 3
    assert found["errors"] == {"timeout": 1} and found["floor_mismatch"] == [{"task_name": "b", "reported": 0.0, "expected": 0.35}]
