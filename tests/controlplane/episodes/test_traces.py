"""Token columns join what was sampled with what was learned, by range, and say why when they cannot."""

import time

import msgpack
import numpy as np
import pytest
import zstandard

from controlplane import storage
from controlplane.columns import dump
from controlplane.episodes.models import Episode
from controlplane.episodes.traces import MAX_TOKENS, NoTrace, read_tokens
from runner.contract.episode import write_trace


@pytest.fixture(autouse=True)
def store(settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path


def sampled(n):
    columns = {"token_id": np.arange(n), "logprob": -np.arange(n) / 100, "author": np.full(n, 2), "mask": np.arange(n) % 2}
    return storage.put(write_trace(columns))


def trained(n):
    nothing = np.full(n, np.nan)
    columns = {
        "learner_logprob": -np.arange(n) / 101,
        "teacher_logprob": nothing,
        "advantage": np.ones(n),
        "entropy": np.ones(n),
        "mask": np.ones(n),
    }
    return storage.put(write_trace(columns))


def texts(n):
    return storage.put(zstandard.ZstdCompressor().compress(msgpack.packb([f"piece {index}" for index in range(n)])))


def whole(n):
    return Episode(sampled=sampled(n), trained=trained(n), token_texts=texts(n))


def test_columns_are_joined_by_offset():
    tokens = read_tokens(whole(10), 2, 5)
    assert (tokens.total, tokens.first, tokens.stop) == (10, 2, 5)
    assert tokens.columns["token_id"].tolist() == [2, 3, 4]
    assert tokens.columns["logprob"].tolist() == pytest.approx([-0.02, -0.03, -0.04])
    assert tokens.columns["learner_logprob"].tolist() == pytest.approx([-2 / 101, -3 / 101, -4 / 101])
    assert tokens.columns["text"] == ["piece 2", "piece 3", "piece 4"]
    assert (tokens.columns["mask"].tolist(), tokens.columns["trained_mask"].tolist()) == ([0, 1, 0], [1, 1, 1])


def test_a_range_over_a_frame_border():
    tokens = read_tokens(whole(9000), 4090, 4100)
    assert tokens.columns["token_id"].tolist() == list(range(4090, 4100))


def test_an_untrained_episode_has_no_trained_columns():
    tokens = read_tokens(Episode(sampled=sampled(3)))
    assert tokens.columns["advantage"] is None and tokens.columns["text"] is None
    assert tokens.columns["token_id"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("first", "stop", "expected"), [(-5, 2, [0, 1]), (2, None, [2]), (5, 9, []), (2, 1, []), (0, 100, [0, 1, 2])])
def test_a_range_is_clipped_to_the_tokens(first, stop, expected):
    assert read_tokens(Episode(sampled=sampled(3)), first, stop).columns["token_id"].tolist() == expected


def test_values_that_are_not_finite_are_null_in_the_answer():
    columns = read_tokens(whole(2)).columns
    assert dump(columns["teacher_logprob"]) == b"[null,null]"
    assert dump(columns["logprob"]) == b"[0.0,-0.01]"


def test_no_more_than_the_limit_is_sent():
    assert read_tokens(Episode(sampled=sampled(MAX_TOKENS + 5))).stop == MAX_TOKENS


@pytest.mark.parametrize(
    ("episode", "reason"),
    [
        (lambda: Episode(), "no tokens were recorded"),
        (lambda: Episode(sampled="ab" * 32), "not in the store"),
        (lambda: Episode(sampled=storage.put(b"not a trace")), "cannot be read"),
        (lambda: Episode(sampled=sampled(3), trained=trained(4)), "do not fit"),
        (
            lambda: Episode(sampled=storage.put(write_trace({"token_id": np.arange(3)}).replace(b"\x28\xb5\x2f\xfd", b"\x00" * 4))),
            "damaged",
        ),
    ],
)
@pytest.mark.django_db
def test_it_says_why_there_are_none(episode, reason):
    with pytest.raises(NoTrace, match=reason):
        read_tokens(episode())


@pytest.mark.parametrize(
    "content", [b"junk", zstandard.ZstdCompressor().compress(b"\xc1"), zstandard.ZstdCompressor().compress(msgpack.packb(["a"]))]
)
def test_texts_that_do_not_fit_are_left_out(content):
    tokens = read_tokens(Episode(sampled=sampled(3), token_texts=storage.put(content)))
    assert tokens.columns["text"] is None and tokens.total == 3


def test_forty_thousand_tokens_are_read_and_written_in_time():
    """The page has 300 ms for it; the machine of the tests may be busy."""
    episode = whole(40_000)
    began = time.perf_counter()
    answer = dump(read_tokens(episode).columns)
    assert time.perf_counter() - began < 0.3
    assert len(answer) > 1_000_000
