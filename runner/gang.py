"""The processes of a run: the learner's and n rollout workers as Ray actors in one placement group named after the attempt.

Every actor registers its process id and start time. Actors belong to the driver: when it dies, however it dies, Ray ends them and gives
the placement group back.
"""

import os
import socket
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Callable, Sequence

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from runner.actors import LearnerActor, WorkerActor
from runner.assignment import Assignment, Bank
from runner.gang_errors import GONE, GangError, ProcessLost, Unwanted
from runner.learner_group import Call, LearnerGroup
from runner.reporting.devices import Device
from runner.reporting.heartbeat import Component
from runner.rollouts.dispatcher import WorkerLost
from runner.rollouts.types import Sample

CONNECT_SECONDS = 60.0
# A cluster of one's own is started first, which takes a loaded machine minutes.
START_SECONDS = 300.0
READY_SECONDS = 60.0
ANSWER_SECONDS = 5.0
MAX_REPLACEMENTS = 3


def connect(on_timeout: Callable[[str], None], namespace: str) -> str:
    """Join the cluster named by RAY_ADDRESS; returns its head's host:port.

    A wrong address makes Ray wait for minutes: `on_timeout` is called after CONNECT_SECONDS, after START_SECONDS for a cluster of one's own."""
    address = os.environ.get("RAY_ADDRESS", "auto")
    seconds = START_SECONDS if address == "local" else CONNECT_SECONDS
    message = f"the Ray cluster at {address!r} did not answer within {seconds:.0f} s; check RAY_ADDRESS and `ray status`"
    timer = threading.Timer(seconds, on_timeout, [message])
    timer.daemon = True
    timer.start()
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=True, configure_logging=False)
    finally:
        timer.cancel()
    return ray.get_runtime_context().gcs_address


