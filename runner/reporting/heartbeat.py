"""One thread that says every ten seconds that the run is alive, and learns whether it should stop."""

import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Callable

import psutil

from runner.reporting.control import Control, Fenced, NoControl, Unreachable
from runner.reporting.devices import Device, Devices
from runner.reporting.emitter import Emitter

BEAT_SECONDS = 10.0
SAMPLE_SECONDS = 5.0
# After a step the control plane hears of it at once, but not more often than this.
NUDGE_SECONDS = 2.0


class StopRequest:
    """Whether the run was asked to stop, and how many seconds it has left for that."""

    def __init__(self):
        self._asked = threading.Event()
        self.reason = ""
        self._deadline = float("inf")

    def ask(self, reason: str, grace_s: float | None) -> None:
        """The first request counts; a later one may only shorten the grace."""
        self.reason = self.reason or reason
        self._deadline = min(self._deadline, time.monotonic() + (grace_s if grace_s is not None else float("inf")))
        self._asked.set()

    @property
    def asked(self) -> bool:
        return self._asked.is_set()

    @property
    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()


@dataclass
class Component:
    """A process of the run. `host` tells it apart from those this node can look at; `gpus` are the ids of those it was given."""

    pid: int
    started: float
    host: str
    state: str = "starting"
    gpus: tuple[str, ...] = ()
    step: int = 0
    process: psutil.Process | None = None

    @classmethod
    def own(cls, state: str = "running") -> "Component":
        process = psutil.Process()
        return cls(process.pid, process.create_time(), socket.gethostname(), state)


@dataclass
class Vitals:
    """What the heartbeat tells: written by the driver, read by the thread. Replacing a value is atomic."""

    phase: str = "starting"
    step: int = 0
    components: dict[str, Component] = field(default_factory=dict)


class Heartbeat:
    """Beats and samples until `close`. `on_fenced` is called once when another attempt owns the run."""

    def __init__(self, control: Control | NoControl, vitals: Vitals, stop: StopRequest, emitter: Emitter, on_fenced: Callable[[str], None]):
        self.control, self.vitals, self.stop, self.emitter, self.on_fenced = control, vitals, stop, emitter, on_fenced
        self._closing, self._nudged = threading.Event(), threading.Event()
        self._last_beat = 0.0
        self._seen: dict[str, dict[str, float]] = {}
        self._host, self._gpus, self._devices = socket.gethostname(), Devices(), []
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Beat soon, when the last beat is not fresh."""
        if time.monotonic() - self._last_beat > NUDGE_SECONDS:
            self._nudged.set()

    def close(self) -> None:
        self._closing.set()
        self._nudged.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        next_sample = 0.0
        while not self._closing.is_set():
            now = time.monotonic()
            if now >= next_sample:
                self._sample()
                next_sample = now + SAMPLE_SECONDS
            if self._nudged.is_set() or now - self._last_beat >= BEAT_SECONDS:
                self._nudged.clear()
                self._beat()
            self._nudged.wait(max(0.05, min(next_sample, self._last_beat + BEAT_SECONDS) - time.monotonic()))

    def _beat(self) -> None:
        self._last_beat = time.monotonic()
        components = {name: self._describe(name, component) for name, component in list(self.vitals.components.items())}
        body = {"phase": self.vitals.phase, "step": self.vitals.step, "components": components, "devices": self._devices}
        try:
            reply = self.control.heartbeat(body)
        except Fenced as fenced:
            self.on_fenced(str(fenced))
            self._closing.set()
            return
        except Unreachable:
            return
        except Exception as error:  # a defect in a heartbeat must not end the thread that hears commands
            print(f"heartbeat failed: {error!r}", file=sys.stderr)
            return
        if reply.get("command") == "stop":
            self.stop.ask("stop requested", reply.get("grace_s"))

    def _describe(self, name: str, component: Component) -> dict:
        seen = self._seen.get(name, {})
        return {
            "state": component.state,
            "pid": component.pid,
            "started": component.started,
            "host": component.host,
            "rss": seen.get("rss"),
            "cpu": seen.get("cpu"),
            "step": component.step,
        }

    def _sample(self) -> None:
        """Memory and processor share of the processes on this node, and their GPUs; those of other nodes are their agents' matter."""
        here = {name: component for name, component in list(self.vitals.components.items()) if component.host == self._host}
        values = self._sample_devices([gpu for component in here.values() for gpu in component.gpus])
        for name, component in here.items():
            try:
                first = component.process is None
                component.process = component.process or psutil.Process(component.pid)
                rss, percent = component.process.memory_info().rss, component.process.cpu_percent()
            except psutil.Error:
                self._seen.pop(name, None)
                continue
            # The first reading of a processor share has no interval to be a share of.
            self._seen[name] = {"rss": rss, "cpu": None if first else percent}
            values |= {f"memory/{name}/rss": rss, f"cpu/{name}/percent": self._seen[name]["cpu"]}
        self.emitter.emit_samples(values)

    def _sample_devices(self, gpus: list[str]) -> dict[str, float]:
        found = self._gpus.read(gpus) if gpus else []
        self._devices = [{"host": self._host, **asdict(device)} for device in found]
        return {f"gpu/{device.index} {self._host}/{name}": value for device in found for name, value in _series(device).items()}


def _series(device: Device) -> dict[str, float | None]:
    """What is drawn of a GPU over wall seconds; the units are the metrics dictionary's."""
    return {
        "utilisation": device.utilisation,
        "memory": device.memory_used,
        "temperature": device.temperature,
        "power": device.power,
        "memory_errors": device.memory_errors,
    }
