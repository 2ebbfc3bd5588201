"""A policy: tokens in, tokens and exact log-probs out, weights replaced in place."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, Protocol

import numpy as np

Seed = tuple[int, ...]


class Purpose(IntEnum):
    """Keeps the token randomness of training and evaluation apart."""

    TRAIN = 0
    EVAL = 1


@dataclass(frozen=True)
class SamplingParams:
    """How to sample. `temperature` 0 is greedy; `top_p` < 1 keeps the nucleus and renormalises."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 16

    def __post_init__(self):
        if self.temperature < 0:
            raise ValueError(f"temperature: {self.temperature} is negative; use 0 for greedy")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p: {self.top_p} lies outside (0, 1]; use 1 to keep every token")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: {self.max_new_tokens} generates nothing; use at least 1")


@dataclass(frozen=True)
class Generation:
    """One response. token_ids int32[n], with the end-of-sequence token when it stopped; logprobs float32[n] in
    nats under the processed (tempered, truncated) distribution; greedy tokens carry the untempered log-prob."""

    token_ids: np.ndarray
    logprobs: np.ndarray
    finish_reason: Literal["stop", "length"]
    policy_version: int


@dataclass(frozen=True)
class Weights:
    """Named tensors as numpy arrays (bfloat16 travels as uint16), complete or a subset, of one policy version."""

    version: int
    tensors: dict[str, np.ndarray] = field(repr=False)
    dtypes: dict[str, str] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(array.nbytes for array in self.tensors.values())


class Policy(Protocol):
    """What every engine offers."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: SamplingParams, seeds: Sequence[Seed]) -> list[Generation]:
        """Sample one response per prompt; the randomness of a row depends on its seed alone."""

    def score(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[np.ndarray]:
        """float32[T] per sequence: log-prob of each token given those before it; the first is NaN."""

    def choice_logprobs(self, prompts: Sequence[Sequence[int]], candidates: Sequence[Sequence[Sequence[int]]]) -> list[np.ndarray]:
        """float32[n] per prompt: summed log-prob of each of its n candidate continuations."""

    def load_weights(self, weights: Weights) -> None:
        """Replace tensors by name and take over the version."""

    def load_tensors(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        """The same with torch's tensors of this process, on any device, taken one after the other."""

    def health(self) -> dict:
        """Version, device, precision, size."""


def score_choices(
    score: Callable[[Sequence[Sequence[int]]], Sequence[np.ndarray]],
    prompts: Sequence[Sequence[int]],
    candidates: Sequence[Sequence[Sequence[int]]],
) -> list[np.ndarray]:
    """`choice_logprobs` of an engine that scores whole sequences only."""
    if not all(len(choice) for group in candidates for choice in group):
        raise ValueError("candidates: an empty continuation has no log-prob; pass at least one token")
    rows = [[*prompt, *choice] for prompt, group in zip(prompts, candidates, strict=True) for choice in group]
    scores = iter(score(rows))
    return [
        np.array([next(scores)[len(prompt) :].sum() for _ in group], np.float32) for prompt, group in zip(prompts, candidates, strict=True)
    ]


def token_seed(run_seed: int, step: int, group: int, index: int, turn: int = 0, purpose: Purpose = Purpose.TRAIN) -> Seed:
    """The coordinates a response's randomness is a function of: nothing about batches, workers or arrival."""
    return (run_seed, int(purpose), step, group, index, turn)


def uniforms(seed: Seed, count: int) -> np.ndarray:
    """float64[count] in [0, 1): draw t belongs to position t, whatever `count` is (Philox counter mode)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(list(seed)))).random(count)
