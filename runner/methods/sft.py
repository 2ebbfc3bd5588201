"""SFT: cross-entropy on the completions of the bank's demonstrations, replayed in seeded order."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from runner.contract.bank import Demonstration
from runner.contract.run_config import SftStage
from runner.learning.advantages import token_weights
from runner.learning.health import weighted_mean
from runner.learning.losses import cross_entropy
from runner.methods.base import SequenceResult, StepPlan, TrainingSequence
from runner.models.prompts import encode_demonstration
from runner.rollouts.types import Sample, TrainedSample
from runner.rollouts.workflow import ReplayWorkflow


class Sft:
    """The method over one stage. Demonstrations are tokenised once; a batch is a function of (seed, step).

    Raises ValueError when no demonstration is of the wanted kinds, or one exceeds `max_length` tokens.
    """

    needs_reference = False

    def __init__(self, stage: SftStage, demonstrations: Sequence[Demonstration], tokenizer, *, seed: int, first_step: int, max_length: int):
        chosen = [item for item in demonstrations if not stage.kinds or item.kind in stage.kinds]
        if not chosen:
            offered = sorted({item.kind for item in demonstrations})
            raise ValueError(f"stages.kinds: {stage.kinds} selects no demonstration; the bank's training split offers {offered or 'none'}")
        self._encoded = [encode_demonstration(tokenizer, item.prompt, item.completion, max_length, item.history) for item in chosen]
        self._workflow = ReplayWorkflow(len(chosen), stage.batch_size, seed, first_step)

    def plan(self, step: int, samples: Sequence[Sample] = ()) -> StepPlan:
        chosen = [self._encoded[index] for index in self._workflow.batch(step)]
        weights = token_weights([mask for _, mask in chosen], "token")
        return StepPlan([TrainingSequence(tokens, mask, weight) for (tokens, mask), weight in zip(chosen, weights)])

    def loss(self, logprob: Tensor, columns: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return cross_entropy(logprob), {}

    def report(self, plan: StepPlan, results: Sequence[SequenceResult]) -> tuple[dict[str, float], list[TrainedSample]]:
        weight = np.concatenate([item.weight[item.mask] for item in plan.sequences])
        metrics = {
            "sft/loss": weighted_mean(np.concatenate([result.values["loss"] for result in results]), weight),
            "sft/tokens": float(len(weight)),
            "actor/entropy": weighted_mean(np.concatenate([result.entropy for result in results]), weight),
        }
        return metrics, []
