"""What is checked on the node before the first step. Each refusal names the field, the value and the remedy."""

import json
import math
import os
import shutil
import struct
import time
from pathlib import Path
from typing import Sequence

import psutil

from runner.assignment import Assignment, Bank, Bundle, Refused
from runner.contract.run_config import RunConfig
from runner.gang import Gang
from runner.rollouts.workflow import seeded_order

# An interpreter with torch and transformers loaded, and room for activations.
PROCESS_BYTES = 400 << 20
ADAM_BYTES = 8
GRADIENT_BYTES = 4
MASTER_BYTES = 4
# What a card's driver and a bare process or two take of its memory.
BUSY_BYTES = 2 << 30
FREED_WITHIN_S, ASK_EVERY_S = 60.0, 1.0


def check_storage(assignment: Assignment) -> None:
    """The run's folder takes files. Raises Refused."""
    probe = assignment.folder / f".write-{os.getpid()}"
    try:
        assignment.folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        message = f"the run's storage {assignment.storage} cannot be written on this node: {error}; mount it or mend its permissions"
        raise Refused(message) from error


def check_stages(config: RunConfig, bank: Bank) -> None:
    """Each warm start has demonstrations of the kinds it names. Raises Refused."""
    offered = sorted({item.kind for item in bank.demonstrations})
    for index, stage in enumerate(config.stages):
        if stage.type != "sft":
            continue
        unknown = [kind for kind in stage.kinds if kind not in offered]
        if unknown:
            message = f"the bank has no demonstrations of kind {unknown[0]!r}; it offers {', '.join(offered) or 'none'}"
            raise Refused(message, f"/stages/{index}/kinds", unknown[0])
        if not offered:
            split = config.environment.train_split
            message = f"split {split!r} of the bank has no demonstrations to warm up on; remove this stage or choose another bank"
            raise Refused(message, f"/stages/{index}/type", "sft")


def check_room(assignment: Assignment, model: Path) -> None:
    """Disk for the checkpoints that are kept, memory for learner and workers when all live here. Raises Refused."""
    config, parameters = assignment.config, count_parameters(model)
    size = parameters * _checkpoint_bytes(config)
    needed = int((config.checkpoints.keep_last + 1) * size * 1.2)
    free = shutil.disk_usage(assignment.storage).free
    if needed > free:
        kept = config.checkpoints.keep_last
        message = f"{kept} checkpoints and one being written need {_gib(needed)}, {assignment.storage} has {_gib(free)} free; "
        raise Refused(message + "keep fewer or free space", "/checkpoints/keep_last", kept)
    if len({bundle.node_resource for bundle in assignment.grant}) == 1 and not config.resources.gpus:
        _check_memory(config, parameters)


def _check_memory(config: RunConfig, parameters: int) -> None:
    weights = parameters * _dtype_bytes(config)
    workers, learners = config.resources.rollout_workers, config.resources.learner_processes
    moments = 0 if config.model.adapter.type == "lora" else parameters * (_checkpoint_bytes(config) - _dtype_bytes(config) + GRADIENT_BYTES)
    copied = parameters * _checkpoint_bytes(config) if config.checkpoints.in_background else 0
    needed = (weights + PROCESS_BYTES) * (workers + learners) + moments + copied
    available = psutil.virtual_memory().available
    if needed > available:
        learner = "a learner" if learners == 1 else f"{learners} learner processes"
        message = f"{learner} and {workers} workers need about {_gib(needed)} of memory, this node has {_gib(available)}; "
        raise Refused(message + "use fewer workers, a smaller model or an adapter", "/resources/rollout_workers", workers)


def _dtype_bytes(config: RunConfig) -> int:
    return 4 if config.model.dtype == "float32" else 2


def _checkpoint_bytes(config: RunConfig) -> int:
    """Bytes per parameter on disk: weights, moments, and the float32 copy that bfloat16 training keeps. An adapter's are counted as one."""
    if config.model.adapter.type == "lora":
        return 1
    return _dtype_bytes(config) + ADAM_BYTES + (MASTER_BYTES if config.model.dtype == "bfloat16" else 0)


