"""A worker as the tests kill it: boots a simulator in FOLDER, tells the pids of leaf and Java, then waits. `fork`: with a child that inherits its sockets."""

import asyncio
import os
import sys
import time
from pathlib import Path

from runner.contract.run_config import ScienceWorldEnvironment as Settings
from runner.environments.scienceworld.pool import Pool


async def main(folder: Path) -> None:
    simulator = await Pool(Settings(boot_timeout_sec=300), folder, size=1).acquire()
    print(simulator.leaf.pid, int(simulator.java[0]), flush=True)
    if "fork" in sys.argv and os.fork() == 0:
        time.sleep(30)
    time.sleep(300)


asyncio.run(main(Path(sys.argv[1])))
