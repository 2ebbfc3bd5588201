"""GRPO: groups of episodes of one task; reward minus group mean on every token the student wrote.

1. Episodes that have no data, or whose environment failed, take no part.
2. Each group's advantages come from its graded rewards. An episode that is graded but masked (cut off, say)
   keeps its reward in the group's mean.
3. Filters look at the finished episodes; an enforced match empties the mask.
4. Token or sequence weights are fixed over what is left, then the clipped or the masked loss is applied.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from runner.contract.run_config import ClippedLoss, GrpoStage, RolloutStage
from runner.contract.termination import HANDLING, Termination
from runner.learning.advantages import group_advantages, shuffled_rewards, token_weights
from runner.learning.filters import enforced_filter, matched_filters
from runner.learning.health import mismatch_metrics, perplexity_metrics, weighted_mean
from runner.learning.losses import clipped_loss, k3_penalty, masked_loss
from runner.methods.base import SequenceResult, StepPlan, TrainingSequence
from runner.rollouts.types import Sample, TrainedSample


@dataclass
class Credited:
    """A sample with its credit: the episode's advantage, the filters that matched, the tokens that are trained.

    `advantages` float32[T] is what each student token is trained with, NaN elsewhere; `turns` is the credit of each turn, for methods
    that give one.
    """

    sample: Sample
    advantage: float | None
    filters: list[str]
    reason: str | None
    mask: np.ndarray
    advantages: np.ndarray
    turns: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class GrpoPlan(StepPlan):
    """`trained` indexes `credited` by the plan's sequences; an episode that forked may have several."""

    step: int = 0
    credited: list[Credited] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)


def credit(samples: Sequence[Sample], stage: GrpoStage, vocabulary: int, seed: int, step: int) -> list[Credited]:
    """Advantage, filters and final mask of every sample of a batch, in order."""
    taking_part = [index for index, sample in enumerate(samples) if HANDLING[sample.termination].train != "dropped"]
    rewards = [samples[index].reward for index in taking_part]
    if stage.reward_control == "shuffled":
        rewards = shuffled_rewards(rewards, seed, step)
    groups: dict[int, list[int]] = defaultdict(list)
    for position, index in enumerate(taking_part):
        groups[samples[index].group].append(position)
    advantages: dict[int, float | None] = {}
    for members in groups.values():
        values = group_advantages([rewards[position] for position in members], stage.advantage, stage.ungraded_in_baseline)
        advantages.update({taking_part[position]: value for position, value in zip(members, values)})
    return [_credit_one(sample, advantages.get(index), stage, vocabulary) for index, sample in enumerate(samples)]


def _credit_one(sample: Sample, advantage: float | None, stage: GrpoStage, vocabulary: int) -> Credited:
    filters = matched_filters(sample, advantage, vocabulary, stage.filters)
    reason = mask_reason(sample, advantage, stage) or enforced_filter(filters, stage.filters)
    per_token = np.where(sample.loss_mask, np.nan if advantage is None else advantage, np.nan).astype(np.float32)
    return Credited(sample, advantage, filters, reason, sample.loss_mask & (reason is None), per_token)


def mask_reason(sample: Sample, advantage: float | None, stage: RolloutStage) -> str | None:
    """Why an episode that ended so, or has no advantage, is kept out of the loss; None when it is not."""
    rule = HANDLING[sample.termination].train
    kept = stage.train_timed_out if sample.termination is Termination.AGENT_TIMEOUT else stage.train_truncated
    if rule in ("dropped", "masked") or (rule == "by_option" and not kept):
        return str(sample.termination)
    return "ungraded" if advantage is None else None


