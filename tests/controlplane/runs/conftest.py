import pytest

from tests.controlplane.runs.ray_stand_in import ray_stand_in


@pytest.fixture
def ray(settings):
    """A stand-in for the Ray head, known to the settings."""
    with ray_stand_in() as state:
        settings.RAY_ADDRESS = state.address
        yield state
