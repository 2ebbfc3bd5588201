"""`./assay up`: from nothing to a served page, then waiting until somebody ends it."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from controlplane.env import CHECKOUT, embedded_secret, home_folder, read_environment, read_environment_file
from controlplane.services import application, broker, ports, postgres, ray_head
from controlplane.services.front import Front, http_probe, read_state, tail
from controlplane.services.house import House, HouseError, house_at

DEFAULT_PORT = 8000
DISK_NEEDED_GIB = 3
# What jobs on Ray must not inherit: the control plane's own keys, and an address that would redirect `ray.init()`.
NOT_FOR_JOBS = ("SECRET_KEY", "DATABASE_URL", "REDIS_URL", "RAY_ADDRESS", "RAY_AUTH_TOKEN")


class Ended(BaseException):
    """Raised in the main thread by the signal that asks us to end."""


def up(port: int = DEFAULT_PORT, when_ready=lambda url: None) -> int:
    """Runs the house in the foreground; `when_ready` is called with its URL once it serves. Returns the exit code."""
    house = house_at(home_folder())
    if running := read_state(house):
        return greet_running(house, running, when_ready)
    read_environment()  # refuses a malformed variable now, not in the log of a process started later
    check_machine(house, port)
    signals_raise_ended()
    try:
        with Front(house) as front, forceful_second_signal(front):
            url, login = boot(front, port)
            say(f"Assay is serving at {url}")
            say(f"Log in once with: {login}")
            when_ready(url)
            say("Ctrl-C ends it with everything it started.")
            if code := front.warden.wait():
                say(f"The warden ended unexpectedly ({code}); see {house.log('warden')}")
            return 1 if code else 0
    except Ended:
        say("Ended; no process is left.")
        return 0


def greet_running(house: House, state: dict, when_ready) -> int:
    if "web" not in state["services"]:
        raise HouseError(f"{house.home} runs a database for development only; end it with `./assay down` first.")
    url = read_environment_file(house.environment_file)["ASSAY_URL"]
    say(f"Assay is already up at {url}")
    # What serves has its database and pages: preparing them again would change them under it.
    say(f"Log in once with: {manage(house, dict(os.environ), 'login_link')}")
    when_ready(url)
    return 0


def check_machine(house: House, port: int) -> None:
    """Refuses with words where starting would fail half-way."""
    if not sys.platform.startswith("linux"):
        raise HouseError(f"The embedded services need Linux, this is {sys.platform}; use docker/compose.yml instead.")
    if not ports.is_free(port):
        raise HouseError(f"Port {port} on {ports.LOOPBACK} is taken; give another one: ./assay up --port {port + 1}")
    status = os.statvfs(nearest_existing(house.home))
    free = status.f_bavail * status.f_frsize / 2**30
    if free < DISK_NEEDED_GIB:
        remedy = "free some, or set ASSAY_HOME to a larger disk"
        raise HouseError(f"{free:.1f} GiB are free under {house.home}, {DISK_NEEDED_GIB} are needed; {remedy}.")


def nearest_existing(path: Path) -> Path:
    return next(folder for folder in [path, *path.parents] if folder.exists())


def boot(front: Front, port: int) -> tuple[str, str]:
    """Starts every service that no variable points elsewhere; returns (URL, login link)."""
    house = front.house
    url = f"http://{ports.LOOPBACK}:{port}"
    given = {"ASSAY_URL": url, "ASSAY_HOME": str(house.home), "ASSAY_STORAGE": str(house.home / "storage"), **os.environ}
    given.setdefault("SECRET_KEY", embedded_secret(house.home))
    stores = start_stores(front)
    ray = start_ray(front, given)
    environment = {**given, **stores, **ray}
    house.write_environment({key: environment[key] for key in ("ASSAY_URL", "DATABASE_URL", "REDIS_URL", *ray)})
    with step("Database and pages"):
        # Migrations, static files, first team.
        login = manage(house, environment, "prepare")
    front.start(application.web(house, environment, port))
    for name in application.WORKERS:
        front.start(application.worker(house, environment, name))
    front.start(application.beat(house, environment))
    with step("Web"):
        front.wait_for("web", http_probe(f"{url}/healthz"), seconds=120)
    if "RAY_ADDRESS" not in os.environ:
        with step("Ray"):
            front.wait_for("ray", ray_head.probe(house, ray["RAY_ADDRESS"]), seconds=180)
    return url, login


def start_ray(front: Front, environment: dict[str, str]) -> dict[str, str]:
    """The variables that lead to Ray. It starts early and is waited for last: it takes longest, and only a first run needs it."""
    if "RAY_ADDRESS" in os.environ:
        return {"RAY_ADDRESS": os.environ["RAY_ADDRESS"]}
    for_jobs = {key: value for key, value in environment.items() if key not in NOT_FOR_JOBS}
    service, address = ray_head.service(front.house, for_jobs)
    front.start(service)
    return {"RAY_ADDRESS": address, "RAY_AUTH_TOKEN_PATH": str(ray_head.token_file(front.house))}


def start_stores(front: Front) -> dict[str, str]:
    found = {}
    for variable, name, module in (("DATABASE_URL", "postgres", postgres), ("REDIS_URL", "broker", broker)):
        if variable in os.environ:
            found[variable] = os.environ[variable]
            continue
        with step(name.capitalize()):
            front.start(module.service(front.house))
            front.wait_for(name, lambda module=module: module.probe(front.house), seconds=60)
        found[variable] = module.url(front.house)
    return found


def manage(house: House, environment: dict[str, str], command: str) -> str:
    """The login link that `manage.py prepare` or `login_link` prints; in a process of its own, so that the front stays small."""
    log_file = house.log(command)
    with open(log_file, "ab") as log:
        line = [sys.executable, "manage.py", command]
        done = subprocess.run(line, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
    if done.returncode != 0:
        raise HouseError(f"`manage.py {command}` failed.\n{tail(log_file)}")
    return done.stdout.strip()


def signals_raise_ended() -> None:
    def raise_ended(*_):
        raise Ended

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, raise_ended)


@contextmanager
def forceful_second_signal(front: Front):
    """From the first request to end on, another one kills the warden; the kernel and the sweep then end the services."""
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: front.warden.kill())
        say("Ending the services …")


@contextmanager
def step(name: str):
    began = time.monotonic()
    yield
    say(f"  {name} ready after {time.monotonic() - began:.1f} s")


def say(text: str) -> None:
    print(text, flush=True)
