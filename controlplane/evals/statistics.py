"""What a difference is worth: intervals, paired tests, pooling over seeds, and the sentence that says resolved or not.

Pure functions over arrays. Every random number comes from the given seed, so that a page shows the same interval twice. A missing score is
left out by the caller and counted; nothing here turns it into 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

DRAWS = 10_000
SEED = 20_240_601
_CELLS = 4_000_000
"""Numbers held at once while resampling."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval and the number of tasks behind it; all None when n is 0."""

    estimate: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class Difference:
    """A paired difference, after minus before. `p` is two-sided; `unpaired` tasks lacked a score on one side and are left out."""

    interval: Interval
    p: float | None
    better: int
    worse: int
    unpaired: int = 0

    @property
    def resolved(self) -> bool:
        """Whether the interval excludes 0."""
        low, high = self.interval.low, self.interval.high
        return low is not None and (low > 0 or high < 0)


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a proportion (Wilson 1927)."""
    if n == 0:
        return Interval(None, None, None, 0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # At the ends rounding may step over the exact bound.
    return Interval(rate, 0.0 if successes == 0 else centre - half, 1.0 if successes == n else centre + half, n)


def t_mean(mean: float, deviation: float | None, n: int, confidence: float = 0.95) -> Interval:
    """Student's interval of a mean of `n` values with sample standard deviation `deviation` (Student 1908): the one for a handful of seeds,
    where a bootstrap is too narrow. One value has no interval."""
    if n < 2 or deviation is None:
        return Interval(mean, None, None, n)
    half = t_quantile(0.5 + confidence / 2, n - 1) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def t_quantile(probability: float, freedom: int) -> float:
    """The value that Student's t with `freedom` degrees stays below with `probability` in (0.5, 1), by bisection of the exact distribution."""
    low, high = 0.0, 1.0
    while t_below(high, freedom) < probability:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_below(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def t_below(t: float, freedom: int) -> float:
    """P(T < t) for t >= 0 and whole `freedom`: the finite series of Abramowitz and Stegun 26.7.3 and 26.7.4."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine = math.cos(angle)
    term, total = (cosine if freedom % 2 else 1.0), 0.0
    for k in range(1 + freedom % 2, freedom, 2):
        total += term
        term *= cosine * cosine * k / (k + 1)
    if freedom % 2:
        return 0.5 + (angle + math.sin(angle) * total) / math.pi
    return 0.5 + math.sin(angle) * total / 2


def bootstrap_mean(values: Sequence[float], confidence: float = 0.95, draws: int = DRAWS, seed: int = SEED) -> Interval:
    """Percentile bootstrap of a mean (Efron 1979). `values` are finite, one a task."""
    values = np.asarray(values, "float64")
    if not len(values):
        return Interval(None, None, None, 0)
    return Interval(float(values.mean()), *_percentiles(_resampled_means(values, draws, seed), confidence), len(values))


def _resampled_means(values: np.ndarray, draws: int, seed: int) -> np.ndarray:
    random, n = np.random.default_rng(seed), len(values)
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) < n / 8:
        # Drawing n tasks is drawing how often each distinct value comes: two or three values instead of thousands of tasks.
        return random.multinomial(n, counts / n, size=draws) @ distinct / n
    chunk = max(_CELLS // n, 1)
    sizes = (min(chunk, draws - start) for start in range(0, draws, chunk))
    return np.concatenate([values[random.integers(0, n, size=(size, n))].mean(axis=1) for size in sizes])


def _percentiles(means: np.ndarray, confidence: float) -> tuple[float, float]:
    low, high = np.quantile(means, [0.5 - confidence / 2, 0.5 + confidence / 2])
    return float(low), float(high)


def paired_difference(
    before: Mapping[str, float | None], after: Mapping[str, float | None], confidence: float = 0.95, draws: int = DRAWS, seed: int = SEED
) -> Difference:
    """After minus before over the tasks that have a score on both sides.

    Interval: percentile bootstrap over tasks. p: exact McNemar test when every score is 0 or 1, else a sign-flip randomisation test.
    """
    tasks = sorted(task for task in before.keys() & after.keys() if before[task] is not None and after[task] is not None)
    unpaired = len(before.keys() | after.keys()) - len(tasks)
    first, second = (np.array([side[task] for task in tasks], "float64") for side in (before, after))
    change = second - first
    better, worse = int((change > 0).sum()), int((change < 0).sum())
    if not tasks:
        return Difference(Interval(None, None, None, 0), None, 0, 0, unpaired)
    binary = np.isin(np.concatenate([first, second]), (0.0, 1.0)).all()
    p = mcnemar(better, worse) if binary else sign_flip(change, draws, seed)
    return Difference(bootstrap_mean(change, confidence, draws, seed), p, better, worse, unpaired)


def mcnemar(better: int, worse: int) -> float:
    """Exact two-sided McNemar test: under no difference, each task that changed is as likely better as worse (McNemar 1947)."""
    n, k = better + worse, min(better, worse)
    if n == 0:
        return 1.0
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2) for i in range(k + 1)]
    return min(1.0, 2 * math.fsum(map(math.exp, logs)))


def sign_flip(change: np.ndarray, draws: int = DRAWS, seed: int = SEED) -> float:
    """Two-sided randomisation test of a paired mean: the share of random sign flips at least as far from 0 (Fisher 1935)."""
    change = np.asarray(change, "float64")
    observed, random, chunk = abs(change.sum()), np.random.default_rng(seed), max(_CELLS // len(change), 1)
    reached = 0
    for start in range(0, draws, chunk):
        signs = random.integers(0, 2, size=(min(chunk, draws - start), len(change)), dtype="int8") * 2.0 - 1
        # Sums of the same numbers in another order differ in their last bits.
        reached += int((np.abs(signs @ change) >= observed * (1 - 1e-12)).sum())
    return (reached + 1) / (draws + 1)


def pooled_difference(changes: Sequence[Mapping[str, float]], confidence: float = 0.95, draws: int = DRAWS, seed: int = SEED) -> Interval:
    """Mean change over several seeds, each a mapping of task to change.

    Two-way cluster bootstrap (Owen 2007): seeds and tasks are both drawn with replacement, because a task is hard in every seed and a
    seed is lucky in every task. n is the number of tasks. With one seed it is the bootstrap over tasks.
    """
    tasks = sorted(set().union(*changes)) if changes else []
    if not tasks:
        return Interval(None, None, None, 0)
    table = np.array([[mapping.get(task, np.nan) for task in tasks] for mapping in changes])
    present = ~np.isnan(table)
    filled = np.where(present, table, 0.0)
    random, chunk, means = np.random.default_rng(seed), max(_CELLS // len(tasks), 1), []
    for start in range(0, draws, chunk):
        size = min(chunk, draws - start)
        seeds = random.multinomial(len(changes), np.full(len(changes), 1 / len(changes)), size=size)
        weights = random.multinomial(len(tasks), np.full(len(tasks), 1 / len(tasks)), size=size)
        drawn = ((seeds @ present) * weights).sum(axis=1)
        means.append(((seeds @ filled) * weights).sum(axis=1)[drawn > 0] / drawn[drawn > 0])
    estimate = float(filled.sum() / present.sum())
    return Interval(estimate, *_percentiles(np.concatenate(means), confidence), len(tasks))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjustment for several comparisons, in the order given (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def sentence(what: str, difference: Difference, p_adjusted: float | None = None) -> str:
    """The verdict in words, with n and interval. With an adjusted p, a difference is resolved only below 0.05."""
    interval = difference.interval
    if not interval.n:
        return f"{what}: not resolved; no task has a score on both sides."
    direction = "rose" if interval.estimate > 0 else "fell" if interval.estimate < 0 else "did not change"
    size = "" if interval.estimate == 0 else f" by {abs(interval.estimate):.3f}"
    figures = f"95 % interval {interval.low:+.3f} to {interval.high:+.3f}, n = {interval.n} tasks"
    if p_adjusted is not None and difference.resolved and p_adjusted >= 0.05:
        return f"{what} {direction}{size} ({figures}): not resolved after correction for several comparisons (p = {p_adjusted:.3f})."
    verdict = "resolved" if difference.resolved else "not resolved; the interval includes 0"
    return f"{what} {direction}{size} ({figures}): {verdict}."
