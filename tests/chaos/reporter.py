"""A driver that trains nothing: it claims its attempt, beats, and reports steps through the real emitter until it is asked to stop.

python -m tests.chaos.reporter     with ASSAY_URL, ASSAY_ATTEMPT, ASSAY_CLAIM_CODE and STEP_S in the environment
"""

import os
import sys
import time

from runner.assignment import from_claim
from runner.reporting.control import Control
from runner.reporting.emitter import Emitter
from runner.reporting.exit_record import exit_record, write_exit_record
from runner.reporting.heartbeat import Component, Heartbeat, StopRequest, Vitals
from runner.reporting.replay import CONNECTION, write_connection

SERIES = 20


def main() -> int:
    attempt, pause = os.environ["ASSAY_ATTEMPT"], float(os.environ["STEP_S"])
    control = Control(os.environ["ASSAY_URL"], attempt)
    assignment = from_claim(control.claim(os.environ["ASSAY_CLAIM_CODE"]), attempt)
    write_connection(assignment.folder, control.batches_url, control.token)
    journal = open(assignment.folder / "driver.log", "a", buffering=1)
    emitter = Emitter(assignment.folder / "spool", "driver", url=control.batches_url, token=control.token, journal=journal)
    vitals, stop = Vitals(components={"driver": Component.own()}), StopRequest()
    heartbeat = Heartbeat(control, vitals, stop, emitter, lambda _: os._exit(4))
    control.state("running", "training", first_step=1)
    while not stop.asked:
        vitals.step += 1
        emitter.emit_points(vitals.step, {"timing_s/step": pause} | {f"load/{number}": float(vitals.step) for number in range(SERIES)})
        emitter.log("info", f"step {vitals.step} · reported")
        time.sleep(pause)
    record = exit_record("stopped", vitals.step, stop.reason)
    write_exit_record(assignment.folder, record)
    heartbeat.close()
    if emitter.close(60.0):
        (assignment.folder / CONNECTION).unlink()
    control.exit(record)
    control.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
