"""Retention on histories written by hand and on random ones: what must never be deleted is not."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from controlplane.checkpoints.retention import ALWAYS_KEPT, MIN_DELTA, Item, Rules, plan
from runner.contract.metrics import EFFECTIVE
from runner.contract.metrics import TRACKED as FORMS

SCORE, ACCURACY = "critic/score/mean", "val/accuracy"
TRACKED = [name.replace("{reason}", "Biology") for name in FORMS]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def item(step, pinned=False, adapter=False, **metrics):
    return Item(step, step, BEGIN + timedelta(minutes=step), metrics, pinned, adapter)


def kept(items, keep_last=2, keep_best=True, in_use=(), **rules):
    return {key: reasons for key, reasons in plan(items, Rules(keep_last, keep_best, **rules), in_use).items() if reasons}


def test_the_newest_are_kept_and_two_at_least():
    history = [item(step) for step in range(6)]
    assert set(kept(history, keep_last=3)) == {3, 4, 5}
    assert set(kept(history, keep_last=1)) == {4, 5}


def test_the_best_by_each_tracked_metric_is_kept():
    history = [item(0, **{SCORE: 0.9}), item(1, **{ACCURACY: 0.8}), item(2, **{SCORE: 0.1}), item(3), item(4)]
    assert kept(history) == {0: [f"best:{SCORE}"], 1: [f"best:{ACCURACY}"], 3: ["last"], 4: ["last"]}


def test_best_is_not_kept_when_not_asked_for():
    assert set(kept([item(0, **{SCORE: 1.0}), item(1), item(2)], keep_best=False)) == {1, 2}


def test_a_best_is_replaced_by_what_is_strictly_better_and_of_equals_the_earlier_stays():
    for later in (0.5, 0.5 + MIN_DELTA / 2):
        assert set(kept([item(0, **{SCORE: 0.5}), item(1, **{SCORE: later}), item(2), item(3)])) == {0, 2, 3}
    assert set(kept([item(0, **{SCORE: 0.5}), item(1, **{SCORE: 0.5 + 3 * MIN_DELTA}), item(2), item(3)])) == {1, 2, 3}


def test_a_missing_or_non_finite_metric_is_no_candidate():
    history = [item(0, **{SCORE: float("inf")}), item(1, **{SCORE: float("nan")}), item(2, **{SCORE: 0.0}), item(3), item(4)]
    assert set(kept(history)) == {2, 3, 4}


def test_pinned_and_used_ones_are_kept():
    assert kept([item(0, pinned=True), item(1), item(2), item(3), item(4)], in_use={1}) == {
        0: ["user"], 1: ["in use"], 3: ["last"], 4: ["last"]
    }


# ---------------------------------------------------------------- policies
def peaks():
    """A run of 60 steps, saved every 10: success peaks at 20, score at 40."""
    success, score = {20: 0.3, 40: 0.2}, {20: 4.0, 40: 5.0}
    return [item(step, **{"val/success_rate": success.get(step, 0.1), "val/score_mean": score.get(step, 1.0)}) for step in range(10, 70, 10)]


def test_after_the_end_the_peaks_of_each_metric_and_the_final_one_remain():
    over = {"over": True, "succeeded": True}
    assert kept(peaks(), keep_last=1, **over) == {20: ["best:val/success_rate"], 40: ["best:val/score_mean"], 60: ["final", "last"]}
    going_on = kept(peaks(), keep_last=1)
    assert going_on[50] == ["last"] and going_on[60] == ["last"], "while it goes on, the newest may turn out damaged"


def test_each_topic_has_its_own_best():
    history = [item(1, **{"val/success_rate/Biology": 0.9}), item(2, **{"val/success_rate/Matter": 0.5}), item(3), item(4)]
    assert kept(history)[1] == ["best:val/success_rate/Biology"] and kept(history)[2] == ["best:val/success_rate/Matter"]


def test_an_incomplete_validation_cannot_win_best():
    """Section 7: below 95 % of its episodes a point is shown, and pins nothing."""
    for fraction, winner in ((0.94, 1), (0.95, 2)):
        history = [item(1, **{"val/success_rate": 0.2}), item(2, **{"val/success_rate": 0.9, EFFECTIVE: fraction}), item(3), item(4)]
        assert [key for key, reasons in kept(history).items() if "best:val/success_rate" in reasons] == [winner]
    trained = [item(1, **{SCORE: 0.2}), item(2, **{SCORE: 0.9, EFFECTIVE: 0.5}), item(3), item(4)]
    assert kept(trained)[2] == [f"best:{SCORE}"], "a training metric does not depend on the validation"


def test_policies_keep_more_than_the_pins():
    assert set(kept(peaks(), prune={"type": "all"})) == {10, 20, 30, 40, 50, 60}
    assert set(kept(peaks(), prune={"type": "every", "steps": 30})) == {20, 30, 40, 50, 60}
    assert kept(peaks(), prune={"type": "every", "steps": 30})[30] == ["every 30"]
    top = kept(peaks(), prune={"type": "top", "n": 2}, over=True, succeeded=True, keep_last=1)
    assert set(top) == {20, 40, 60} and set(kept(peaks(), prune={"type": "top", "n": 3})) == {10, 20, 40, 50, 60}


def test_adapters_are_small_and_stay_until_the_run_ends():
    adapters = [item(step, adapter=True, **{SCORE: -float(step)}) for step in range(8)]
    auto = {"prune": {"type": "auto"}}
    assert set(kept(adapters, **auto)) == set(range(8)) and kept(adapters, **auto)[4] == ["until the run ends"]
    assert set(kept(adapters, over=True, **auto)) == {0, 1, 2, 6, 7}
    assert set(kept([item(step, **{SCORE: -float(step)}) for step in range(8)], **auto)) == {0, 6, 7}, "full weights are not"


metric_values = st.one_of(st.none(), st.floats(-1, 1), st.just(float("nan")), st.just(float("inf")))
histories = st.lists(st.tuples(st.booleans(), st.booleans(), st.dictionaries(st.sampled_from(TRACKED), metric_values)), max_size=25)


@given(histories, st.integers(1, 5), st.booleans())
def test_nothing_that_must_stay_is_ever_deleted(history, keep_last, keep_best):
    items = [item(step, pinned, **metrics) for step, (pinned, _, metrics) in enumerate(history)]
    used = {step for step, (_, in_use, _) in enumerate(history) if in_use}
    reasons = plan(items, Rules(keep_last, keep_best), used)
    stay = {key for key, because in reasons.items() if because}
    assert set(reasons) == {entry.key for entry in items}
    assert {entry.key for entry in items[-max(keep_last, ALWAYS_KEPT):]} <= stay
    assert {entry.key for entry in items if entry.pinned} | used <= stay
    for name in TRACKED if keep_best else ():
        values = [entry.metrics[name] for entry in items if isinstance(entry.metrics.get(name), float) and abs(entry.metrics[name]) <= 1]
        if values:
            found = [entry.metrics.get(name) for entry in items if entry.key in stay]
            assert any(isinstance(value, float) and max(values) - MIN_DELTA <= value <= 1 for value in found)


@given(histories, st.integers(1, 5))
def test_at_most_the_rules_are_kept(history, keep_last):
    items = [item(step, pinned, **metrics) for step, (pinned, _, metrics) in enumerate(history)]
    stay = [key for key, because in plan(items, Rules(keep_last)).items() if because]
    assert len(stay) <= max(keep_last, ALWAYS_KEPT) + len(TRACKED) + sum(entry.pinned for entry in items)


@given(histories, st.integers(1, 5))
def test_deleting_what_the_plan_says_changes_nothing_for_the_rest(history, keep_last):
    items = [item(step, pinned, **metrics) for step, (pinned, _, metrics) in enumerate(history)]
    first = plan(items, Rules(keep_last))
    assert plan([entry for entry in items if first[entry.key]], Rules(keep_last)) == {key: because for key, because in first.items() if because}
