"""Evaluations as runs report them, and what may be said about them."""

import math
import uuid

import pytest

from controlplane.evals import selectors
from controlplane.evals.models import Evaluation, Protocol, Result
from controlplane.evals.services import record_evaluation
from controlplane.runs.models import Run, RunEvent
from runner.contract.events import InvalidBatch
from tests.controlplane.factories import deliver, make_attempt, make_batch, make_run

pytestmark = pytest.mark.django_db

PROTOCOL = {"split": "eval", "tasks": 20, "temperature": 1.0, "limit": None}


def document(forced, score=None, *, step=0, label="before stage 0", protocol=PROTOCOL, **changes):
    score = forced if score is None else score
    results = [
        {
            "task": f"t-{index:03}",
            "domain": "physics" if index % 2 else "biology",
            "level": "L1",
            "score": score[index],
            "forced": value,
            "parsed": index != 3,
        }
        for index, value in enumerate(forced)
    ]
    baselines = {"chance": 0.25, "majority_letter": 0.27, "longest_option": 0.3}
    base = {
        "evaluation": str(uuid.uuid4()),
        "label": label,
        "stage": 0,
        "step": step,
        "policy_version": 0,
        "protocol": protocol,
        "split": "eval",
    }
    return {**base, "baselines": baselines, "summary": {"accuracy": 0.5}, "results": results, **changes}


def record(attempt, *arguments, **options):
    return record_evaluation(attempt, document(*arguments, **options))


def test_it_comes_in_with_its_batch_and_keeps_each_result(client, attempt):
    data = document([1.0, 0.0, 1.0, 1.0], step=5)
    events = [{"t": 1.0, "kind": "evaluation", "step": 5, "data": data}]
    assert deliver(client, attempt, make_batch(0, events=events)).status_code == 200
    evaluation = Evaluation.objects.get(pk=data["evaluation"])
    assert (evaluation.step, evaluation.label, evaluation.baselines["chance"]) == (5, "before stage 0", 0.25)
    assert evaluation.results.count() == 4 and evaluation.results.get(task="t-003").parsed is False
    assert "results" not in RunEvent.objects.get(kind="evaluation").data


def test_the_same_evaluation_twice_is_one(attempt):
    data = document([1.0, 0.0])
    assert record_evaluation(attempt, data) == record_evaluation(attempt, {**data, "step": 9})
    assert (Evaluation.objects.count(), Result.objects.count()) == (1, 2)


def test_one_protocol_whatever_the_order_of_its_keys(attempt):
    record(attempt, [1.0])
    record(attempt, [1.0], protocol=dict(reversed(PROTOCOL.items())))
    record(attempt, [1.0], protocol={**PROTOCOL, "temperature": 0.0})
    assert Protocol.objects.count() == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation": None}, "evaluation"),
        ({"evaluation": "x"}, "no UUID"),
        ({"step": None}, "step"),
        ({"results": [{"task": ""}]}, "blank or there twice"),
        ({"results": [{"task": "a"}, {"task": "a"}]}, "blank or there twice"),
        ({"results": [{"task": "a", "score": "1"}]}, "results.score"),
        ({"results": {}}, "results: must be a list"),
        ({"protocol": []}, "protocol: must be a map"),
    ],
)
def test_a_malformed_one_is_refused_by_name(attempt, changes, message):
    with pytest.raises(InvalidBatch, match=message):
        record(attempt, [1.0], **changes)


def test_another_runs_evaluation_cannot_be_written(team, attempt):
    data = document([1.0])
    record_evaluation(attempt, data)
    with pytest.raises(InvalidBatch, match="another run"):
        record_evaluation(make_attempt(make_run(team)), data)


def test_rates_count_no_missing_score(run, attempt):
    record(attempt, [1.0, 0.0, None, 1.0], [1.0, math.nan, None, 0.0])
    (evaluation,) = selectors.for_run(run)
    assert (evaluation.forced.k, evaluation.forced.n, evaluation.forced.tasks) == (2, 3, 4)
    assert (evaluation.generated.k, evaluation.generated.n, evaluation.generated.rate) == (1, 2, 0.5)
    assert (evaluation.parsed.k, evaluation.parsed.n) == (3, 4)
    assert evaluation.forced.low == pytest.approx(0.2077, abs=1e-3) and evaluation.forced.high == pytest.approx(0.9385, abs=1e-3)
    assert [(domain.domain, domain.forced.k, domain.forced.n) for domain in evaluation.domains] == [("biology", 1, 1), ("physics", 1, 2)]


def test_nothing_graded_has_no_rate(run, attempt):
    record(attempt, [None, None])
    (evaluation,) = selectors.for_run(run)
    assert evaluation.forced == selectors.Rate(0, 0, 2, None, None, None)


def test_fractional_scores_get_a_bootstrap_interval(run, attempt):
    record(attempt, [0.25] * 10 + [0.75] * 10)
    (evaluation,) = selectors.for_run(run)
    assert evaluation.forced.rate == 0.5 and 0.35 < evaluation.forced.low < 0.45 < 0.55 < evaluation.forced.high < 0.65
    assert evaluation.domains[0].forced.n == 10


def test_queries_do_not_grow_with_the_evaluations(run, attempt, django_assert_num_queries):
    for step in range(8):
        record(attempt, [1.0, 0.0], step=step)
    with django_assert_num_queries(2):
        assert len(selectors.for_run(run)) == 8


