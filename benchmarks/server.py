"""A house of its own for a measurement: durable Postgres, broker and the web process as `./assay up` starts them, in a temporary folder."""

import os
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.env import CHECKOUT, embedded_secret
from controlplane.services import application, ports
from controlplane.services.embedded import addresses, stores
from controlplane.services.front import http_probe
from controlplane.services.house import House


@contextmanager
def serving() -> Iterator[str]:
    """The URL of a fresh, migrated server; this process's Django then speaks to the same database."""
    folder = Path(tempfile.mkdtemp(prefix="assay-bench-"))
    folder.chmod(0o711)
    house = House(home=folder / "home", data=folder / "data", runtime=Path(f"/tmp/assay-bench-run-{secrets.token_hex(4)}"))
    try:
        with stores(house) as front:
            url = _start(house, front)
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(house.runtime, ignore_errors=True)


def _start(house: House, front) -> str:
    port = next(port for port in range(18500, 19500) if ports.is_free(port))
    url = f"http://127.0.0.1:{port}"
    os.environ.update(
        addresses(house), ASSAY_MODE="embedded", ASSAY_HOME=str(house.home), ASSAY_URL=url, SECRET_KEY=embedded_secret(house.home)
    )
    os.environ.update(ASSAY_STORAGE=str(house.home / "storage"), DJANGO_SETTINGS_MODULE="controlplane.settings")
    subprocess.run([sys.executable, "manage.py", "migrate", "--verbosity", "0"], cwd=CHECKOUT, check=True)
    front.start(application.web(house, dict(os.environ), port))
    front.wait_for("web", http_probe(f"{url}/healthz"), seconds=60)
    import django

    django.setup()
    return url


def machine() -> dict:
    """What the figures were taken on."""
    return {"cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 1), "python": platform.python_version(), "kernel": platform.release()}
