"""What a driver is told to do: claimed from the control plane, or read from files for a run without one."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.contract.bank import Demonstration, InvalidBank, Task, read_bank
from runner.contract.canonical import canonical_bytes, digest
from runner.contract.evaluation_config import EvaluationConfig, parse_any
from runner.contract.parse import InvalidDocument
from runner.contract.run_config import RunConfig


class Refused(ValueError):
    """The run cannot start as described. `pointer` is the JSON pointer of the field that is to blame, or empty."""

    def __init__(self, message: str, pointer: str = "", value: Any = None):
        self.pointer, self.value = pointer, value
        super().__init__(message)


@dataclass(frozen=True)
class Bundle:
    """One process's share of the grant. `node_resource` pins it to its node; empty lets Ray choose."""

    bundle: str
    node_resource: str = ""
    cpus: float = 0.0
    gpus: float = 0.0

    @property
    def resources(self) -> dict[str, float]:
        """The bundle as Ray wants it."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, **({self.node_resource: 0.001} if self.node_resource else {})}
        return {name: amount for name, amount in wanted.items() if amount}


@dataclass(frozen=True)
class Resume:
    """A complete checkpoint to go on from."""

    checkpoint: str
    path: Path
    step: int


@dataclass(frozen=True)
class Assignment:
    """One attempt at one run. `storage` is the run's folder, `cache` holds banks and built models of all runs; all its nodes see both.

    `quarantined` are keys of tasks that nobody draws.
    """

    run: str
    attempt: str
    number: int
    config: RunConfig | EvaluationConfig
    storage: Path
    grant: tuple[Bundle, ...]
    cache: Path
    resume: Resume | None = None
    model_checkpoint: Path | None = None
    quarantined: frozenset[str] = frozenset()

    @property
    def folder(self) -> Path:
        """Spool, exit record and log of this attempt."""
        return self.storage / "attempts" / str(self.number)

    @property
    def checkpoints(self) -> Path:
        """Where this attempt writes; attempts never replace each other's checkpoints."""
        return self.storage / "checkpoints" / f"attempt_{self.number}"


def from_claim(reply: dict[str, Any], attempt: str) -> Assignment:
    """The assignment in the control plane's answer to a claim. Raises Refused when the config is not the one that was hashed.

    The hash is of the document as it was launched: one from before a field existed still runs, with that field's default.
    """
    if digest(canonical_bytes(reply["config"])) != reply["config_hash"]:
        raise Refused(f"the config that came is not the one that was launched, whose hash is {reply['config_hash']}; claim it once more")
    try:
        config = parse_any(reply["config"])
    except InvalidDocument as invalid:
        raise Refused(f"this node's runner does not know the run's config: {invalid}; upgrade this node, then retry") from None
    resume, source, storage = reply.get("resume"), reply.get("model_checkpoint"), Path(reply["storage"])
    return Assignment(
        run=str(reply["run"]),
        attempt=attempt,
        number=int(reply["number"] if "number" in reply else reply["attempt"]),
        config=config,
        storage=storage,
        grant=tuple(Bundle(item["bundle"], item["node_resource"], item["cpus"], item["gpus"]) for item in reply["grant"]),
        cache=Path(os.environ.get("ASSAY_CACHE") or storage.parent.parent / "cache"),
        resume=Resume(str(resume["checkpoint"]), Path(resume["path"]), int(resume["step"])) if resume else None,
        model_checkpoint=Path(source["path"]) if source else None,
        quarantined=frozenset((reply.get("bank") or {}).get("quarantined", ())),
    )


def local_grant(config: RunConfig) -> tuple[Bundle, ...]:
    """What the control plane would have granted, anywhere on the cluster; fewer GPUs than processes are shared by all of them."""
    resources = config.resources
    processes = resources.rollout_workers + resources.learner_processes
    each = resources.gpus // processes or resources.gpus / processes
    # The first learner process takes what is left over.
    first = resources.gpus - each * (processes - 1)
    learners = (Bundle(name, cpus=resources.learner_cpus, gpus=each) for name in resources.learners[1:])
    workers = (Bundle(f"worker-{index}", cpus=resources.worker_cpus, gpus=each) for index in range(resources.rollout_workers))
    return (Bundle("driver", cpus=resources.driver_cpus), Bundle("learner", cpus=resources.learner_cpus, gpus=first), *learners, *workers)


@dataclass(frozen=True)
class Bank:
    """The task bank of a run, as the run's filters leave it; every list is in the file's order."""

    data: bytes
    digest: str
    train: tuple[Task, ...]
    held_out: tuple[Task, ...]
    demonstrations: tuple[Demonstration, ...]


def open_bank(data: bytes, config: RunConfig, expected: str | None = None, quarantined: Collection[str] = ()) -> Bank:
    """Read and filter the bank; the tasks `quarantined` are left out.

    Raises Refused naming the field when it is another bank, broken, or has nothing to train on.
    """
    try:
        tasks, demonstrations, found = read_bank(data)
    except InvalidBank as error:
        raise Refused(f"the task bank cannot be read: {error}", "/environment/bank", config.environment.bank) from error
    if expected and found != expected:
        raise Refused(f"the task bank's digest is {found}, expected {expected}; import it again", "/environment/version", expected)
    environment = config.environment
    kept = [task for task in tasks if task.key not in quarantined and _wanted(task, environment)]
    train = tuple(task for task in kept if task.split == environment.train_split)
    if not train and any(stage.type != "sft" for stage in config.stages):
        raise Refused(
            f"split {environment.train_split!r} has no task under these domains and levels; widen the filters or choose another split",
            "/environment/train_split",
            environment.train_split,
        )
    listed = getattr(environment, "eval_tasks", "all")
    held_out = tuple(task for task in kept if task.split == environment.eval_split and (listed == "all" or listed in task.flags))
    if not held_out and config.evaluation.type != "none":
        message = f"split {environment.eval_split!r} has no task to evaluate on; choose another or set evaluation to none"
        raise Refused(message, "/environment/eval_split", environment.eval_split)
    # Gold goes with its task: what the filters leave out is not shown, and what this bank holds out is never trained on.
    trained = {"", *(task.key for task in train)}
    usable = tuple(item for item in demonstrations if item.split == environment.train_split and item.task in trained)
    return Bank(data, found, train, held_out, usable)


def _wanted(task: Task, environment) -> bool:
    families = getattr(environment, "families", [])
    kept = {"domain": environment.domains, "level": environment.levels, "family": families}
    if not all(not wanted or getattr(task, name) in wanted for name, wanted in kept.items()):
        return False
    # Who answers menus can do nothing with a task that has none.
    by_menu = environment.type == "harbor" and environment.agent.type == "menu"
    return not by_menu or len(task.payload.get("menu", ())) >= 2
