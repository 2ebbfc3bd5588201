"""The application without rate limits, which `test_limits` proves by themselves: behind them a fuzzer would only ever see 429."""

from importlib import import_module

from controlplane.asgi import application

# Not a plain import: its models may be loaded only after the line above has set Django up.
rate_limit = import_module("controlplane.api.rate_limit")
rate_limit.BUCKETS = dict.fromkeys(rate_limit.BUCKETS, rate_limit.Bucket(burst=10**9, per_minute=6e10))

__all__ = ["application"]
