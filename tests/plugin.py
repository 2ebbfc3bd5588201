"""One private Postgres and broker for each test run.

Loaded before pytest-django, because Django's settings read the addresses. The services start when the first test asks for the database (or
for `services`) and end with the run: the warden sees the pipe close even when pytest is killed. Several runs at once do not meet.
"""

import os
import secrets
from pathlib import Path

import pytest

from controlplane.services.house import House

FOLDER = Path(f"/tmp/assay-test-{os.getpid()}-{secrets.token_hex(3)}")
HOUSE = House(home=FOLDER / "home", data=FOLDER / "data", runtime=FOLDER / "run")
PASSWORD = secrets.token_urlsafe(24)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests():
    os.environ.update(
        ASSAY_MODE="embedded",
        ASSAY_DEBUG="1",
        ASSAY_HOME=str(HOUSE.home),
        ASSAY_STORAGE=str(FOLDER / "storage"),
        ASSAY_URL="http://127.0.0.1:8000",
        DATABASE_URL=f"postgresql://assay:{PASSWORD}@/assay?host={HOUSE.runtime / 'pg'}",
        REDIS_URL=f"unix://{HOUSE.runtime / 'broker.sock'}",
        RAY_ADDRESS="http://127.0.0.1:1",
        SECRET_KEY="for tests only",
    )
    return (yield)