def head_answers(address: str) -> bool:
    """Whether something takes connections at host:port within ANSWER_SECONDS."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
    except OSError:
        return False
    return True


class Gang:
    """Starts the actors in the granted bundles and talks to them. `components` fills as processes register."""

    def __init__(
        self,
        assignment: Assignment,
        bank: Bank,
        components: dict[str, Component],
        log: Callable[[str, str], None],
        unwanted: Callable[[], bool] = lambda: False,
    ):
        """`log` takes a level and a message; `unwanted` is asked while the models are made ready. Raises GangError."""
        self.assignment, self.components, self.log, self.unwanted = assignment, components, log, unwanted
        self._ready = self._asleep = False
        self._makes_room = getattr(assignment.config.engine, "sleep_while_learning", False)
        self.device = "cuda" if assignment.config.resources.gpus else "cpu"
        self._replacements: Counter[int] = Counter()
        self.count = assignment.config.resources.rollout_workers
        self.group = _reserve(assignment)
        self._folder: Path | None = None
        self._weights: Any = None
        self._direct = weights_go_directly(assignment)
        self._channel_at: tuple[str, int] | None = None
        self._channels = self._pushes = 0
        self._bank = ray.put(bank.data)
        self._tasks = ray.put([*bank.train, *bank.held_out])
        names = assignment.config.resources.learners
        actors = {name: self._start(name, LearnerActor, assignment, self._bank, rank) for rank, name in enumerate(names)}
        self.learners = LearnerGroup(actors, self._one_of)
        self.workers = [self._start_worker(index) for index in range(self.count)]
        self._register([*names, *self._names()], [*self.learners.actors, *self.workers])
        self._warming = [self.call(worker, "warm_up") for worker in range(self.count)]

    # ------------------------------------------------------------ learner
    def learn(self, step: int, samples: Sequence[Sample] | None = None) -> Call:
        """Start an optimizer step; `wait` for the call gives a Learned. Engines that make room for it sleep until `wake`."""
        if self._makes_room and not self._asleep:
            self.every_worker("sleep")
            self._asleep = True
        return self.learners.ask("learn", step, samples)

    def wake(self) -> None:
        """Bring back the engines that sleep."""
        if self._asleep:
            self.wait(self.learners.ask("release"))
            self.every_worker("wake")
            self._asleep = False

    def ask_learner(self, method: str, *arguments) -> Call:
        """Start another call of the learner, for `wait`."""
        return self.learners.ask("call", method, *arguments)

    def save(self, root: Path, extra: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
        """Write a checkpoint; its folder and manifest."""
        return self.wait(self.learners.ask("save", root, extra))

    def begin_save(self, root: Path, extra: dict[str, Any]) -> None:
        """Begin to write a checkpoint beside the steps that follow."""
        self.wait(self.learners.ask("begin_save", root, extra))

    def saved(self) -> tuple[Path, dict[str, Any]] | None:
        """Folder and manifest of the checkpoint that was begun, None while it is being written."""
        return self.wait(self.learners.ask("saved"))

    def wait(self, call: Call) -> Any:
        """The result of a learner's call. Raises ProcessLost when a process of it is gone, or what the call raised."""
        return self.learners.wait(call)

    def resolve_model(self) -> Path:
        """The model's folder, found or built by the learner."""
        self._folder = self.wait(self.learners.ask_first("resolve"))
        return self._folder

    def build(self) -> None:
        """Load the model on both sides, at once."""
        learner = self.learners.ask("build", self._folder, self.device, self._meeting())
        calls = [self.call(worker, "load_policy", self._folder, self.device) for worker in range(self.count)]
        self.wait(learner)
        for worker, call in enumerate(calls):
            self.result(worker, call)
        self._ready = True

    def devices(self) -> dict[str, list[Device]]:
        """The GPUs of each process that has any, by the process's name. Raises GangError."""
        names = [*self.assignment.config.resources.learners, *self._names()]
        actors = dict(zip(names, [*self.learners.actors, *self.workers], strict=True))
        asked = {name: actor.devices.remote() for name, actor in actors.items() if self.components[name].gpus}
        try:
            return {name: self._get(reference) for name, reference in asked.items()}
        except GONE as error:
            raise ProcessLost(f"a process was gone before it told of its GPUs: {error}") from error

    def _meeting(self) -> tuple[str, int] | None:
        """Where the learner's processes meet; one alone meets nobody."""
        if len(self.learners.actors) == 1:
            return None
        host, port = self.wait(self.learners.ask_first("host"))
        self.log("info", f"the learner's {len(self.learners.actors)} processes meet at {host}:{port}")
        return host, port

    # ------------------------------------------------------------ workers
    def call(self, worker: int, method: str, *arguments) -> Any:
        return self.workers[worker].call.remote(method, *arguments)

    def result(self, worker: int, reference) -> Any:
        try:
            return self._get(reference)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, GONE):
                # All that a worker is handed from elsewhere are the weights.
                raise ProcessLost(f"the learner's process is gone: {error.cause}") from error
            raise error.as_instanceof_cause() from None
        except GONE as error:
            raise WorkerLost(f"worker-{worker} is gone: {error}") from error

    def scatter(self, method: str, arguments: Sequence[Sequence]) -> list[Any]:
        """Call every worker at once, worker i with `arguments[i]`, and wait for all. A lost worker is replaced and asked again; its loss
        a second time raises WorkerLost."""
        calls = [self.call(worker, method, *own) for worker, own in enumerate(arguments)]
        return [self._result_or_again(worker, call, method, arguments[worker]) for worker, call in enumerate(calls)]

    def every_worker(self, method: str, *arguments) -> list[Any]:
        """`scatter` with the same arguments for all."""
        return self.scatter(method, [arguments] * self.count)

    def push_weights(self) -> list[int]:
        """Give every worker the learner's weights; the version that each holds then."""
        self._pushes += 1
        arrived = self._send_weights() if self._direct else None
        return arrived or self.every_worker("load_weights", self.publish_weights())

    def _send_weights(self) -> list[int] | None:
        """Past the object store, by one channel to all; None when that failed. Raises ProcessLost without a learner."""
        if self._channel_at is None:
            self._channel_at = self.wait(self.learners.ask_first("open_channel"))
            self._channels += 1
        sent = self.learners.ask("send_weights", self.count, self.device)
        about = (self._channels, self._channel_at)
        calls = [actor.receive_weights.remote(*about, rank, self.count + 1, self.device) for rank, actor in enumerate(self.workers, 1)]
        arrived, failures = [], []
        for waiting in [partial(self.wait, sent), *(partial(self.result, worker, call) for worker, call in enumerate(calls))]:
            try:
                arrived.append(waiting())
            except ProcessLost:
                raise
            except RuntimeError as error:
                failures.append(error)
        if not failures:
            return arrived[1:]
        self._channel_at = None
        self.log("warning", f"the weights take the way through the object store this time: {failures[0]}")
        return None

    def publish_weights(self) -> Any:
        """Put the learner's weights into the object store; what later workers start from, too."""
        call = self.ask_learner("weights")
        if len(call) > 1:
            # A process that is gone would make the first's answer an error that does not say so.
            self.wait(call)
        self._weights = call[0]
        return self._weights

    def replace(self, worker: int) -> None:
        name = f"worker-{worker}"
        self._replacements[worker] += 1
        if self._replacements[worker] > MAX_REPLACEMENTS:
            raise WorkerLost(f"{name} was lost {self._replacements[worker]} times; look for lack of memory in the node's Ray logs")
        self.log("warning", f"{name} was lost and is replaced ({self._replacements[worker]} of {MAX_REPLACEMENTS})")
        self.components[name].state = "lost"
        ray.kill(self.workers[worker])
        self.workers[worker] = self._start_worker(worker)
        self._register([name], [self.workers[worker]])
        self.result(worker, self.call(worker, "load_policy", self._folder, self.device))
        self._channel_at = None
        if self._direct and self._pushes:
            # Nobody kept the last ones. In the middle of a step these are already the next.
            self.publish_weights()
        if self._weights is not None:
            self.result(worker, self.call(worker, "load_weights", self._weights))

    def _get(self, reference: Any) -> Any:
        self._one_of([reference])
        return ray.get(reference)

    def _one_of(self, references: list) -> tuple[list, list]:
        """Wait for one: (done, pending). Before the first step nothing is lost by giving up, and building a model may take minutes.

        Raises Unwanted."""
        if self._ready:
            return (references, []) if len(references) == 1 else ray.wait(references)
        while not (found := ray.wait(references, timeout=0.5))[0]:
            if self.unwanted():
                raise Unwanted
        return found

    def _result_or_again(self, worker: int, call: Any, method: str, arguments: Sequence) -> Any:
        try:
            return self.result(worker, call)
        except WorkerLost:
            self.replace(worker)
            return self.result(worker, self.call(worker, method, *arguments))

    def close(self) -> None:
        """End every actor and give the placement group back."""
        for actor in [*self.learners.actors, *self.workers]:
            ray.kill(actor)
        ray.util.remove_placement_group(self.group)

    def _names(self) -> list[str]:
        return [f"worker-{index}" for index in range(self.count)]

    def _start_worker(self, index: int):
        return self._start(f"worker-{index}", WorkerActor, f"worker-{index}", self.assignment, self._tasks)

    def _start(self, bundle: str, actor: type, *arguments):
        index, share = next((i, item) for i, item in enumerate(_placed(self.assignment)) if item.bundle == bundle)
        strategy = PlacementGroupSchedulingStrategy(placement_group=self.group, placement_group_bundle_index=index)
        options = {"num_cpus": share.cpus, "num_gpus": share.gpus, "scheduling_strategy": strategy, "max_restarts": 0}
        return ray.remote(actor).options(**options).remote(*arguments)

    def _register(self, names: Sequence[str], actors: Sequence) -> None:
        try:
            identities = ray.get([actor.identity.remote() for actor in actors], timeout=READY_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise GangError(f"{', '.join(names)} did not start within {READY_SECONDS:.0f} s; look at the node's Ray logs") from None
        except GONE as error:
            # One that ends in its own constructor would do so again.
            kind = GangError if getattr(error, "actor_init_failed", False) else ProcessLost
            raise kind(f"a process of {', '.join(names)} died while starting: {error}") from error
        for name, identity in zip(names, identities, strict=True):
            self.components[name] = Component(
                identity["pid"], identity["started"], identity["host"], "running", tuple(identity["gpus"])
            )
            self.log("info", f"{name} is process {identity['pid']} on {identity['host']}")


def weights_go_directly(assignment: Assignment) -> bool:
    """Whether the learner sends to the workers without the object store: where each has a GPU of its own, unless the run says otherwise."""
    asked = assignment.config.resources.weight_transfer
    own = [bundle.gpus >= 1 for bundle in _placed(assignment)]
    return all(own) if asked == "auto" else asked == "collective"


def _placed(assignment: Assignment) -> list:
    # The driver is a process of Ray's job supervisor; its share is kept for it by the allocator, not by the group.
    return [bundle for bundle in assignment.grant if bundle.bundle != "driver"]


def _reserve(assignment: Assignment) -> PlacementGroup:
    name = f"assay-{assignment.attempt}"
    group = placement_group([bundle.resources for bundle in _placed(assignment)], strategy="PACK", name=name)
    # Not `ready()`: that would run a task, and a process for it, in the first bundle.
    if not group.wait(READY_SECONDS):
        if not head_answers(ray.get_runtime_context().gcs_address):
            raise ProcessLost(f"Ray's head went away before placement group {name} was ready")
        ray.util.remove_placement_group(group)
        raise GangError(f"placement group not ready: {name} asked for {group.bundle_specs} and got no room within {READY_SECONDS:.0f} s")
    return group