def test_a_paired_comparison_in_words(attempt):
    before = record(attempt, [0.0] * 15 + [1.0] * 5)
    after = record(attempt, [1.0] * 15 + [1.0] * 5, step=9)
    found = selectors.paired(before, after)
    assert (found.n, found.difference.interval.estimate, found.resolved) == (20, 0.75, True)
    assert found.sentence.startswith("Forced-choice accuracy rose by 0.750 (95 % interval") and found.sentence.endswith("resolved.")
    same = selectors.paired(before, before, "score")
    assert not same.resolved and "not resolved" in same.sentence and same.difference.p == 1.0


def test_two_protocols_are_never_compared(attempt):
    one, other = record(attempt, [1.0]), record(attempt, [1.0], protocol={**PROTOCOL, "temperature": 0.0})
    with pytest.raises(selectors.ProtocolsDiffer, match="differ in temperature: 1.0 and 0.0"):
        selectors.paired(one, other)
    with pytest.raises(selectors.ProtocolsDiffer):
        selectors.pooled([(one, other)])


def test_several_comparisons_are_corrected(attempt):
    baseline = record(attempt, [0.0] * 20)
    others = [record(attempt, [1.0] * better + [0.0] * (20 - better)) for better in (0, 6, 20)]
    found = selectors.paired_with_each(baseline, others)
    assert [comparison.p_holm for comparison in found] == pytest.approx([1.0, 2 * 2**-5, 3 * 2**-19])
    assert [comparison.resolved for comparison in found] == [False, False, True]
    assert "not resolved after correction" in found[1].sentence


def test_pooling_over_seeds(attempt):
    pairs = [(record(attempt, [0.0] * 20), record(attempt, [1.0] * better + [0.0] * (20 - better))) for better in (9, 10, 11)]
    found = selectors.pooled(pairs)
    assert found.estimate == pytest.approx(0.5) and 0 < found.low < 0.5 < found.high and found.n == 20


def test_runs_are_set_side_by_side_under_the_protocol_they_share(team):
    runs = [make_run(team, name=f"run {number}") for number in range(3)]
    attempts = [make_attempt(run) for run in runs]
    for attempt in attempts[:2]:
        record(attempt, [0.0, 0.0], step=0)
        record(attempt, [1.0, 0.0], step=5)
    record(attempts[0], [1.0, 1.0], step=9, protocol={"split": "other"})
    found = selectors.last_by_protocol(runs)
    assert {found[run.pk].step for run in runs[:2]} == {5} and runs[2].pk not in found
    assert found[runs[0].pk].forced.rate == 0.5
    assert selectors.last_by_protocol([runs[2]]) == {}


class TestLeaderboard:
    @pytest.fixture
    def board(self, team):
        for name, right in (("weak", 4), ("strong", 19), ("silent", None)):
            attempt = make_attempt(make_run(team, name=name))
            record(attempt, [None] * 20 if right is None else [0.0] * 20)
            record(attempt, [None] * 20 if right is None else [1.0] * right + [0.0] * (20 - right), step=5)

    def test_best_first_by_the_last_evaluation(self, board, owner):
        found = selectors.leaderboard(Run.objects.for_user(owner), Protocol.objects.get())
        assert [(row.run.name, row.forced.rate) for row in found.rows] == [("strong", 0.95), ("weak", 0.2), ("silent", None)]
        assert found.verdict.startswith("strong against weak: Forced-choice accuracy rose by 0.750") and found.verdict.endswith("resolved.")

    def test_another_teams_runs_are_not_on_it(self, board, outsider, client):
        assert selectors.leaderboard(Run.objects.for_user(outsider), Protocol.objects.get()).rows == []
        client.force_login(outsider)
        assert client.get(f"/api/v1/protocols/{Protocol.objects.get().hash}/leaderboard").status_code == 404
        assert client.get("/api/v1/protocols").json() == []

    def test_over_rest(self, board, owner, client):
        client.force_login(owner)
        (protocol,) = client.get("/api/v1/protocols").json()
        body = client.get(f"/api/v1/protocols/{protocol['hash']}/leaderboard?column=score").json()
        assert protocol["runs"] == 3 and [row["generated"]["rate"] for row in body["rows"]] == [0.95, 0.2, None]


class TestRest:
    @pytest.fixture
    def pair(self, attempt):
        return record(attempt, [0.0] * 20), record(attempt, [1.0] * 20, step=9)

    def test_evaluations_and_results(self, client, owner, run, pair):
        client.force_login(owner)
        body = client.get(f"/api/v1/runs/{run.pk}/evaluations").json()
        assert [item["forced"]["rate"] for item in body] == [0.0, 1.0]
        assert client.get(f"/api/v1/evaluations/{pair[0].pk}").json()["domains"][0]["domain"] == "biology"
        page = client.get(f"/api/v1/evaluations/{pair[0].pk}/results?limit=15").json()
        rest = client.get(f"/api/v1/evaluations/{pair[0].pk}/results", {"limit": 15, "cursor": page["next"]}).json()
        assert len({row["task"] for row in page["items"] + rest["items"]}) == 20

    def test_comparison(self, client, owner, attempt, pair):
        client.force_login(owner)
        body = client.get(f"/api/v1/evaluations/{pair[0].pk}/compare/{pair[1].pk}").json()
        assert (body["difference"], body["better"], body["resolved"], body["n"]) == (1.0, 20, True, 20)
        other = record(attempt, [1.0], protocol={"split": "x"})
        answer = client.get(f"/api/v1/evaluations/{pair[0].pk}/compare/{other.pk}")
        assert answer.status_code == 409 and "not comparable" in answer.json()["detail"]

    def test_another_team_sees_nothing(self, client, outsider, run, pair):
        client.force_login(outsider)
        for path in (f"runs/{run.pk}/evaluations", f"evaluations/{pair[0].pk}", f"evaluations/{pair[0].pk}/results"):
            assert client.get(f"/api/v1/{path}").status_code == 404
