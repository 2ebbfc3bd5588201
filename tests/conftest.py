"""Fixtures for every test. `services` (Postgres and broker of this run) comes with any test that uses the database."""

import pytest

from controlplane.env import write_private
from controlplane.services import postgres
from controlplane.services.embedded import stores
from tests import system
from tests.plugin import FOLDER, HOUSE, PASSWORD

NEEDS = {"docker": system.why_no_docker, "browser": system.why_no_chromium}


def pytest_collection_modifyitems(items):
    """A test whose machine lacks something is skipped with the reason, never passed."""
    for marker, why_not in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := why_not()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def services():
    FOLDER.mkdir(mode=0o711)
    HOUSE.prepare()
    write_private(postgres.password_file(HOUSE), PASSWORD)
    with stores(HOUSE, volatile=True) as front:
        front.remove_at_end(FOLDER)
        yield HOUSE


@pytest.fixture(scope="session")
def django_db_modify_db_settings(services):
    """pytest-django asks for this before it makes the test database; here it also makes the server."""
