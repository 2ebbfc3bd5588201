"""The sample run in a measurement's house, executed by its own Ray: the same document, with other numbers of steps."""

import os
import time

import httpx

from benchmarks.server import Server
from runner.contract import presets
from runner.contract.states import RunState

ENDED = {RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED, RunState.LOST}


def launch_sample(server: Server, warm_start: int, steps: int, name: str = "Sample, shortened") -> str:
    """Submit it through REST as the command line does; returns the run. `warm_start` and `steps` are those of its two stages."""
    document = presets.find("sample").start()
    document["name"], document["evaluation"] = name, {"type": "none"}
    document["stages"][0]["steps"], document["stages"][1]["steps"] = warm_start, steps
    token = (server.house.home / "token").read_text()
    answer = httpx.post(f"{server.url}/api/v1/runs", json=document, headers={"Authorization": f"Bearer {token}"}, timeout=60)
    if answer.status_code >= 400:
        raise RuntimeError(f"the sample run was refused: {answer.text:.500}")
    return answer.json()["id"]


def state(run: str) -> tuple[str, int, str]:
    """(state, step, reason)."""
    from controlplane.runs.models import Run

    return Run.objects.values_list("state", "step", "reason").get(pk=run)


def wait_until_ended(run: str, seconds: float) -> None:
    """Raises RuntimeError when it fails or takes longer."""
    deadline = time.monotonic() + seconds
    while True:
        now, step, reason = state(run)
        if now == RunState.SUCCEEDED:
            return
        if now in ENDED or time.monotonic() > deadline:
            raise RuntimeError(f"the sample run is {now} at step {step} after {seconds:.0f} s at most: {reason}")
        time.sleep(1)


def series(run: str, name: str) -> list[float]:
    """The values of a series in order of step; none when the run has no such series."""
    from controlplane.telemetry.models import Point, Series

    ids = list(Series.objects.filter(run=run, name=name).values_list("pk", flat=True))
    return list(Point.objects.filter(series_id__in=ids).order_by("step").values_list("value", flat=True))


def available() -> str | None:
    """Why no real run can be made here; None when it can."""
    try:
        import ray  # noqa: F401
    except ImportError as error:
        return f"{error}; pip install -r requirements-runner.txt"
    return None if (os.cpu_count() or 1) >= 2 else "the sample run needs two processors"
