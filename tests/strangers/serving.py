"""The web process as `./assay up` starts it, on the database of the tests, for what only a real server and a real browser can show."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.db import connection

from controlplane.env import CHECKOUT
from controlplane.services import application, ports
from controlplane.services.front import http_probe
from controlplane.services.house import NotReady
from tests.plugin import HOUSE, PASSWORD

START_S = 60
UNLIMITED = "tests.strangers.unlimited:application"


@contextmanager
def serving(log: Path, storage: Path, asgi: str = "controlplane.asgi:application") -> Iterator[str]:
    """The base URL; what the process logs goes to `log`. `asgi` may name another application."""
    port = ports.free_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    name = connection.settings_dict["NAME"]
    own = {
        "DATABASE_URL": f"postgresql://assay:{PASSWORD}@/{name}?host={HOUSE.runtime / 'pg'}",
        "ASSAY_URL": url,
        "ASSAY_STORAGE": str(storage),
        "SECRET_KEY": settings.SECRET_KEY,
    }
    described = application.web(HOUSE, {**os.environ, **own}, port)
    argv = [asgi if word == "controlplane.asgi:application" else word for word in described["argv"]]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, cwd=CHECKOUT, env=described["env"], stdout=output, stderr=output)
    try:
        _wait_for(url, process, log)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    probe, deadline = http_probe(f"{url}/healthz"), time.monotonic() + START_S
    while True:
        try:
            return probe()
        except NotReady as error:
            assert process.poll() is None and time.monotonic() < deadline, f"{error}\n{log.read_text()[-3000:]}"
            time.sleep(0.1)


def python(*argv: str) -> list[str]:
    return [sys.executable, "-m", *argv]
