"""Our own processes: web, Celery worker, Celery beat."""

import signal
import sys

from controlplane.env import CHECKOUT
from controlplane.services.house import House
from controlplane.services.memory import GIVING_BACK
from controlplane.services.ports import LOOPBACK

WEB_POOL = 8
WS_MAX_BYTES = 1 << 20
WORKERS = {"worker": ("nudges", 2), "bulk": ("bulk", 1)}  # service: (queue, processes)


def web(house: House, environment: dict[str, str], port: int) -> dict:
    argv = [
        *(sys.executable, "-m", "uvicorn", "controlplane.asgi:application", "--host", LOOPBACK, "--port", str(port)),
        *("--loop", "uvloop", "--http", "httptools", "--lifespan", "off", "--no-access-log", "--timeout-graceful-shutdown", "3"),
        # What a page says to its socket is small; the default would hold 16 MiB of a stranger's.
        *("--ws-max-size", str(WS_MAX_BYTES)),
    ]
    return described(house, "web", argv, {**environment, "ASSAY_DB_POOL": str(WEB_POOL)}, grace=6.0)


def worker(house: House, environment: dict[str, str], name: str) -> dict:
    queue, processes = WORKERS[name]
    argv = [*celery("worker"), "--queues", queue, "--concurrency", str(processes), "--hostname", f"{name}@%h"]
    argv += ["--without-gossip", "--without-mingle", "--loglevel", "INFO"]
    return described(house, name, argv, environment, grace=8.0)


def beat(house: House, environment: dict[str, str]) -> dict:
    argv = [*celery("beat"), "--schedule", str(house.home / "beat-schedule"), "--pidfile=", "--loglevel", "WARNING"]
    return described(house, "beat", argv, environment, grace=3.0)


def celery(command: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "controlplane.celery:app", command]


def described(house: House, name: str, argv: list[str], environment: dict[str, str], grace: float) -> dict:
    return {
        "name": name,
        "argv": argv,
        "env": {**GIVING_BACK, **environment, "DJANGO_SETTINGS_MODULE": "controlplane.settings"},
        "cwd": str(CHECKOUT),
        "log": str(house.log(name)),
        "stop_signal": int(signal.SIGTERM),
        "grace": grace,
    }
