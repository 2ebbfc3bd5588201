"""The service commands of `./assay`: up, demo, down, backup, restore, status. Down and status need the standard library only."""

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from controlplane.env import SettingsError, home_folder, read_environment_file
from controlplane.services import processes
from controlplane.services.front import END_S, read_state, sweep
from controlplane.services.house import House, HouseError, house_at

NOT_RUNNING = 3


def main(argv: list[str]) -> int:
    options = parser().parse_args(argv)
    try:
        return options.command(options)
    except (HouseError, SettingsError) as error:
        print(f"assay: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="assay")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    serving = (("up", up, "start everything and serve"), ("demo", demo, "up, then launch the sample run and show its progress"))
    for name, command, words in serving:
        sub = commands.add_parser(name, help=words)
        sub.add_argument("--port", type=int, default=8000, help="port of the web pages on 127.0.0.1 (default 8000)")
        sub.set_defaults(command=command)
    commands.add_parser("down", help="end everything this checkout started").set_defaults(command=down)
    for name, command, words in (
        ("backup", backup, "save database and storage"),
        ("restore", restore, "fill an empty house from a backup"),
    ):
        sub = commands.add_parser(name, help=words)
        sub.add_argument("folder", type=Path, help="the backup's folder")
        sub.set_defaults(command=command)
    sub = commands.add_parser("status", help="what runs, and with how much memory")
    sub.add_argument("--json", action="store_true", help="for programs")
    sub.set_defaults(command=status)
    return top


def up(options) -> int:
    from controlplane.services.up import up

    return up(options.port)


def demo(options) -> int:
    from controlplane.cli import main as client
    from controlplane.services.up import up

    return up(options.port, when_ready=lambda url: client(["launch", "--preset", "sample", "--follow"]))


def down(options) -> int:
    house = house_at(home_folder())
    state = read_state(house)
    if state:
        warden = processes.Process(*state["warden"])
        processes.send(warden, signal.SIGTERM)
        if processes.wait_until_gone([warden], END_S):
            print("The warden did not end in time; ending everything by force.")
    swept = sweep(house)
    print("Everything is down." if state or swept else "Nothing was running.")
    return 0


def backup(options) -> int:
    from controlplane.services.backup import backup

    began = time.monotonic()
    print(f"Saved {contents(backup(options.folder))} in {options.folder}, {time.monotonic() - began:.0f} s.")
    return 0


def restore(options) -> int:
    from controlplane.services.backup import restore

    began = time.monotonic()
    print(f"Restored {contents(restore(options.folder))}, {time.monotonic() - began:.0f} s; start it with `./assay up`.")
    return 0


def contents(manifest: dict) -> str:
    storage = manifest["storage"]
    return f"{sum(manifest['rows'].values()):,} rows and {storage['files']:,} files ({storage['bytes'] / 2**20:,.0f} MiB)"


def status(options) -> int:
    house = house_at(home_folder())
    state = read_state(house)
    report = describe(house, state) if state else {"state": "down", "services": {}}
    print(json.dumps(report, indent=1) if options.json else as_table(report))
    return 0 if state else NOT_RUNNING


def describe(house: House, state: dict) -> dict:
    """What `status` shows; memory is PSS in MiB over a service's process tree."""
    services = {name: {**service, "pss_mib": tree_pss_mib(service["pid"])} for name, service in state["services"].items()}
    return {
        "state": state["phase"],
        "url": read_environment_file(house.environment_file).get("ASSAY_URL"),
        "home": str(house.home),
        "pss_mib": sum(service["pss_mib"] for service in services.values()),
        "services": services,
    }


def tree_pss_mib(pid: int | None) -> int:
    if pid is None:
        return 0
    return round(sum(processes.pss_bytes(p) for p in [pid, *(d.pid for d in processes.descendants(pid))]) / 2**20)


def as_table(report: dict) -> str:
    if report["state"] == "down":
        return "Assay is down; ./assay up starts it."
    rows = [f"Assay is {report['state']} at {report['url']}, {report['pss_mib']} MiB"]
    for name, service in report["services"].items():
        restarts = f", restarted {service['restarts']} times, last exit {service['last_exit']}" if service["restarts"] else ""
        rows.append(f"  {name:<10} {service['state']:<18} pid {service['pid'] or '–'}  {service['pss_mib']} MiB{restarts}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
