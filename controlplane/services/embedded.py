"""Which services make an embedded house, and in which order they start.

Run as a module it keeps a private Postgres and broker in the foreground, for development against a database:
`python -m controlplane.services.embedded`, then in another terminal `python manage.py migrate`.
"""

import signal
import threading
from contextlib import contextmanager

from controlplane.env import home_folder
from controlplane.services import broker, postgres
from controlplane.services.front import Front
from controlplane.services.house import House, house_at


@contextmanager
def stores(house: House, *, volatile: bool = False):
    """A ready Postgres and broker for as long as the context lasts; yields the Front."""
    with Front(house) as front:
        front.start(postgres.service(house, volatile=volatile))
        front.start(broker.service(house))
        front.wait_for("postgres", lambda: postgres.probe(house), seconds=60)
        front.wait_for("broker", lambda: broker.probe(house), seconds=30)
        yield front


def addresses(house: House) -> dict[str, str]:
    return {"DATABASE_URL": postgres.url(house), "REDIS_URL": broker.url(house)}


if __name__ == "__main__":
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    house = house_at(home_folder())
    with stores(house):
        house.write_environment(addresses(house))
        print("\n".join(f"export {key}='{value}'" for key, value in addresses(house).items()), flush=True)
        ended.wait()
