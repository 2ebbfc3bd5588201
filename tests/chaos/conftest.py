"""A team with a run in the database, for the faults that need no house."""

import json
import os

import pytest

# Here what comes true is tested; how soon is measured by `./assay prove kills`, which keeps each limit as it is.
os.environ.setdefault("ASSAY_PATIENCE", "4")

from controlplane.accounts import services as accounts  # noqa: E402
from controlplane.cluster.models import Grant  # noqa: E402
from tests.controlplane.factories import make_attempt, make_run  # noqa: E402

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