class Grpo:
    """The method over one stage. `vocabulary` is the model's size of the output layer."""

    def __init__(self, stage: RolloutStage, *, seed: int, vocabulary: int):
        self.stage = stage
        self.seed = seed
        self.vocabulary = vocabulary
        self.needs_reference = stage.reference_kl.type == "k3"

    def plan(self, step: int, samples: Sequence[Sample]) -> GrpoPlan:
        return self.assemble(step, credit(samples, self.stage, self.vocabulary, self.seed, step))

    def assemble(self, step: int, credited: list[Credited]) -> GrpoPlan:
        """The batch's sequences, with the weights that its loss tokens have together."""
        weights = token_weights([item.mask for item in credited], self.stage.aggregation)
        pairs = [(index, item) for index, (one, weight) in enumerate(zip(credited, weights)) for item in _sequences(one, weight)]
        return GrpoPlan([item for _, item in pairs], step, credited, [index for index, _ in pairs])

    def loss(self, logprob: Tensor, columns: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        surrogate = clipped_loss if isinstance(self.stage.loss, ClippedLoss) else masked_loss
        policy, values = surrogate(logprob, columns["sampler_logprob"], columns["advantage"], self.stage.loss)
        values["policy"] = policy
        if not self.needs_reference:
            return policy, values
        penalty = k3_penalty(logprob, columns["reference_logprob"])
        return policy + self.stage.reference_kl.beta * penalty, {**values, "reference_kl": penalty}

    def report(self, plan: GrpoPlan, results: Sequence[SequenceResult]) -> tuple[dict[str, float], list[TrainedSample]]:
        by_sample: dict[int, list[SequenceResult]] = defaultdict(list)
        for index, result in zip(plan.trained, results, strict=True):
            by_sample[index].append(result)
        outcomes = [_outcome(item, by_sample[index]) for index, item in enumerate(plan.credited)]
        return {**self._batch_metrics(plan), **_token_metrics(plan.sequences, results)}, outcomes

    def _batch_metrics(self, plan: GrpoPlan) -> dict[str, float]:
        total = len(plan.credited)
        metrics = {"termination/trained_tokens": float(sum(item.mask.sum() for item in plan.credited))}
        if total:
            metrics["termination/masked_sample_fraction"] = 1.0 - len(set(plan.trained)) / total
            for name in ("gibberish", "repetition", "zero_advantage"):
                if getattr(self.stage.filters, name) != "off":
                    metrics[f"filter/{name}/fraction"] = sum(name in item.filters for item in plan.credited) / total
        return metrics | _trained_metrics(plan)


def _trained_metrics(plan: GrpoPlan) -> dict[str, float]:
    """Over the episodes that entered the loss; nothing when there is none."""
    trained = [plan.credited[index] for index in dict.fromkeys(plan.trained)]
    if not trained:
        return {}
    behind = np.array([plan.step - 1 - item.sample.policy_version for item in trained])
    rewards = [item.sample.reward for item in trained if item.sample.reward is not None]
    return {
        "staleness/mean": float(behind.mean()),
        "staleness/max": float(behind.max()),
        "group/effective": float(len(trained)),
        "group/trainable": float(sum(bool(item.advantage) for item in trained)),
        **({"reward/trained/mean": float(np.mean(rewards))} if rewards else {}),
    }


def _sequences(item: Credited, weight: np.ndarray) -> list[TrainingSequence]:
    """The episode's sequences that have a loss token: one, unless it forked. All share its advantage."""
    sample = item.sample
    if np.isnan(sample.logprobs[item.mask]).any():
        raise ValueError(
            f"episode {sample.episode}: a loss token has no sampling log-prob; only tokens the policy sampled can be trained by grpo"
        )
    advantage = np.where(item.mask, item.advantages, 0.0).astype(np.float32)
    columns = {"sampler_logprob": sample.logprobs, "advantage": advantage}
    return [
        TrainingSequence(
            sample.token_ids[span],
            item.mask[span],
            weight[span],
            {name: column[span] for name, column in columns.items()},
            sample.temperature,
        )
        for span in sample.spans
        if item.mask[span].any()
    ]


def _outcome(item: Credited, results: Sequence[SequenceResult]) -> TrainedSample:
    def spread(values: Sequence[np.ndarray]) -> np.ndarray:
        column = np.full(len(item.mask), np.nan, np.float32)
        if values:
            column[item.mask] = np.concatenate(values)
        return column

    logprob, entropy = spread([result.logprob for result in results]), spread([result.entropy for result in results])
    return TrainedSample(
        item.sample.episode, item.advantage, item.filters, item.reason, item.advantages, item.mask, logprob, entropy, item.turns
    )


def _token_metrics(sequences: Sequence[TrainingSequence], results: Sequence[SequenceResult]) -> dict[str, float]:
    if not results:
        return {}
    weight = np.concatenate([item.weight[item.mask] for item in sequences])
    advantage = np.concatenate([item.columns["advantage"][item.mask] for item in sequences])
    sampler = np.concatenate([item.columns["sampler_logprob"][item.mask] for item in sequences])
    learner = np.concatenate([result.logprob for result in results])
    values = {name: np.concatenate([result.values[name] for result in results]) for name in results[0].values}
    metrics = {
        "actor/entropy": weighted_mean(np.concatenate([result.entropy for result in results]), weight),
        "actor/pg_loss": weighted_mean(values["policy"], weight),
        "actor/pg_clipfrac": float(values["clipped"].mean()),
        "critic/advantages/mean": float(advantage.mean()),
        "critic/advantages/max": float(advantage.max()),
        "critic/advantages/min": float(advantage.min()),
        **mismatch_metrics(learner, sampler),
        **perplexity_metrics([result.logprob for result in results], [item.columns["sampler_logprob"][item.mask] for item in sequences]),
    }
    if "dual_clipped" in values:
        metrics["actor/pg_clipfrac_lower"] = float(values["dual_clipped"].mean())
    if "reference_kl" in values:
        metrics["actor/ref_kl"] = weighted_mean(values["reference_kl"], weight)
    return metrics
