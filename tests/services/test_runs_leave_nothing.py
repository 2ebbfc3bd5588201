"""A test run that is killed, and a development database that is killed, take their services and folders with them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from controlplane.env import CHECKOUT
from controlplane.services import processes

WAITING = """
import os, time
def test_waits(services):
    print("HOUSE", services.home, flush=True)
    time.sleep(60)
"""


def test_a_killed_test_run_leaves_no_process_and_no_folder(tmp_path):
    test = CHECKOUT / "tests" / "services" / f"test_waiting_{os.getpid()}.py"
    test.write_text(WAITING)
    try:
        run = subprocess.Popen([sys.executable, "-m", "pytest", "-s", "-q", str(test)], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
        home = Path(next(line.split()[1] for line in run.stdout if line.startswith("HOUSE")))
    finally:
        test.unlink()
    state = json.loads((home / "house.json").read_text())
    pids = [state["warden"], *([s["pid"], s["started"]] for s in state["services"].values())]
    run.send_signal(signal.SIGKILL)
    run.wait()
    run.stdout.close()
    assert processes.wait_until_gone([processes.Process(*p) for p in pids], seconds=15) == []
    deadline = time.monotonic() + 5
    while home.parent.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not home.parent.exists()
