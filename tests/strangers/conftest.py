"""The people of every permission test, and what they may try to reach."""

import pytest

from tests.controlplane.conftest import *  # the same team, members and callers
from tests.strangers.world import make_world


@pytest.fixture
def world(team, owner, teammate, viewer, outsider, settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    return make_world(team, owner, viewer, tmp_path)
