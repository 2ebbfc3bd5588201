"""Tokens of an episode: what was sampled and what was made of it, joined by offset, read by range."""

from dataclasses import dataclass

import msgpack
import numpy as np
import zstandard

from controlplane import storage
from controlplane.episodes.models import Episode
from controlplane.telemetry import packs
from runner.contract.episode import SAMPLED_COLUMNS, TRAINED_COLUMNS, InvalidTrace, Trace

MAX_TOKENS = 50_000
MAX_TEXTS = 256 << 20
TRAINED_NAMES = {"mask": "trained_mask"}
"""The learner's mask is another than the sampler's: it says which tokens entered the loss."""


class NoTrace(LookupError):
    """The episode has no tokens to show; the message says why."""


@dataclass(frozen=True)
class Tokens:
    """Columns of tokens [first, stop) of `total`; a column that was not recorded is None. NaN is a token without a value."""

    total: int
    first: int
    stop: int
    columns: dict[str, np.ndarray | list[str] | None]


def read_tokens(episode: Episode, first: int = 0, stop: int | None = None) -> Tokens:
    """Columns of tokens [first, stop), at most MAX_TOKENS of them.

    token_id, logprob, author and mask as sampled; learner_logprob, teacher_logprob, advantage, entropy and trained_mask once trained; text,
    one piece a token. Raises NoTrace.
    """
    sampled = _open(episode, episode.sampled)
    first = min(max(first, 0), sampled.tokens)
    stop = min(sampled.tokens if stop is None else max(stop, first), first + MAX_TOKENS)
    found = _read(sampled, first, stop)
    columns = {name: found.get(name) for name in SAMPLED_COLUMNS}
    columns |= _trained(episode, sampled.tokens, first, stop)
    columns["text"] = _texts(episode, sampled.tokens, first, stop)
    return Tokens(sampled.tokens, first, stop, columns)


def _open(episode: Episode, name: str) -> Trace:
    if not name:
        raise NoTrace("no tokens were recorded for this episode")
    try:
        return Trace.open(packs.open_blob(episode.run_id, name))
    except (storage.BlobMissing, InvalidTrace) as error:
        raise NoTrace(f"its tokens cannot be read: {error}") from None


def _read(trace: Trace, first: int, stop: int) -> dict[str, np.ndarray]:
    try:
        return trace.read(first, stop)
    except InvalidTrace as error:
        raise NoTrace(f"its tokens cannot be read: {error}") from None


def _trained(episode: Episode, total: int, first: int, stop: int) -> dict[str, np.ndarray | list[str] | None]:
    names = {name: TRAINED_NAMES.get(name, name) for name in TRAINED_COLUMNS}
    if not episode.trained:
        return dict.fromkeys(names.values())
    trace = _open(episode, episode.trained)
    if trace.tokens != total:
        raise NoTrace(f"its traces do not fit: {total} tokens were sampled, {trace.tokens} trained")
    found = _read(trace, first, stop)
    return {shown: found.get(name) for name, shown in names.items()}


def _texts(episode: Episode, total: int, first: int, stop: int) -> list[str] | None:
    """The pieces of text; None when there are none, or when the blob is not one piece a token."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(packs.open_blob(episode.run_id, episode.token_texts)) as stream:
            pieces = msgpack.unpackb(stream.read(MAX_TEXTS))
    except (storage.BlobMissing, zstandard.ZstdError, msgpack.exceptions.UnpackException, ValueError):
        return None
    whole = isinstance(pieces, list) and len(pieces) == total and all(isinstance(piece, str) for piece in pieces)
    return pieces[first:stop] if whole else None
