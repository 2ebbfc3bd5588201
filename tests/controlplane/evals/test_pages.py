from controlplane.evals.models import Evaluation, Protocol, Result
from tests.controlplane.pages import queries_of, read, signed_in


def evaluate(run, label, step, scores, protocol="a"):
    protocol, _ = Protocol.objects.get_or_create(hash=protocol * 64, defaults={"document": {"split": "eval"}})
    one = Evaluation.objects.create(
        run=run, attempt=1, protocol=protocol, label=label, step=step, baselines={"chance": 0.25, "longest_option": 0.28, "majority_letter": None}
    )
    Result.objects.bulk_create(
        Result(evaluation=one, task=f"t{index}", domain=f"domain {index % 2}", score=score, forced=score, parsed=score is not None)
        for index, score in enumerate(scores)
    )
    return one


def test_before_and_after_stand_beside_the_baselines(owner, run, attempt):
    evaluate(run, "before stage 0", 0, [0.0] * 15 + [1.0] * 5)
    evaluate(run, "after stage 0", 9, [1.0] * 20)
    html = read(owner, f"/runs/{run.pk}/evaluation", queries=30)
    assert "25.0 %" in html and "100.0 %" in html and "28.0 %" in html
    assert "Forced-choice accuracy rose by 0.750" in html and "15 tasks better, 0 worse" in html and "domain 1" in html


def test_an_ungraded_task_is_counted_apart(owner, run, attempt):
    evaluate(run, "before stage 0", 0, [None, 1.0, 1.0, 0.0])
    html = read(owner, f"/runs/{run.pk}/evaluation")
    assert "66.7 %" in html and "of 4" in html and "rose by" not in html


def test_an_incomplete_pass_and_one_over_what_was_trained_on_are_marked(owner, run, attempt):
    evaluate(run, "step 10", 10, [None] + [1.0] * 19)
    assert "incomplete" not in read(owner, f"/runs/{run.pk}/evaluation"), "95 % are enough"
    spoiled = evaluate(run, "step 20", 20, [None] * 2 + [1.0] * 18)
    spoiled.summary = {"trained_on": 3}
    spoiled.save()
    html = read(owner, f"/runs/{run.pk}/evaluation")
    assert html.count(">incomplete<") == 1 and "3 trained on" in html


def test_protocols_are_never_mixed(owner, run, attempt):
    evaluate(run, "before stage 0", 0, [0.0] * 10)
    evaluate(run, "after stage 0", 9, [1.0] * 10, protocol="b")
    html = read(owner, f"/runs/{run.pk}/evaluation")
    assert html.count("Held-out results") == 2 and "rose by" not in html


def test_nothing_evaluated_says_when_it_will_be(owner, run, attempt):
    assert "No evaluation yet" in read(owner, f"/runs/{run.pk}/evaluation")


def test_more_evaluations_take_no_more_queries(owner, run, attempt):
    evaluate(run, "before stage 0", 0, [0.0] * 4)
    evaluate(run, "after stage 0", 9, [1.0] * 4)
    two = queries_of(owner, f"/runs/{run.pk}/evaluation")
    for step in range(10, 30):
        evaluate(run, f"step {step}", step, [1.0] * 4)
    assert queries_of(owner, f"/runs/{run.pk}/evaluation") == two


def test_other_teams_are_told_nothing(outsider, run):
    assert signed_in(outsider).get(f"/runs/{run.pk}/evaluation").status_code == 404
