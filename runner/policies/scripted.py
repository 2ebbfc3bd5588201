"""A policy that says what it is told: for tests of everything around a model."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from runner.policies.base import Generation, SamplingParams, Seed, Weights


class ScriptedPolicy:
    """Answers with `script(prompt, seed)`: token ids, ending in one of `stop_tokens` to count as stopped.

    Every token has the same log-prob, as if drawn from `vocabulary` equally likely ones.
    """

    def __init__(self, script: Callable[[Sequence[int], Seed], Sequence[int]], *, stop_tokens: Sequence[int] = (), vocabulary: int = 2):
        self.script = script
        self.stop_tokens = set(stop_tokens)
        self.logprob = -float(np.log(vocabulary))
        self.version = 0

    def generate(self, prompts: Sequence[Sequence[int]], sampling: SamplingParams, seeds: Sequence[Seed]) -> list[Generation]:
        return [self._respond(prompt, sampling, seed) for prompt, seed in zip(prompts, seeds, strict=True)]

    def _respond(self, prompt: Sequence[int], sampling: SamplingParams, seed: Seed) -> Generation:
        tokens = np.array(self.script(prompt, seed), np.int32)[: sampling.max_new_tokens]
        stopped = len(tokens) > 0 and int(tokens[-1]) in self.stop_tokens
        return Generation(tokens, np.full(len(tokens), self.logprob, np.float32), "stop" if stopped else "length", self.version)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[np.ndarray]:
        return [np.array([np.nan] + [self.logprob] * (len(tokens) - 1), np.float32) for tokens in sequences]

    def choice_logprobs(self, prompts: Sequence[Sequence[int]], candidates: Sequence[Sequence[Sequence[int]]]) -> list[np.ndarray]:
        return [np.array([self.logprob * len(tokens) for tokens in group], np.float32) for group in candidates]

    def load_weights(self, weights: Weights) -> None:
        self.version = weights.version

    def load_tensors(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        self.version = version

    def health(self) -> dict:
        return {"policy_version": self.version, "device": "none", "dtype": "none", "parameters": 0, "threads": 0}
