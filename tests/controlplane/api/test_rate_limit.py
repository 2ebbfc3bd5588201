"""Token buckets on what costs."""

import time

import pytest

from controlplane.api import rate_limit
from controlplane.api.rate_limit import Bucket, seconds_to_wait


@pytest.fixture
def bucket(fresh_buckets, monkeypatch):
    monkeypatch.setitem(rate_limit.BUCKETS, "test", Bucket(burst=3, per_minute=600))


def test_a_burst_then_a_wait_that_is_told(bucket):
    assert [seconds_to_wait("test", "a") for _ in range(3)] == [0, 0, 0]
    assert 0 < seconds_to_wait("test", "a") <= 0.1


def test_the_bucket_refills(bucket):
    for _ in range(4):
        wait = seconds_to_wait("test", "a")
    time.sleep(wait + 0.02)
    assert seconds_to_wait("test", "a") == 0


def test_callers_do_not_share_a_bucket(bucket):
    assert [seconds_to_wait("test", caller) for caller in "aaab"] == [0, 0, 0, 0]


def test_without_redis_nobody_is_locked_out_or_kept_waiting(bucket, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1"
    rate_limit._client.cache_clear()
    began = time.monotonic()
    assert [seconds_to_wait("test", "a") for _ in range(5)] == [0] * 5
    assert time.monotonic() - began < 2
    rate_limit._client.cache_clear()


@pytest.mark.django_db
def test_an_empty_bucket_is_a_429_with_retry_after(as_token, owner, monkeypatch):
    monkeypatch.setitem(rate_limit.BUCKETS, "token", Bucket(burst=1, per_minute=1))
    caller = as_token(owner, "admin")
    body = {"name": "x", "scopes": ["read"]}
    assert caller.send("POST", "/tokens", body).status_code == 201
    answer = caller.send("POST", "/tokens", body)
    assert answer.status_code == 429
    assert 1 <= int(answer["Retry-After"]) <= 60
    assert "a minute" in answer.json()["detail"]
