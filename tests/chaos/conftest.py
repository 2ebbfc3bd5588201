"""A team with a run in the database, for the faults that need no house."""

import json

import pytest

from controlplane.accounts import services as accounts
from controlplane.cluster.models import Grant
from tests.controlplane.factories import make_attempt, make_run

CONFIG = {"checkpoints": {"keep_last": 2, "keep_best": True, "every_steps": 1}, "max_attempts": 3}


@pytest.fixture
def storage_folder(settings, tmp_path):
    settings.ASSAY_STORAGE = tmp_path
    return tmp_path


@pytest.fixture
def open_attempt(db, storage_folder):
    """A running attempt that holds a grant."""
    team = accounts.create_team("physics", "Physics")
    attempt = make_attempt(make_run(team, config=json.dumps(CONFIG).encode()))
    Grant.objects.create(attempt=attempt)
    return attempt
