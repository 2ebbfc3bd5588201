"""Choosing TCP ports on loopback."""

import random
import socket

LOOPBACK = "127.0.0.1"
# Below the kernel's ephemeral ports, so that no outgoing connection takes one before its server binds it, and above the range
# 10002-19999 that Ray keeps for its workers.
CANDIDATES = range(20000, 32000)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on now."""
    found: list[int] = []
    for port in random.sample(CANDIDATES, len(CANDIDATES)):
        if is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free TCP ports between {CANDIDATES.start} and {CANDIDATES.stop}")
