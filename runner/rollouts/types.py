"""What sampling hands to learning, and what learning hands back: arrays with one value per token."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from runner.contract.episode import Author
from runner.contract.termination import Termination
from runner.environments.base import Situation


@dataclass(frozen=True)
class TurnRow:
    """One turn of an episode as step-level credit sees it.

    Tokens [start, stop) of the sample are the student's reply, message `index` of the transcript; `situation` is the state it acted in, None where the environment tells
    of none. `reward` is the environment's for this step, before any penalty, None where it rewards whole episodes only; `valid` is
    False for an action that meant nothing.
    """

    turn: int
    start: int
    stop: int
    situation: Situation | None = None
    reward: float | None = None
    valid: bool = True
    index: int = 0


@dataclass(frozen=True)
class Sample:
    """One finished episode as the learner sees it: a token sequence of length T.

    token_ids int32[T], author uint8[T] (`Author` codes), loss_mask bool[T] (tokens the loss may touch),
    logprobs float32[T] (sampler's log-prob of a sampled token in nats, NaN elsewhere). `group` and `index`
    order a step's samples; `policy_version` is the version the episode started from. Where the chat template does not
    accumulate, or each turn has a prompt of its own, several sequences stand end to end: `forks` are the offsets at which a further
    one begins. `rows` has an entry a turn whose step the environment took.
    """

    episode: str
    task: str
    group: int
    index: int
    token_ids: np.ndarray
    author: np.ndarray
    loss_mask: np.ndarray
    logprobs: np.ndarray
    reward: float | None
    termination: Termination
    policy_version: int
    temperature: float = 1.0
    parsed: bool | None = None
    turns: int = 1
    forks: tuple[int, ...] = ()
    rows: tuple[TurnRow, ...] = ()

    @property
    def total_length(self) -> int:
        """Tokens of all its sequences."""
        return len(self.token_ids)

    @property
    def spans(self) -> list[slice]:
        """Where each of its sequences lies; one, unless it forked."""
        return [slice(start, stop) for start, stop in pairwise([0, *self.forks, self.total_length])]

    @property
    def longest_sequence(self) -> int:
        """Tokens of its longest sequence: what must fit the model's context."""
        return max(span.stop - span.start for span in self.spans)

    @property
    def response_length(self) -> int:
        """Tokens the student wrote, over all turns."""
        return int((self.author == Author.STUDENT).sum())

    @property
    def prompt_length(self) -> int:
        """Tokens before the first student token."""
        written = np.flatnonzero(self.author == Author.STUDENT)
        return int(written[0]) if len(written) else self.total_length

    def sampled_columns(self) -> dict[str, np.ndarray]:
        """Columns of the *sampled* token trace."""
        return {"token_id": self.token_ids, "logprob": self.logprobs, "author": self.author, "mask": self.loss_mask.astype(np.uint8)}


@dataclass
class SampleBuilder:
    """Grows one token sequence turn by turn; what was written is never tokenised again.

    `fork` begins another sequence, which shares nothing with what was written; `context` is the sequence under way.
    """

    token_ids: list[int] = field(default_factory=list)
    _author: list[int] = field(default_factory=list)
    _mask: list[bool] = field(default_factory=list)
    _logprobs: list[float] = field(default_factory=list)
    _forks: list[int] = field(default_factory=list)

    @property
    def context(self) -> list[int]:
        """What the policy sees: the tokens since the last fork."""
        return self.token_ids[self._forks[-1] :] if self._forks else self.token_ids

    def fork(self) -> None:
        """Begin another sequence here."""
        if self.token_ids and self._forks[-1:] != [len(self.token_ids)]:
            self._forks.append(len(self.token_ids))

    def rollback(self, length: int) -> None:
        """Take back what was written after the first `length` tokens: it never reached the policy."""
        for values in (self.token_ids, self._author, self._mask, self._logprobs):
            del values[length:]
        self._forks = [fork for fork in self._forks if fork <= length]

    def append(
        self,
        token_ids: Sequence[int] | np.ndarray,
        author: Author | Sequence[int],
        logprobs: Sequence[float] | np.ndarray | None = None,
        train: bool | None = None,
    ) -> None:
        """Add a span by one author, or with an author for each token. `train` defaults to whether the student wrote it."""
        if logprobs is not None and len(logprobs) != len(token_ids):
            raise ValueError(f"logprobs: {len(logprobs)} values for {len(token_ids)} tokens; pass one per token")
        count = len(token_ids)
        self.token_ids.extend(_listed(token_ids))
        self._author.extend([int(author)] * count if isinstance(author, Author) else author)
        self._mask.extend([author is Author.STUDENT if train is None else train] * count)
        self._logprobs.extend([float("nan")] * count if logprobs is None else _listed(logprobs))

    def build(self, **fields) -> Sample:
        """The finished sample; `fields` are those of `Sample` that are not per token."""
        return Sample(
            token_ids=np.array(self.token_ids, np.int32),
            author=np.array(self._author, np.uint8),
            loss_mask=np.array(self._mask, np.bool_),
            logprobs=np.array(self._logprobs, np.float32),
            forks=tuple(fork for fork in self._forks if fork < len(self.token_ids)),
            **fields,
        )


def _listed(values: Sequence | np.ndarray) -> Sequence:
    return values.tolist() if isinstance(values, np.ndarray) else values


@dataclass(frozen=True)
class TrainedSample:
    """What learning made of a sample; arrays have the sample's length, NaN where the learner did not look.

    `advantage` is the episode's (None: not in a baseline). `mask` marks tokens that entered the loss;
    `mask_reason` says why none did. `filters` names every filter that matched, enforced or not. `turns` is the credit of each turn
    where the method gives one: plain values by name.
    """

    episode: str
    advantage: float | None
    filters: list[str]
    mask_reason: str | None
    advantages: np.ndarray
    mask: np.ndarray
    learner_logprob: np.ndarray
    entropy: np.ndarray
    turns: list[dict[str, Any]] = field(default_factory=list)

    @property
    def trained_tokens(self) -> int:
        """Tokens that entered the loss."""
        return int(self.mask.sum())

    @property
    def masked(self) -> bool:
        """Whether no token entered the loss."""
        return self.trained_tokens == 0

    def trained_columns(self) -> dict[str, np.ndarray]:
        """Columns of the *trained* token trace."""
        return {
            "learner_logprob": self.learner_logprob,
            "teacher_logprob": np.full(len(self.mask), np.nan, np.float32),
            "advantage": self.advantages,
            "entropy": self.entropy,
            "mask": self.mask.astype(np.uint8),
        }
