"""A house without Ray's weight: a stand-in answers for Ray and starts drivers that train nothing but report like real ones."""

import os
import subprocess
import sys
import threading
from contextlib import contextmanager

from controlplane.env import CHECKOUT
from controlplane.services import processes
from controlplane.services.processes import Process
from tests.chaos.house import ChaosHouse
from tests.controlplane.runs.ray_stand_in import RayState, ray_stand_in

STEP_S = 0.05
DOCUMENT = {
    "name": "Reports",
    "model": {"source": {"type": "builtin", "name": "assay-tiny"}, "max_length": 64},
    "environment": {"type": "quiz"},
    "sampling": {"max_new_tokens": 2},
    "stages": [{"type": "grpo", "steps": 1_000_000, "batch_size": 16, "group_size": 8}],
    "max_attempts": 40,
}


class Jobs(threading.Thread):
    """Starts a process for each job of the stand-in, and tells it how that process ended, as Ray would."""

    def __init__(self, ray: RayState):
        super().__init__(name="jobs", daemon=True)
        self.ray, self.running, self.over = ray, {}, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.1):
            for name, job in list(self.ray.jobs.items()):
                if job["status"] == "RUNNING" and name not in self.running:
                    self.running[name] = self.begin(job["runtime_env"]["env_vars"])
            for name, process in self.running.items():
                if (code := process.poll()) is not None and self.ray.jobs[name]["status"] == "RUNNING":
                    self.ray.end(name, "FAILED" if code else "SUCCEEDED", f"exit code {code}", code)

    def begin(self, variables: dict[str, str]) -> subprocess.Popen:
        environment = {**os.environ, **variables, "STEP_S": str(STEP_S)}
        return subprocess.Popen([sys.executable, "-m", "tests.chaos.reporter"], cwd=CHECKOUT, env=environment)

    def close(self) -> None:
        self.over.set()
        self.join()
        for process in self.running.values():
            process.kill()
            process.wait()


class LightHouse(ChaosHouse):
    """A ChaosHouse whose cluster is `Jobs`."""

    def __init__(self, ray: RayState):
        self.jobs = Jobs(ray)
        super().__init__(RAY_ADDRESS=ray.address)

    def drivers(self) -> list[Process]:
        found = (processes.identify(process.pid) for process in self.jobs.running.values() if process.poll() is None)
        return [process for process in found if process]


@contextmanager
def light_house():
    """A serving LightHouse; nothing of it is left when the context ends."""
    with ray_stand_in() as ray:
        house = LightHouse(ray)
        try:
            yield house
        finally:
            house.jobs.close()
            left = house.end()
    assert left == ([], [])
