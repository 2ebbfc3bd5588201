"""A house of its own for a measurement: durable Postgres, broker and web as `./assay up` starts them, in a temporary folder."""

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psycopg

from controlplane.env import embedded_secret
from controlplane.services import application, ports, postgres, ray_head
from controlplane.services.embedded import addresses, stores
from controlplane.services.front import Front, http_probe, read_state
from controlplane.services.house import House
from controlplane.services.processes import descendants, pss_bytes
from controlplane.services.up import NOT_FOR_JOBS, manage

NO_RAY = "http://127.0.0.1:1"
START_S = 180


@dataclass
class Server:
    """A serving house. This process's Django speaks to the same database."""

    url: str
    house: House
    front: Front

    def session(self) -> str:
        """The session cookie of the house's owner."""
        return self.browser().cookies["sessionid"]

    def browser(self) -> httpx.Client:
        """A client that is signed in as a page is."""
        from controlplane.accounts.services import create_login_link, ensure_embedded_owner

        client = httpx.Client(base_url=self.url, timeout=60, follow_redirects=True)
        link = create_login_link(ensure_embedded_owner())
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', client.get(link).text).group(1)
        client.post(link, data={"csrfmiddlewaretoken": token}, headers={"Referer": link}).raise_for_status()
        return client

    def database(self, name: str) -> str:
        """The URL of another, empty database on the same Postgres."""
        with psycopg.connect(postgres.url(self.house, "postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return postgres.url(self.house, name)

    def processes(self) -> dict[str, list[int]]:
        """The processes of each service, its children included."""
        services = read_state(self.house)["services"]
        return {name: [one["pid"], *(child.pid for child in descendants(one["pid"]))] for name, one in services.items() if one["pid"]}

    def memory_mib(self) -> dict[str, int]:
        """Proportional resident memory of each service, what is shared included."""
        return {name: round(sum(map(pss_bytes, pids)) / 2**20) for name, pids in self.processes().items()}


@contextmanager
def serving(*, background: bool = False, ray: bool = False) -> Iterator[Server]:
    """A fresh, migrated house; `background` adds the Celery worker and beat, `ray` a local Ray, so that runs can be executed."""
    folder = Path(tempfile.mkdtemp(prefix="assay-bench-"))
    folder.chmod(0o711)
    house = House(home=folder / "home", data=folder / "data", runtime=Path(f"/tmp/assay-bench-run-{secrets.token_hex(4)}"))
    try:
        with stores(house) as front:
            yield _start(house, front, background, ray)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(house.runtime, ignore_errors=True)


def _start(house: House, front: Front, background: bool, ray: bool) -> Server:
    url = f"http://{ports.LOOPBACK}:{ports.free_ports(1)[0]}"
    own = {"ASSAY_MODE": "embedded", "ASSAY_HOME": str(house.home), "ASSAY_STORAGE": str(house.home / "storage"), "ASSAY_URL": url}
    os.environ.update(own, DJANGO_SETTINGS_MODULE="controlplane.settings")
    # Without Ray nothing answers there: a measurement that wants none starts no run.
    os.environ.update(addresses(house), SECRET_KEY=embedded_secret(house.home), RAY_ADDRESS=start_ray(front) if ray else NO_RAY)
    manage(house, dict(os.environ), "prepare")
    front.start(application.web(house, dict(os.environ), int(url.rpartition(":")[2])))
    if background:
        for name in application.WORKERS:
            front.start(application.worker(house, dict(os.environ), name))
        front.start(application.beat(house, dict(os.environ)))
    front.wait_for("web", http_probe(f"{url}/healthz"), seconds=START_S)
    if ray:
        front.wait_for("ray", ray_head.probe(house, os.environ["RAY_ADDRESS"]), seconds=START_S)
    import django

    django.setup()
    return Server(url, house, front)


def start_ray(front: Front) -> str:
    for_jobs = {key: value for key, value in os.environ.items() if key not in NOT_FOR_JOBS}
    service, address = ray_head.service(front.house, for_jobs)
    front.start(service)
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(ray_head.token_file(front.house))
    return address
