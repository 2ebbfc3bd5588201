import pytest

from tests.controlplane.factories import make_attempt, make_run


@pytest.fixture(autouse=True)
def storage(settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    return tmp_path


@pytest.fixture
def run(team):
    return make_run(team)


@pytest.fixture
def attempt(run):
    return make_attempt(run)
