"""A model behind any OpenAI-compatible address as a policy: for evaluation and teachers, whose weights are the server's own.

Token ids go in and come out where the server gives them (vLLM does). Elsewhere the prompt is sent as text and the answer's text becomes
tokens here: what was said is the same, the tokens may be cut differently, and `health()["exact"]` is False.

A failure has a name and is tried again a bounded number of times where that may help. No answer is ever made up: what the server does not
say is a missing number (NaN), or RemoteFailed.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from runner.policies.base import Generation, SamplingParams, Seed, Weights, score_choices

CALL_SECONDS = 900.0
TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
REJECTED = frozenset({400, 422})


class RemoteFailed(RuntimeError):
    """policy_error: the endpoint gave nothing that can be used; the message names it and what it said."""


class _Rejected(RemoteFailed):
    """The endpoint does not take requests of this kind."""


class _TryAgain(RemoteFailed):
    """Another try may help, after `seconds` where the server named them."""

    def __init__(self, message: str, seconds: float | None = None):
        super().__init__(message)
        self.seconds = seconds


@dataclass(frozen=True)
class Patience:
    """`tries` in all; before the second one `first` seconds, then twice as long each time, never more than `longest`."""

    tries: int = 5
    first: float = 0.5
    longest: float = 8.0

    def before(self, again: int, asked: float | None) -> float:
        """Seconds before repetition `again` (from 1); `asked` is what the server wished for."""
        return min(self.longest, self.first * 2 ** (again - 1) if asked is None else asked)


class RemotePolicy:
    """See `Policy` for the methods. `url` ends in /v1; `tokenizer` is the model's own. `at_once` requests are under way at most."""

    def __init__(
        self,
        url: str,
        model: str,
        tokenizer,
        *,
        max_length: int,
        patience: Patience = Patience(),
        at_once: int = 64,
        seconds: float = CALL_SECONDS,
        key: str = "EMPTY",
    ):
        self.url, self.model, self.tokenizer, self.max_length = f"{url.rstrip('/')}/completions", model, tokenizer, max_length
        self.patience, self.at_once = patience, at_once
        self.exact: bool | None = None
        self._client = httpx.Client(timeout=seconds, headers={"Authorization": f"Bearer {key}"})

    def generate(self, prompts: Sequence[Sequence[int]], sampling: SamplingParams, seeds: Sequence[Seed]) -> list[Generation]:
        if len(prompts) != len(seeds):
            raise ValueError(f"seeds: {len(seeds)} for {len(prompts)} prompts; pass one per prompt")
        for prompt in prompts:
            if not 0 < len(prompt) < self.max_length:
                told = f"a prompt of {len(prompt)} tokens leaves no room in {self.max_length}; raise it or shorten the prompt"
                raise ValueError(f"model.max_length: {told}")
        return self._all(lambda prompt, seed: self._one(list(map(int, prompt)), sampling, seed), prompts, seeds)

    def _all(self, ask: Callable, *columns: Sequence) -> list:
        if not columns[0]:
            return []
        with ThreadPoolExecutor(min(len(columns[0]), self.at_once)) as pool:
            return list(pool.map(ask, *columns))

    def _one(self, prompt: list[int], sampling: SamplingParams, seed: Seed) -> Generation:
        body = {
            "max_tokens": min(sampling.max_new_tokens, self.max_length - len(prompt)),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": int(np.random.SeedSequence(list(seed)).generate_state(1)[0] >> 1),
        }
        if self.exact is not False:
            try:
                choice = self._choice({**body, "prompt": prompt, "logprobs": 0, "return_token_ids": True})
                # Some servers take token ids and answer in text all the same.
                self.exact = isinstance(choice.get("token_ids"), list)
                return self._of_tokens(choice) if self.exact else self._of_text(choice)
            except _Rejected:
                if self.exact:
                    raise
        text = self.tokenizer.decode(prompt, skip_special_tokens=False)
        generation = self._of_text(self._choice({**body, "prompt": text}))
        self.exact = False
        return generation

    def _of_tokens(self, choice: dict[str, Any]) -> Generation:
        tokens = choice["token_ids"]
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or [None] * len(tokens)
        if len(logprobs) != len(tokens):
            raise RemoteFailed(
                f"{self.url} answered {len(tokens)} tokens with {len(logprobs)} log-probs; nothing says which belong together"
            )
        return Generation(np.array(tokens, np.int32), np.array(logprobs, np.float32), self._reason(choice), 0)

    def _of_text(self, choice: dict[str, Any]) -> Generation:
        if not isinstance(choice.get("text"), str):
            raise RemoteFailed(f"{self.url} answered with neither tokens nor text")
        reason = self._reason(choice)
        tokens = self.tokenizer.encode(choice["text"], add_special_tokens=False) + [self.tokenizer.eos_token_id] * (reason == "stop")
        return Generation(np.array(tokens, np.int32), np.full(len(tokens), np.nan, np.float32), reason, 0)

    def _reason(self, choice: dict[str, Any]) -> str:
        reason = choice.get("finish_reason")
        if reason not in ("stop", "length"):
            raise RemoteFailed(f"{self.url} ended the answer with {reason!r}; only stop and length are whole answers")
        return reason

    def score(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[np.ndarray]:
        if temperature != 1:
            raise ValueError(f"temperature: an endpoint scores at 1 only, not at {temperature}")
        return self._all(self._score, sequences)

    def _score(self, tokens: Sequence[int]) -> np.ndarray:
        tokens = list(map(int, tokens))
        found = self._choice({"prompt": tokens, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}).get("prompt_logprobs")
        try:
            scores = [np.nan, *(float(place[str(token)]["logprob"]) for place, token in zip(found[1:], tokens[1:], strict=True))]
        except (TypeError, KeyError, ValueError) as error:
            raise RemoteFailed(f"{self.url} gives no log-prob for each token of a prompt, as vLLM does; it cannot score") from error
        return np.array(scores, np.float32)

    def choice_logprobs(self, prompts: Sequence[Sequence[int]], candidates: Sequence[Sequence[Sequence[int]]]) -> list[np.ndarray]:
        return score_choices(self.score, prompts, candidates)

    def load_weights(self, weights: Weights) -> None:
        raise RemoteFailed(f"{self.url} has weights of its own; version {weights.version} cannot be pushed there")

    def load_tensors(self, tensors: Iterable[tuple[str, Any]], version: int) -> None:
        raise RemoteFailed(f"{self.url} has weights of its own; version {version} cannot be pushed there")

    def health(self) -> dict:
        about = {"engine": self.url, "model": self.model, "exact": self.exact}
        return {"policy_version": 0, "device": "remote", "dtype": "unknown", "parameters": 0, "threads": 0, **about}

    # ------------------------------------------------------------ the wire
    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        """The one completion of `body`. Raises RemoteFailed after the last try."""
        for again in range(1, self.patience.tries + 1):
            try:
                return self._post({"model": self.model, **body})
            except _TryAgain as failed:
                if again == self.patience.tries:
                    raise RemoteFailed(f"{failed}; tried {again} times") from failed
                time.sleep(self.patience.before(again, failed.seconds))
        raise AssertionError("unreachable")

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self._client.post(self.url, json=body)
        except httpx.HTTPError as error:
            raise _TryAgain(f"{self.url} did not answer: {type(error).__name__}: {error}") from error
        if answer.status_code != 200:
            told = f"{self.url} answered {answer.status_code}: {answer.text[:2000]}"
            if answer.status_code in TRY_AGAIN:
                raise _TryAgain(told, _seconds(answer.headers.get("Retry-After")))
            raise (_Rejected if answer.status_code in REJECTED else RemoteFailed)(told)
        try:
            choice = answer.json()["choices"][0]
            choice.get("text")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise _TryAgain(f"{self.url} answered with something else than a completion: {answer.text[:200]!r}") from error
        return choice


def _seconds(header: str | None) -> float | None:
    """Of a Retry-After in seconds; a date is not read."""
    return float(header) if header and header.isdecimal() else None
