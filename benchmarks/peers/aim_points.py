"""Aim, local repository: track SERIES metrics a step for SECONDS, then close the run. `aim_points.py SERIES SECONDS`"""

import json
import os
import sys
import time

from aim import Run

series, seconds = int(sys.argv[1]), float(sys.argv[2])
run = Run(repo=".", system_tracking_interval=None, capture_terminal_logs=False)
began, points, step = time.monotonic(), 0, 0
while time.monotonic() < began + seconds:
    for index in range(series):
        run.track(float(step), name=f"metric/{index}", step=step)
    points, step = points + series, step + 1
run.close()
print(json.dumps({"points_per_second": round(points / (time.monotonic() - began))}), flush=True)
os._exit(0)  # its clean-up at exit can wait for ever
