"""Container fixtures of the sandbox's tests, for environments that run in them."""

from tests.runner.sandbox.conftest import scratch_image  # noqa: F401
