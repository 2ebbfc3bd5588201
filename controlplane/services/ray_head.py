"""The local Ray: one head in the foreground, on loopback, with its dashboard because the Jobs REST API lives there."""

import json
import os
import secrets
import shutil
import signal
import sys
from pathlib import Path

from controlplane.env import CHECKOUT, write_private
from controlplane.services.front import http_probe
from controlplane.services.house import House, NotReady
from controlplane.services.ports import LOOPBACK, free_ports

OBJECT_STORE_BYTES = 2**30
NODE_NAME = "local"
PORT_OPTIONS = (
    *("port", "dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port", "runtime-env-agent-port"),
    *("object-manager-port", "node-manager-port", "metrics-export-port", "ray-client-server-port"),
)
SETTINGS = {
    # Without it Ray replaces 127.0.0.1 by the machine's address and listens there. It means "one machine only", whatever its name says.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Draining waits for running jobs, and jobs end with the house anyway.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A starved machine is slow, not dead, and to start anew costs it more. That a process of Ray is gone, --block sees at once.
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "150",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_health_check_failure_threshold": "20",
    "PYTHONPATH": str(CHECKOUT),
}
LONGEST_SESSION = "session_2026-01-01_00-00-00_000000_4194304"


def token_file(house: House) -> Path:
    """Whoever reads it may run anything as us: without it any local user could, over the Jobs API on loopback."""
    return house.home / "ray-token"


def probe(house: House, address: str):
    """A probe that is content when Ray takes our token and a node of it is alive: the head answers long before it can run anything."""
    return http_probe(f"{address}/api/v0/nodes", {"Authorization": f"Bearer {token_file(house).read_text()}"}, _judge_nodes)


def _judge_nodes(body: bytes) -> None:
    try:
        nodes = json.loads(body)["data"]["result"]["result"]
        states = [node["state"] for node in nodes]
    except (ValueError, KeyError, TypeError):
        raise NotReady(f"Ray's list of nodes cannot be read: {body[:200]!r}") from None
    if "ALIVE" not in states:
        raise NotReady(f"Ray answers, but no node of it is alive: {', '.join(states) or 'none has joined'}")


def service(house: House, environment: dict[str, str]) -> tuple[dict, str]:
    """The warden's description of the head, and the base URL of its Jobs REST API.

    `environment` is what jobs inherit: it must carry no secret of the control plane. Jobs run from the checkout and import it.
    They inherit the way to a fresh token too, because they join the cluster; its other doors are closed without it.
    """
    write_private(token_file(house), secrets.token_urlsafe(32))
    authentication = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file(house))}
    house.socket("ray", LONGEST_SESSION, "sockets", "plasma_store")
    sessions = house.runtime / "ray"
    shutil.rmtree(sessions, ignore_errors=True)
    ports = dict(zip(PORT_OPTIONS, free_ports(len(PORT_OPTIONS)), strict=True))
    argv = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats"),
        *(f"--node-ip-address={LOOPBACK}", f"--dashboard-host={LOOPBACK}", f"--node-name={NODE_NAME}"),
        *(f"--{option}={port}" for option, port in ports.items()),
        *("--min-worker-port=0", "--max-worker-port=0"),
        *(f"--temp-dir={sessions}", f"--object-store-memory={OBJECT_STORE_BYTES}", f"--num-cpus={os.cpu_count()}"),
        f"--resources={json.dumps({f'assay_node:{NODE_NAME}': 1})}",
    ]
    described = {
        "name": "ray",
        "argv": argv,
        "env": {**environment, **SETTINGS, **authentication},
        "cwd": str(CHECKOUT),
        "log": str(house.log("ray")),
        "stop_signal": int(signal.SIGTERM),
        "grace": 8.0,
    }
    return described, f"http://{LOOPBACK}:{ports['dashboard-port']}"
