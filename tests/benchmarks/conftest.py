"""The same people as in the control plane's tests."""

from tests.controlplane.conftest import owner, team, viewer  # noqa: F401
