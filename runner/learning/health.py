"""What a step tells about itself, under the metrics dictionary's names. A value that is not defined is absent."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from runner.contract.termination import Termination
from runner.rollouts.types import Sample

MAX_LOG_RATIO = 20.0
WEIGHT_CAP = 2.0
ZERO_VARIANCE = 1e-6

Metrics = dict[str, float]


def spread(prefix: str, values: np.ndarray, *names: str) -> Metrics:
    """The named reductions of `values`, each under its own name; nothing of no values."""
    reductions = {"mean": np.mean, "max": np.max, "min": np.min, "std": np.std, "p90": lambda x: np.percentile(x, 90)}
    return {f"{prefix}{name}": float(reductions[name](values)) for name in names} if len(values) else {}


def rollout_metrics(samples: Sequence[Sample], max_new_tokens: int) -> Metrics:
    """Over a batch's episodes: rewards, lengths, terminations. Means are over graded episodes where they are of rewards."""
    if not samples:
        return {}
    rewards = np.array([sample.reward for sample in samples if sample.reward is not None], np.float64)
    lengths = np.array([sample.response_length for sample in samples])
    prompts = np.array([sample.prompt_length for sample in samples])
    return {
        **spread("critic/score/", rewards, "mean", "max", "min"),
        "critic/score/n": float(len(rewards)),
        "reward/missing_fraction": 1.0 - len(rewards) / len(samples),
        **spread("response_length/", lengths, "mean", "p90", "max", "min"),
        "response_length/clip_ratio": float((lengths >= max_new_tokens * np.array([max(1, sample.turns) for sample in samples])).mean()),
        **spread("prompt_length/", prompts, "mean", "max", "min"),
        **spread("num_turns/", np.array([sample.turns for sample in samples]), "mean", "max", "min"),
        **spread("response_length_non_aborted/", lengths[lengths > 0], "mean", "max", "min"),
        "response/aborted_ratio": float((lengths == 0).mean()),
        "perf/total_num_tokens": float(sum(sample.total_length for sample in samples)),
        **_terminations(samples),
        **_parsed(samples),
        **group_metrics(samples),
    }


def _terminations(samples: Sequence[Sample]) -> Metrics:
    metrics = {}
    for reason in Termination:
        ended = [sample for sample in samples if sample.termination == reason]
        graded = [sample.reward for sample in ended if sample.reward is not None]
        metrics[f"termination/{reason}/fraction"] = len(ended) / len(samples)
        if graded:
            metrics[f"termination/{reason}/score_mean"] = float(np.mean(graded))
    failures = (Termination.VERIFIER_ERROR, Termination.VERIFIER_TIMEOUT)
    metrics["verifier_error/fraction"] = sum(metrics[f"termination/{reason}/fraction"] for reason in failures)
    return metrics


def _parsed(samples: Sequence[Sample]) -> Metrics:
    parsed = [sample.parsed for sample in samples if sample.reward is not None and sample.parsed is not None]
    return {"episode/parsed_fraction": float(np.mean(parsed))} if parsed else {}


def group_metrics(samples: Iterable[Sample]) -> Metrics:
    """How many groups there are, and how many of those with more than one graded member carry no signal."""
    groups = defaultdict(list)
    for sample in samples:
        groups[sample.group].append(sample.reward)
    graded = [[reward for reward in rewards if reward is not None] for rewards in groups.values()]
    comparable = [np.std(rewards) < ZERO_VARIANCE for rewards in graded if len(rewards) > 1]
    fraction = {"group/zero_variance_fraction": float(np.mean(comparable))} if comparable else {}
    return {"group/count": float(len(groups)), **fraction}


def mismatch_metrics(learner: np.ndarray, sampler: np.ndarray) -> Metrics:
    """Learner against sampler over loss tokens; both are log-probs [N] of the same tokens.

    d = learner − sampler; KL is −mean(d), k3 is mean(exp(d) − d − 1), importance weights are min(exp(d), 2), and
    the effective sample size is 1 / mean((v / mean v)²) with v = clamp(exp(d), 1/2, 2).
    """
    if not len(learner):
        return {}
    d = learner.astype(np.float64) - sampler.astype(np.float64)
    ratio = np.exp(np.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO))
    bounded = np.clip(ratio, 1 / WEIGHT_CAP, WEIGHT_CAP)
    gap = np.abs(np.exp(sampler.astype(np.float64)) - np.exp(learner.astype(np.float64)))
    return {
        "rollout_corr/kl": float(-d.mean()),
        "rollout_corr/k3_kl": float((ratio - np.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO) - 1).mean()),
        **spread("rollout_corr/rollout_is_", np.minimum(ratio, WEIGHT_CAP), "mean", "max", "min", "std"),
        "rollout_corr/rollout_is_eff_sample_size": float(1 / np.mean((bounded / bounded.mean()) ** 2)),
        "rollout_corr/clamped": float((np.abs(d) > MAX_LOG_RATIO).sum()),
        "training/rollout_probs_diff_mean": float(gap.mean()),
        "training/rollout_probs_diff_max": float(gap.max()),
    }


def perplexity_metrics(learner: Sequence[np.ndarray], sampler: Sequence[np.ndarray]) -> Metrics:
    """Learner against sampler sequence by sequence, as verl defines it; one array of log-probs [n_i] a sequence.

    With m the mean log-prob of a sequence: perplexities are mean exp(−m); log_ppl_diff is mean(m_sampler − m_learner), its absolute and
    its exp likewise. chi² is E[ρ²] − 1 with ρ = exp(learner − sampler) over tokens, and over sequences with the sum of their tokens.
    """
    pairs = [(ours.astype(np.float64), theirs.astype(np.float64)) for ours, theirs in zip(learner, sampler, strict=True) if len(ours)]
    if not pairs:
        return {}
    trained, sampled = (np.array([pair[side].mean() for pair in pairs]) for side in (0, 1))
    gap, tokens = sampled - trained, np.concatenate([ours - theirs for ours, theirs in pairs])
    sequences = np.array([(ours - theirs).sum() for ours, theirs in pairs])
    return {
        "rollout_corr/training_ppl": float(np.exp(-trained).mean()),
        "rollout_corr/rollout_ppl": float(np.exp(-sampled).mean()),
        "rollout_corr/log_ppl_diff": float(gap.mean()),
        "rollout_corr/log_ppl_abs_diff": float(np.abs(gap).mean()),
        "rollout_corr/ppl_ratio": float(np.exp(gap).mean()),
        "rollout_corr/chi2_token": _chi_squared(tokens),
        "rollout_corr/chi2_seq": _chi_squared(sequences),
    }


def _chi_squared(log_ratio: np.ndarray) -> float:
    return float(np.square(np.exp(np.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))).mean() - 1.0)


def weighted_mean(values: np.ndarray, weights: np.ndarray) -> float:
    """Σ weight · value: the mean a loss was aggregated with, weights summing to 1."""
    return float((values.astype(np.float64) * weights).sum())
