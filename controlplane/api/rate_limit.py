"""Token buckets for what costs, kept in Redis so that every web process counts together."""

import logging
import math
from dataclasses import dataclass
from functools import cache, wraps

import redis
from django.conf import settings
from django.shortcuts import render
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.api.problems import Problem

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bucket:
    """`burst` at once, then `per_minute`."""

    burst: int
    per_minute: float


BUCKETS = {
    "launch": Bucket(burst=60, per_minute=30),
    "token": Bucket(burst=20, per_minute=10),
    "invite": Bucket(burst=20, per_minute=10),
    "import": Bucket(burst=10, per_minute=6),
}

# Refills by the time since the last call, on the server's own clock, then takes one; returns the seconds to wait, 0 when taken.
TAKE = """
local burst, rate = tonumber(ARGV[1]), tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local held = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = math.min(burst, (tonumber(held[1]) or burst) + (now - (tonumber(held[2]) or now)) * rate)
local wait = 0
if tokens >= 1 then tokens = tokens - 1 else wait = (1 - tokens) / rate end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'at', string.format('%.6f', now))
redis.call('EXPIRE', KEYS[1], math.ceil(burst / rate) + 1)
return tostring(wait)
"""


@cache
def _client() -> redis.Redis:
    # The client's own retries would keep a caller waiting for seconds when Redis is down.
    return redis.Redis.from_url(settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0))


def seconds_to_wait(name: str, caller: str) -> float:
    """Takes one from the caller's bucket; 0 when there was one. Without Redis nobody is refused: costs are limited, not access."""
    bucket = BUCKETS[name]
    try:
        return float(_client().eval(TAKE, 1, f"assay:limit:{name}:{caller}", bucket.burst, bucket.per_minute / 60))
    except redis.RedisError as error:
        log.warning("no rate limit on %s: %s", name, error)
        return 0.0


def limited_page(name: str):
    """`limited` for a form: only what is posted counts, and 429 is a page."""

    def decorate(view):
        @wraps(view)
        def wrapper(request, *args, **kwargs):
            wait = math.ceil(seconds_to_wait(name, f"user:{request.user.pk}")) if request.method == "POST" else 0
            if not wait:
                return view(request, *args, **kwargs)
            text = f"{BUCKETS[name].burst} at once and {BUCKETS[name].per_minute:g} a minute are allowed. Try again in {wait} s."
            response = render(request, "error.html", {"title": "Too many requests", "text": text}, status=429)
            response["Retry-After"] = str(wait)
            return response

        return wrapper

    return decorate


def limited(name: str):
    """Decorates a view (under `idempotent`, so that a replay costs nothing): 429 with Retry-After when the bucket is empty."""

    def decorate(view):
        @wraps(view)
        def wrapper(request, *args, **kwargs):
            wait = math.ceil(seconds_to_wait(name, f"user:{request.user.pk}"))
            if wait:
                bucket = BUCKETS[name]
                detail = f"{bucket.burst} at once and {bucket.per_minute:g} a minute are allowed; try again in {wait} s"
                raise Problem(429, "Too many requests", detail, headers={"Retry-After": str(wait)})
            return view(request, *args, **kwargs)

        return wrapper

    return decorate