def count_parameters(model: Path) -> int:
    """Elements of all tensors, from the headers of the folder's safetensors files."""
    total = 0
    for path in model.glob("*.safetensors"):
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        for name, tensor in header.items():
            total += _elements(tensor["shape"]) if name != "__metadata__" else 0
    return total


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def check_engines(gang: Gang, bank: Bank, config: RunConfig) -> None:
    """Every worker's node can run the episodes: engine and files of every task, or Java and memory for a simulator. Raises Refused."""
    digests = sorted({task.payload["task_digest"] for task in (*bank.train, *bank.held_out) if "task_digest" in task.payload})
    problems = list(dict.fromkeys(problem for found in gang.every_worker("site_problems", digests) for problem in found))
    if problems:
        field = "backend" if config.environment.type == "harbor" else "max_concurrent_episodes"
        raise Refused("; ".join(problems), f"/environment/{field}", getattr(config.environment, field))


def check_devices(gang: Gang, config: RunConfig) -> None:
    """Nobody else uses GPUs that the run does not share. What is about to be freed gets FREED_WITHIN_S; nothing is ended. Raises Refused."""
    if config.resources.share_gpus:
        return
    end = time.monotonic() + FREED_WITHIN_S
    while busy := _busy(gang):
        if time.monotonic() > end:
            raise Refused(f"{'; '.join(busy)}; end what uses it, cordon its node, ask for fewer, or set share_gpus", "/resources/gpus")
        time.sleep(ASK_EVERY_S)


def _busy(gang: Gang) -> list[str]:
    found = {device.uuid: (name, device) for name, devices in gang.devices().items() for device in devices}
    return [
        f"GPU {device.index} on {gang.components[name].host} has {_gib(device.memory_used)} in use before the run has begun"
        for name, device in found.values()
        if (device.memory_used or 0) > BUSY_BYTES
    ]


def check_generation(gang: Gang, assignment: Assignment) -> None:
    """Every worker's node has the engine, built for the run's device, and memory for it. Raises Refused."""
    engine = assignment.config.engine
    if engine.type == "transformers":
        return
    workers = [bundle for bundle in assignment.grant if bundle.bundle.startswith("worker-")]
    asked = [(gang.device, _sharing(worker, workers)) for worker in workers]
    for worker, problems in zip(workers, gang.scatter("engine_problems", asked), strict=True):
        for field, problem in problems:
            raise Refused(f"{worker.bundle}: {problem}", f"/engine/{field}", getattr(engine, field))


def _sharing(worker: Bundle, workers: Sequence[Bundle]) -> int:
    """Engines that take their memory where `worker` does: on its GPU, or on its node."""
    if worker.gpus >= 1:
        return 1
    beside = sum(other.node_resource == worker.node_resource for other in workers)
    return min(beside, math.floor(1 / worker.gpus + 1e-6)) if worker.gpus else beside


def check_lengths(gang: Gang, bank: Bank, config: RunConfig) -> None:
    """The longest prompt of each used split and a full response fit the context. Raises Refused naming the task."""
    train = seeded_order(bank.train, config.seed, config.environment.train_limit) if bank.train else []
    limit = config.evaluation.limit if config.evaluation.type == "held_out" else 0
    used = [*train, *(seeded_order(bank.held_out, config.seed, limit) if bank.held_out else [])]
    keys = [task.key for task in used]
    shares = [keys[worker :: gang.count] for worker in range(gang.count)]
    measured = gang.scatter("prompt_lengths", [(share,) for share in shares])
    longest, key = max(pair for share, lengths in zip(shares, measured, strict=True) for pair in zip(lengths, share, strict=True))
    needed = longest + config.sampling.max_new_tokens
    if needed > config.model.max_length:
        message = (
            f"task {key!r} has a prompt of {longest} tokens; with {config.sampling.max_new_tokens} new tokens that is {needed}, "
            f"model.max_length is {config.model.max_length}; raise it to at least {needed}, or lower sampling.max_new_tokens"
        )
        raise Refused(message, "/model/max_length", config.model.max_length)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
