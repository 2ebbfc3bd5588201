"""Group-relative advantages: reward minus the group's mean."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from runner.rollouts.workflow import STREAM_SHUFFLE

STD_FLOOR = 1e-6


def group_advantages(
    rewards: Sequence[float | None],
    normalisation: Literal["mean", "mean_std"] = "mean",
    ungraded: Literal["exclude", "zero"] = "exclude",
) -> list[float | None]:
    """A_i = r_i − mean(r), optionally / (std(r) + 1e-6), over one group; the mean includes the member itself.

    A missing reward is left out of mean and std and has no advantage (`exclude`), or counts as 0 (`zero`).
    std is the unbiased one, as in verl; a group of one graded member has advantage 0.
    """
    values = [0.0 if reward is None and ungraded == "zero" else reward for reward in rewards]
    graded = np.array([value for value in values if value is not None], np.float64)
    if not len(graded):
        return [None] * len(values)
    centre, scale = graded.mean(), 1.0
    if normalisation == "mean_std":
        scale = (graded.std(ddof=1) if len(graded) > 1 else 0.0) + STD_FLOOR
    return [None if value is None else float((value - centre) / scale) for value in values]


def shuffled_rewards(rewards: Sequence[float | None], seed: int, step: int) -> list[float | None]:
    """The graded rewards of a batch permuted among its graded episodes; a function of (seed, step)."""
    graded = [index for index, reward in enumerate(rewards) if reward is not None]
    order = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, STREAM_SHUFFLE, step]))).permutation(len(graded))
    result = list(rewards)
    for target, source in zip(graded, order):
        result[target] = rewards[graded[source]]
    return result


def token_weights(masks: Sequence[np.ndarray], aggregation: Literal["token", "sequence"]) -> list[np.ndarray]:
    """float32 weights that sum to 1 over a batch's loss tokens, 0 elsewhere; all 0 for an empty batch.

    `token`: 1 / N for each of the N loss tokens. `sequence`: 1 / (S · n_i) for the n_i loss tokens of each of
    the S sequences that have any. Known before the first backward pass, so that micro-batches and ranks add up.
    """
    counts = np.array([mask.sum() for mask in masks])
    total, sequences = counts.sum(), (counts > 0).sum()
    share = (
        [1.0 / total if aggregation == "token" else 1.0 / (sequences * count) if count else 0.0 for count in counts] if total else counts
    )
    return [np.where(mask, value, 0.0).astype(np.float32) for mask, value in zip(masks, share)]
