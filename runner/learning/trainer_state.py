"""The folder trainer/ of a checkpoint: what the learner needs beside the weights to go on.

Written by one process: state.pt (counters, RNG, masters and moments) and reference.safetensors. Written by several: state.pt (counters and
RNG) and shards/, a distributed checkpoint to which each rank adds its part of masters, moments and reference. Either is read by any
number of ranks.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import checkpoint as dcp

from runner.learning.optimizer import MasterAdamW
from runner.learning.ranks import Alone
from runner.learning.trainer import Reference
from runner.learning.weights import part_of

STATE, REFERENCE, SHARDS = "state.pt", "reference.safetensors", "shards"


def write_state(folder: Path, counters: dict[str, int], optimizer: MasterAdamW, reference: Reference | None, ranks: Alone) -> None:
    """Fill `folder`; every rank must ask. Raises OSError on all of them when one could not write its part."""
    if ranks.size > 1:
        with _told_as_oserror():
            # Flushed by the rank that wrote it: no other need be able to.
            dcp.save(_parts(optimizer, reference), storage_writer=dcp.FileSystemWriter(folder / SHARDS, sync_files=True))
    if not ranks.first:
        return
    folder.mkdir(exist_ok=True)
    held = {"names": optimizer.names} if ranks.size > 1 else optimizer.state()
    torch.save({"counters": counters, "rng": torch.get_rng_state(), "optimizer": held}, folder / STATE)
    if reference and ranks.size == 1:
        save_file({name: tensor.contiguous() for name, tensor in reference.frozen.items()}, folder / REFERENCE)


def read_counters(folder: Path, device: str) -> dict[str, Any]:
    """What `write_state` put into state.pt: `counters`, `rng`, `optimizer`."""
    return torch.load(folder / STATE, map_location=device, weights_only=True)


def read_state(folder: Path, state: dict[str, Any], optimizer: MasterAdamW, reference: Reference | None, device: str) -> None:
    """Give optimizer and reference what `folder` holds; `state` is from `read_counters`. Every rank must ask.

    Raises ValueError when it belongs to other parameters."""
    if (folder / SHARDS).is_dir():
        optimizer.check_names(state["optimizer"]["names"])
        with _told_as_oserror(), warnings.catch_warnings():
            # One process is meant to be one.
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            dcp.load(_parts(optimizer, reference), checkpoint_id=folder / SHARDS)
        return
    optimizer.load_state(state["optimizer"])
    if reference:
        found = load_file(folder / REFERENCE, device=device)
        reference.frozen = {name: part_of(tensor, reference.frozen[name]) for name, tensor in found.items()}


@contextmanager
def _told_as_oserror() -> Iterator[None]:
    # torch's own is no Exception, which a Ray actor takes for its end.
    try:
        yield
    except dcp.CheckpointException as error:
        told = "; ".join(f"rank {rank}: {failure[0]!r}" for rank, failure in sorted(error.failures.items()))
        raise OSError(f"{SHARDS} of the checkpoint: {told}") from error


def _parts(optimizer: MasterAdamW, reference: Reference | None) -> dict[str, Tensor]:
    frozen = reference.frozen if reference else {}
    return {**optimizer.parts(), **{f"reference.{name}": tensor for name, tensor in frozen.items()}}
