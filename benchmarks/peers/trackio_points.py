"""trackio, local files: log SERIES metrics a step for SECONDS, then finish, which flushes. `trackio_points.py SERIES SECONDS`

With a third argument STEPS it logs only so many, and also says what one call cost the caller.
"""

import json
import os
import statistics
import sys
import time

os.environ.update(TRACKIO_DIR=os.getcwd(), HF_HOME=os.getcwd())
import trackio

series, seconds = int(sys.argv[1]), float(sys.argv[2])
most = int(sys.argv[3]) if len(sys.argv) > 3 else None
said = sys.stdout
sys.stdout = sys.stderr
trackio.init(project="bench")
began, step, took = time.monotonic(), 0, []
while time.monotonic() < began + seconds and (most is None or step < most):
    values = {f"metric/{index}": float(step) for index in range(series)}
    before = time.perf_counter()
    trackio.log(values, step=step)
    took.append(time.perf_counter() - before)
    step += 1
    if most is not None:
        time.sleep(seconds / most)
trackio.finish()
figure = {"points_per_second": round(step * series / (time.monotonic() - began)), "call_ms": round(1000 * statistics.median(took), 3)}
print(json.dumps(figure), file=said)
