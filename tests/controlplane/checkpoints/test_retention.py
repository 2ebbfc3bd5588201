"""Retention on histories written by hand and on random ones: what must never be deleted is not."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from controlplane.checkpoints.retention import ALWAYS_KEPT, Item, plan
from runner.contract.metrics import TRACKED

SCORE, ACCURACY = "critic/score/mean", "val/accuracy"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def item(step, pinned=False, **metrics):
    return Item(step, step, BEGIN + timedelta(minutes=step), metrics, pinned)


def kept(items, keep_last=2, keep_best=True, in_use=()):
    return {key: reasons for key, reasons in plan(items, keep_last, keep_best, in_use).items() if reasons}


def test_the_newest_are_kept_and_two_at_least():
    history = [item(step) for step in range(6)]
    assert set(kept(history, keep_last=3)) == {3, 4, 5}
    assert set(kept(history, keep_last=1)) == {4, 5}


def test_the_best_by_each_tracked_metric_is_kept():
    history = [item(0, **{SCORE: 0.9}), item(1, **{ACCURACY: 0.8}), item(2, **{SCORE: 0.1}), item(3), item(4)]
    assert kept(history) == {0: [f"best {SCORE}"], 1: [f"best {ACCURACY}"], 3: ["newest"], 4: ["newest"]}


def test_best_is_not_kept_when_not_asked_for():
    assert set(kept([item(0, **{SCORE: 1.0}), item(1), item(2)], keep_best=False)) == {1, 2}


def test_of_equals_the_newest_is_best():
    assert 1 in kept([item(0, **{SCORE: 0.5}), item(1, **{SCORE: 0.5}), item(2), item(3)])
    assert 0 not in kept([item(0, **{SCORE: 0.5}), item(1, **{SCORE: 0.5}), item(2), item(3)])


def test_a_missing_or_non_finite_metric_is_no_candidate():
    history = [item(0, **{SCORE: float("inf")}), item(1, **{SCORE: float("nan")}), item(2, **{SCORE: 0.0}), item(3), item(4)]
    assert set(kept(history)) == {2, 3, 4}


def test_pinned_and_used_ones_are_kept():
    assert kept([item(0, pinned=True), item(1), item(2), item(3), item(4)], in_use={1}) == {
        0: ["pinned"], 1: ["in use"], 3: ["newest"], 4: ["newest"]
    }


metric_values = st.one_of(st.none(), st.floats(-1, 1), st.just(float("nan")), st.just(float("inf")))
histories = st.lists(st.tuples(st.booleans(), st.booleans(), st.dictionaries(st.sampled_from(TRACKED), metric_values)), max_size=25)


@given(histories, st.integers(1, 5), st.booleans())
def test_nothing_that_must_stay_is_ever_deleted(history, keep_last, keep_best):
    items = [item(step, pinned, **metrics) for step, (pinned, _, metrics) in enumerate(history)]
    used = {step for step, (_, in_use, _) in enumerate(history) if in_use}
    reasons = plan(items, keep_last, keep_best, used)
    stay = {key for key, because in reasons.items() if because}
    assert set(reasons) == {entry.key for entry in items}
    assert {entry.key for entry in items[-max(keep_last, ALWAYS_KEPT):]} <= stay
    assert {entry.key for entry in items if entry.pinned} | used <= stay
    for name in TRACKED if keep_best else ():
        values = [entry.metrics[name] for entry in items if isinstance(entry.metrics.get(name), float) and abs(entry.metrics[name]) <= 1]
        if values:
            assert any(entry.key in stay and entry.metrics.get(name) == max(values) for entry in items)


@given(histories, st.integers(1, 5))
def test_at_most_the_rules_are_kept(history, keep_last):
    items = [item(step, pinned, **metrics) for step, (pinned, _, metrics) in enumerate(history)]
    stay = [key for key, because in plan(items, keep_last, True).items() if because]
    assert len(stay) <= max(keep_last, ALWAYS_KEPT) + len(TRACKED) + sum(entry.pinned for entry in items)


@given(histories, st.integers(1, 5))
def test_deleting_what_the_plan_says_changes_nothing_for_the_rest(history, keep_last):
    items = [item(step, pinned, **metrics) for step, (pinned, _, metrics) in enumerate(history)]
    first = plan(items, keep_last, True)
    assert plan([entry for entry in items if first[entry.key]], keep_last, True) == {key: because for key, because in first.items() if because}
