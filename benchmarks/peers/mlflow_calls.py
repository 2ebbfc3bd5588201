"""What MLflow's client costs the thread that calls it: log_metrics of SERIES metrics, STEPS times in SECONDS, to the server at URL.

`mlflow_calls.py URL SERIES STEPS SECONDS`; both its synchronous call and its asynchronous one are timed.
"""

import json
import statistics
import sys
import time

import mlflow

url, series, steps, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
mlflow.set_tracking_uri(url)
found = {}
for name, synchronous in (("synchronous_ms", True), ("asynchronous_ms", False)):
    took = []
    with mlflow.start_run():
        for step in range(steps):
            values = {f"metric/{index}": float(step) for index in range(series)}
            before = time.perf_counter()
            mlflow.log_metrics(values, step=step, synchronous=synchronous)
            took.append(time.perf_counter() - before)
            time.sleep(seconds / steps)
    found[name] = round(1000 * statistics.median(took), 3)
print(json.dumps(found))
