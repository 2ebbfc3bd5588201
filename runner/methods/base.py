"""Method = workflow × credit × loss.

The workflow (runner.rollouts.workflow) decides which episodes a step consists of; a Method turns them into
token sequences with weights and per-token columns (credit) and says what a token costs (loss). The trainer knows
nothing of methods: it packs sequences, computes log-probs, sums weight × loss and steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from torch import Tensor

from runner.rollouts.types import Sample, TrainedSample


@dataclass(frozen=True)
class TrainingSequence:
    """One sequence of length T to train on.

    mask bool[T]: loss tokens, never the first; weight float32[T]: share of the batch's loss, 0 off the mask;
    columns: further float32[T] inputs of the method's loss, e.g. advantage.
    """

    token_ids: np.ndarray
    mask: np.ndarray
    weight: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    temperature: float = 1.0


@dataclass
class SequenceResult:
    """What the trainer found for a sequence; arrays follow its loss tokens in order."""

    logprob: np.ndarray
    entropy: np.ndarray
    values: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class StepPlan:
    """A step's work: the sequences that have a loss token. Methods subclass it to carry what they report on.

    `batches` are indices of sequences, one list an update of the weights; None makes one update of them all.
    """

    sequences: list[TrainingSequence]
    batches: list[list[int]] | None = field(default=None, kw_only=True)


class Method(Protocol):
    """One way to learn. Implementations: grpo, gigpo, sft."""

    needs_reference: bool
    """Whether columns get `reference_logprob`, from the stage's first weights."""

    def plan(self, step: int, samples: Sequence[Sample]) -> StepPlan:
        """Credit: which tokens are trained, with which weight and columns."""

    def loss(self, logprob: Tensor, columns: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss per token [N] and further values per token [N] to report on."""

    def report(self, plan: StepPlan, results: Sequence[SequenceResult]) -> tuple[dict[str, float], list[TrainedSample]]:
        """Metrics and per-sample outcome; `results` follow the plan's sequences. A value that is not defined is absent."""
