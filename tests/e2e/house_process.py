"""`./assay up` for one test session: python -m tests.e2e.house_process PORT, with ASSAY_HOME in the environment.

It ends when its parent does, however that died, and takes the folders of its house along.
"""

import os
import shutil
import signal
import sys

from controlplane.env import home_folder
from controlplane.services import processes
from controlplane.services.house import house_at
from controlplane.services.up import up


def main(port: int, parent: int) -> int:
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:  # it died before it could be watched
        return 1
    house = house_at(home_folder())
    try:
        return up(port)
    finally:
        for folder in (house.home, house.runtime, house.data):
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
