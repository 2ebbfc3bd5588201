"""A front process with stubborn services, run by the warden tests: python front_process.py HOME RUNTIME TOKEN."""

import signal
import sys
from pathlib import Path

from controlplane.services.front import Front
from controlplane.services.house import House

# Ignores TERM, and sends a grandchild into a session of its own, two forks away.
STUBBORN = "trap '' TERM; (setsid sleep 600 &) ; while true; do sleep 600 & wait; done"
POLITE = "exec sleep 600"


def service(house: House, name: str, script: str, token: str) -> dict:
    return {
        "name": name,
        "argv": ["/bin/sh", "-c", script],
        "env": {"PATH": "/usr/bin:/bin", "TOKEN": token},
        "cwd": "/",
        "log": str(house.log(name)),
        "stop_signal": int(signal.SIGTERM),
        "grace": 0.3,
    }


def main(home: str, runtime: str, token: str) -> None:
    def interrupt(*_):
        raise SystemExit(0)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    house = House(home=Path(home), data=Path(home) / "data", runtime=Path(runtime))
    with Front(house) as front:
        front.start(service(house, "polite", POLITE, token))
        front.start(service(house, "stubborn", STUBBORN, token))
        front.warden.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
