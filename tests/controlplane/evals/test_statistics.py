"""Intervals and tests against scipy, against hand-worked numbers, and by simulation."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from controlplane.evals.statistics import (
    Difference,
    Interval,
    bootstrap_mean,
    holm,
    mcnemar,
    paired_difference,
    pooled_difference,
    sentence,
    sign_flip,
    t_below,
    t_mean,
    t_quantile,
    wilson,
)


class TestWilson:
    @given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.sampled_from([0.8, 0.95, 0.99]))
    @settings(deadline=None)
    def test_it_equals_scipy(self, counts, confidence):
        k, n = counts
        ours, theirs = wilson(k, n, confidence), stats.binomtest(k, n).proportion_ci(confidence, method="wilson")
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
        assert (ours.estimate, ours.n) == (k / n, n)

    def test_nothing_has_no_interval(self):
        assert wilson(0, 0) == Interval(None, None, None, 0)

    @pytest.mark.parametrize("n", [60, 300])
    @pytest.mark.parametrize("rate", [0.3, 0.5, 0.75])
    def test_it_covers_as_often_as_it_says(self, n, rate):
        """Exact: the probability of all outcomes whose interval holds the true rate."""
        covering = [k for k in range(n + 1) if wilson(k, n).low <= rate <= wilson(k, n).high]
        assert 0.93 <= stats.binom.pmf(covering, n, rate).sum() <= 0.97


class TestStudent:
    @pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 29, 100, 1001])
    def test_quantiles_and_the_distribution_equal_scipy(self, freedom):
        for probability in (0.6, 0.9, 0.975, 0.995):
            assert t_quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9)
        for t in (0.0, 0.3, 1.0, 4.0, 60.0):
            assert t_below(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-12)

    @given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12))
    @settings(deadline=None)
    def test_the_interval_of_a_mean_equals_scipy(self, values):
        mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
        found = t_mean(mean, deviation, len(values))
        half = stats.t.ppf(0.975, len(values) - 1) * deviation / len(values) ** 0.5
        assert (found.low, found.high) == pytest.approx((mean - half, mean + half), rel=1e-9, abs=1e-9)
        assert (found.estimate, found.n) == (mean, len(values))

    def test_one_value_has_no_interval(self):
        assert t_mean(0.4, None, 1) == Interval(0.4, None, None, 1)

    def test_three_seeds_are_covered_as_often_as_it_says(self):
        random = np.random.default_rng(3)
        values = random.normal(0.5, 0.1, (4000, 3))
        means, deviations = values.mean(axis=1), values.std(axis=1, ddof=1)
        found = [t_mean(mean, deviation, 3) for mean, deviation in zip(means, deviations, strict=True)]
        assert 0.94 <= np.mean([one.low <= 0.5 <= one.high for one in found]) <= 0.96


class TestBootstrap:
    def test_it_agrees_with_scipy(self):
        values = np.random.default_rng(1).normal(size=200)
        theirs = stats.bootstrap(
            (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2)
        ).confidence_interval
        ours = bootstrap_mean(values, draws=20_000)
        assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.006)

    def test_counting_distinct_values_is_drawing_tasks(self):
        """Three distinct values resampled by count spread as resampled tasks do: variance p(1-p)/n."""
        values = [0.0] * 70 + [1.0] * 30
        found = bootstrap_mean(values, draws=50_000)
        expected = stats.binom.ppf([0.025, 0.975], 100, 0.3) / 100
        assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.011)

    def test_the_same_seed_gives_the_same_interval(self):
        values = np.random.default_rng(3).normal(size=50)
        assert bootstrap_mean(values) == bootstrap_mean(values)
        assert bootstrap_mean(values, seed=1) != bootstrap_mean(values, seed=2)

    def test_a_constant_has_no_spread_and_nothing_has_no_interval(self):
        assert bootstrap_mean([0.5] * 9) == Interval(0.5, 0.5, 0.5, 9)
        assert bootstrap_mean([]) == Interval(None, None, None, 0)

    def test_more_values_than_fit_at_once_change_nothing(self, monkeypatch):
        values = np.random.default_rng(4).normal(size=100)
        whole = bootstrap_mean(values, draws=1000)
        monkeypatch.setattr("controlplane.evals.statistics._CELLS", 2_000)
        assert bootstrap_mean(values, draws=1000) == whole

    def test_it_covers_as_often_as_it_says(self):
        random, hits, trials = np.random.default_rng(5), 0, 1000
        for trial in range(trials):
            found = bootstrap_mean(random.beta(2, 5, size=200), draws=600, seed=trial)
            hits += found.low <= 2 / 7 <= found.high
        assert 0.93 <= hits / trials <= 0.97


class TestMcNemar:
    @given(st.integers(0, 400), st.integers(0, 400))
    @settings(deadline=None)
    def test_it_equals_the_exact_binomial_test(self, better, worse):
        expected = stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
        assert mcnemar(better, worse) == pytest.approx(expected, rel=1e-9)

    def test_many_changes_do_not_overflow(self):
        assert mcnemar(20_000, 10_000) == 0.0 and mcnemar(15_000, 15_000) == 1.0


class TestSignFlip:
    def test_it_equals_all_flips_of_a_small_sample(self):
        change = np.array([0.5, 1.5, -0.25, 2.0, 0.75, 1.0, 0.1])
        sums = [abs(np.dot(signs, change)) for signs in itertools.product((-1, 1), repeat=7)]
        exact = np.mean(np.array(sums) >= abs(change.sum()) * (1 - 1e-12))
        assert sign_flip(change, draws=40_000) == pytest.approx(exact, abs=0.006)

    def test_it_agrees_with_scipy(self):
        change = np.random.default_rng(6).normal(0.2, 1, size=80)
        theirs = stats.permutation_test(
            (change,), np.mean, permutation_type="samples", n_resamples=20_000, rng=np.random.default_rng(7)
        ).pvalue
        assert sign_flip(change, draws=20_000) == pytest.approx(theirs, abs=0.012)


def scores(values):
    return {f"task-{index}": value for index, value in enumerate(values)}


class TestPairedDifference:
    def test_by_hand(self):
        found = paired_difference(scores([0, 0, 1, 1, 0]), scores([1, 1, 1, 0, 1]))
        assert (found.interval.estimate, found.interval.n, found.better, found.worse) == (0.4, 5, 3, 1)
        assert found.p == pytest.approx(0.625)

    def test_a_missing_score_is_left_out_and_counted(self):
        found = paired_difference({"a": 0.0, "b": None, "c": 1.0}, {"a": 1.0, "b": 1.0, "d": 1.0})
        assert (found.interval.n, found.interval.estimate, found.unpaired) == (1, 1.0, 3)

    def test_no_common_task_resolves_nothing(self):
        found = paired_difference({"a": 1.0}, {"b": 1.0})
        assert found.interval.n == 0 and found.p is None and not found.resolved

    def test_graded_scores_use_the_randomisation_test(self):
        random = np.random.default_rng(8)
        before = random.uniform(size=100)
        found = paired_difference(scores(before), scores(before + random.normal(0.1, 0.2, size=100)))
        assert found.p < 0.01 and found.resolved

    def test_pairing_resolves_what_two_separate_intervals_do_not(self):
        random = np.random.default_rng(9)
        before = (random.uniform(size=300) < 0.5).astype(float)
        after = np.where(random.uniform(size=300) < 0.07, 1.0, before)
        separate = [wilson(int(side.sum()), 300) for side in (before, after)]
        assert separate[1].low < separate[0].high
        assert paired_difference(scores(before), scores(after)).resolved

    def test_false_positives_are_about_one_in_twenty(self):
        random, resolved, significant, trials = np.random.default_rng(10), 0, 0, 1000
        for trial in range(trials):
            skill = random.beta(2, 2, size=250)
            sides = [scores((random.uniform(size=250) < skill).astype(float)) for _ in range(2)]
            found = paired_difference(*sides, draws=600, seed=trial)
            resolved += found.resolved
            significant += found.p < 0.05
        assert 0.035 <= resolved / trials <= 0.065
        # Exact tests of counts stay below their level.
        assert significant / trials <= 0.055

    def test_power(self):
        random, resolved = np.random.default_rng(11), 0
        for trial in range(200):
            before = (random.uniform(size=300) < 0.4).astype(float)
            after = np.where(random.uniform(size=300) < 0.25, (random.uniform(size=300) < 0.9).astype(float), before)
            resolved += paired_difference(scores(before), scores(after), draws=400, seed=trial).resolved
        assert resolved / 200 > 0.95


class TestPooled:
    def test_one_seed_is_the_bootstrap_over_tasks(self):
        change = scores(np.random.default_rng(12).normal(0.1, 1, size=150))
        one, plain = pooled_difference([change]), bootstrap_mean(list(change.values()))
        assert one.estimate == pytest.approx(plain.estimate)
        assert (one.low, one.high) == pytest.approx((plain.low, plain.high), abs=0.02)

    def test_a_seed_that_differs_widens_it(self):
        random = np.random.default_rng(13)
        alike = [scores(random.normal(0.2, 0.1, size=200)) for _ in range(3)]
        apart = [scores(random.normal(mean, 0.1, size=200)) for mean in (0.0, 0.2, 0.4)]
        width = [found.high - found.low for found in map(pooled_difference, (alike, apart))]
        assert width[1] > 5 * width[0]

    def test_missing_tasks_are_no_zeros(self):
        assert pooled_difference([{"a": 1.0, "b": 1.0}, {"a": 1.0}]).estimate == 1.0

    def test_nothing(self):
        assert pooled_difference([]).n == 0 and pooled_difference([{}]).n == 0

    def test_it_covers_with_several_seeds(self):
        """Tasks differ, seeds differ: the interval holds the true mean at least as often as it says."""
        random, hits = np.random.default_rng(14), 0
        for trial in range(300):
            task, seed = random.normal(0, 0.3, size=120), random.normal(0, 0.05, size=6)
            changes = [scores(0.2 + task + shift + random.normal(0, 0.3, size=120)) for shift in seed]
            found = pooled_difference(changes, draws=400, seed=trial)
            hits += found.low <= 0.2 <= found.high
        assert 0.92 <= hits / 300 <= 1.0


class TestHolm:
    def test_by_hand(self):
        assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])

    @given(st.lists(st.floats(0, 1), max_size=12))
    def test_it_never_lowers_a_p_never_swaps_two_and_stays_within_one(self, p):
        adjusted = holm(p)
        assert all(a >= b - 1e-15 and a <= 1 for a, b in zip(adjusted, p, strict=True))
        order = sorted(range(len(p)), key=lambda index: p[index])
        assert all(adjusted[i] <= adjusted[j] for i, j in itertools.pairwise(order))

    def test_one_comparison_is_not_corrected(self):
        assert holm([0.03]) == [0.03]


class TestSentence:
    def test_resolved(self):
        found = Difference(Interval(0.18, 0.12, 0.24, 320), 1e-6, 80, 22)
        assert sentence("Forced-choice accuracy", found) == (
            "Forced-choice accuracy rose by 0.180 (95 % interval +0.120 to +0.240, n = 320 tasks): resolved."
        )

    def test_not_resolved(self):
        found = Difference(Interval(-0.02, -0.07, 0.03, 320), 0.4, 20, 26)
        assert sentence("Accuracy", found).endswith(
            "fell by 0.020 (95 % interval -0.070 to +0.030, n = 320 tasks): not resolved; the interval includes 0."
        )

    def test_correction_can_take_a_verdict_back(self):
        found = Difference(Interval(0.05, 0.01, 0.09, 320), 0.03, 40, 24)
        assert "not resolved after correction" in sentence("Accuracy", found, 0.09)
        assert sentence("Accuracy", found, 0.04).endswith(": resolved.")

    def test_nothing_in_common(self):
        assert "no task has a score on both sides" in sentence("Accuracy", Difference(Interval(None, None, None, 0), None, 0, 0))
