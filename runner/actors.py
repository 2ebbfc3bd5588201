"""The processes of a gang: the learner's, and the rollout workers. Each is a Ray actor around an object that knows nothing of Ray."""

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Sequence

import ray

from runner.assignment import Assignment, Refused
from runner.reporting.devices import Device, Devices
from runner.rollouts.types import Sample, TrainedSample


class _Process:
    """What every actor answers about itself."""

    def identity(self) -> dict[str, Any]:
        import psutil

        own = psutil.Process()
        gpus = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        return {"pid": own.pid, "started": own.create_time(), "host": socket.gethostname(), "gpus": gpus}

    def devices(self) -> list[Device]:
        """The GPUs that this process was given, as their driver tells of them."""
        return Devices().read(ray.get_runtime_context().get_accelerator_ids()["GPU"])


def _limit_threads(threads: int) -> None:
    # Read by OpenMP when torch is first imported, so it is set before.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    # Threads that spin between two kernels take the processor from the other processes of the gang.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


@dataclass
class Learned:
    """What the driver hears of a step: numbers and arrays. The learner's own report would bring torch into the driver."""

    metrics: dict[str, float]
    samples: list[TrainedSample]
    skipped: str | None


class LearnerActor(_Process):
    """A process of the learner. Torch is imported by `host` or `resolve`, after the thread count is set."""

    def __init__(self, assignment: Assignment, bank: bytes, rank: int = 0):
        _limit_threads(assignment.config.resources.learner_threads)
        self.assignment, self.bank, self.rank = assignment, bank, rank
        self.learner: Any = None
        self.store: Any = None
        self.meeting: Any = None
        self.channel: Any = None

    def host(self) -> tuple[str, int]:
        """Open the place where the learner's processes meet; its address and port."""
        from torch.distributed import TCPStore

        address = ray.util.get_node_ip_address()
        # Any free port, bound here and now.
        self.store = TCPStore(address, 0, self.assignment.config.resources.learner_processes, is_master=True, wait_for_workers=False)
        return address, self.store.port

    def resolve(self) -> Path:
        """Find or build the model's folder. Raises Refused."""
        from runner.models.loading import ModelError, resolve_model

        config, located = self.assignment.config, self.assignment.model_checkpoint
        known = {"cache": self.assignment.cache, "bank": self.bank, "seed": config.seed}
        try:
            found = resolve_model(config.model.source, **known, locate_checkpoint=(lambda _: located) if located else None)
        except ModelError as error:
            raise _refusal(error) from None
        return found.path

    def build(self, folder: Path, device: str = "cpu", meeting: tuple[str, int] | None = None) -> None:
        """Load the model. `meeting` is where the learner's processes meet, when there are several."""
        import torch

        from runner.learning.learner import Learner
        from runner.models.loading import ModelError

        torch.set_num_threads(self.assignment.config.resources.learner_threads)
        try:
            self.learner = Learner(self.assignment.config, folder, device=device, **self._ranks(meeting, device))
        except ModelError as error:
            raise _refusal(error) from None

    def _ranks(self, meeting: tuple[str, int] | None, device: str) -> dict[str, Any]:
        if meeting is None:
            return {}
        from torch.distributed import TCPStore

        from runner.learning.ranks import Ranks

        size = self.assignment.config.resources.learner_processes
        store = self.store or TCPStore(*meeting, size, is_master=False)
        return {"ranks": Ranks(store, self.rank, size, device)}

    def call(self, method: str, *arguments, **keywords) -> Any:
        """Call the learner's `method`; the first process answers for all."""
        found = getattr(self.learner, method)(*arguments, **keywords)
        return found if self.rank == 0 else None

    def learn(self, step: int, samples: Sequence[Sample] | None) -> Learned | None:
        report = self.learner.learn(step, samples)
        return Learned(report.metrics, report.samples, report.skipped) if self.rank == 0 else None

    def open_channel(self) -> tuple[str, int]:
        """Where the workers come for weights: its address and port."""
        from runner.learning.channel import open_store

        if self.channel:
            self.channel.close()
        self.meeting, self.channel = open_store(ray.util.get_node_ip_address()), None
        return ray.util.get_node_ip_address(), self.meeting.port

    def send_weights(self, receivers: int, device: str) -> int | None:
        """Give the weights to the workers that came; the bytes each was given."""
        from runner.learning.channel import Channel

        if self.rank == 0 and self.channel is None:
            self.channel = Channel(self.meeting, 0, receivers + 1, device)
        return self.learner.send_weights(self.channel)

    def release(self) -> None:
        """Give memory of the GPU that is kept for later back to the driver."""
        import torch

        torch.cuda.empty_cache()

    def save(self, root: Path, extra: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
        """Folder and manifest of the checkpoint written."""
        written = self.learner.save(root, extra=extra)
        return written.path, asdict(written.manifest)

    def begin_save(self, root: Path, extra: dict[str, Any]) -> None:
        """Write the checkpoint while steps go on; `saved` says when it is over."""
        self.learner.begin_save(root, extra=extra)

    def saved(self) -> tuple[Path, dict[str, Any]] | None:
        """Folder and manifest of the checkpoint that was begun, None while it is being written."""
        written = self.learner.saved()
        return written and (written.path, asdict(written.manifest))


def _refusal(error: ValueError) -> Refused:
    """A model's error as the driver can read it without torch; its message begins with the field it is about."""
    field, _, _ = str(error).partition(":")
    return Refused(str(error), "/" + field.replace(".", "/") if field.startswith("model.") else "")


class WorkerActor(_Process):
    """A rollout worker's process."""

    def __init__(self, name: str, assignment: Assignment, tasks: Sequence):
        from runner.rollouts.worker import RolloutWorker

        _limit_threads(assignment.config.resources.worker_threads)
        self.worker = RolloutWorker(name, assignment.config, tasks, *_surroundings(name, assignment))
        self.met = 0
        self.channel: Any = None

    def call(self, method: str, *arguments, **keywords) -> Any:
        """Call the worker's `method`."""
        return getattr(self.worker, method)(*arguments, **keywords)

    def receive_weights(self, number: int, meeting: tuple[str, int], rank: int, size: int, device: str) -> int:
        """Take the weights that the learner sends by its channel `number`, to those who came to `meeting`; their version."""
        from runner.learning.channel import Channel

        if self.met != number:
            if self.channel:
                self.channel.close()
            self.channel, self.met = Channel.join(meeting, rank, size, device), number
        return self.worker.receive_weights(self.channel)


def _surroundings(name: str, assignment: Assignment) -> tuple:
    """Where this worker's episodes run, and who tells of them; nothing for environments that need neither container nor simulator."""
    environment = assignment.config.environment
    if environment.type == "scienceworld":
        from runner.environments.scienceworld.pool import Pool

        return (Pool(environment, workers=assignment.config.resources.rollout_workers),)
    if environment.type != "harbor":
        return ()
    from runner.environments.site import site_of
    from runner.reporting.live import LiveReporter

    live = LiveReporter(name, assignment.folder)
    return site_of(assignment, live.phase), live
