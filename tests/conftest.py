"""Fixtures for every test. `services` (Postgres and broker of this run) comes with any test that uses the database."""

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from controlplane.env import write_private
from controlplane.services import postgres
from controlplane.services.embedded import stores
from tests import docker_engine, parallel, system
from tests.plugin import FOLDER, HOUSE, PASSWORD

# A property that holds, but slowly on a busy machine, holds.
settings.register_profile("assay", deadline=None)
settings.load_profile("assay")

ROOT = Path(__file__).resolve().parents[1]
NEEDS = {"docker": system.why_no_docker, "browser": system.why_no_chromium}


def pytest_collection_modifyitems(items):
    """A test whose machine lacks something is skipped with the reason, never passed."""
    for marker, why_not in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and (reason := why_not()):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
    items.sort(key=lambda item: parallel.rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return parallel.Shares(config, log)


@pytest.fixture(scope="session")
def container_engine():
    """An engine that answers; one is started, and ended with the run, where the machine has none running."""
    if docker_engine.answers():
        yield
        return
    folder = Path(tempfile.mkdtemp(prefix="assay-docker-", dir="/tmp"))
    engine = docker_engine.PrivateEngine(folder, beside=False)
    engine.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", engine.host)
        yield
    engine.remove()


@pytest.fixture(scope="session")
def base_image(container_engine):
    """The tag of the image every task container of the sample bank starts from; made on an engine that lacks it."""
    made = subprocess.run([ROOT / "docker" / "sandbox-base.sh"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"docker/sandbox-base.sh failed: {made.stderr.strip()[-400:]}")
    return made.stdout.strip()


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
