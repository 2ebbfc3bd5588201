"""The folder trainer/ of a checkpoint: what the learner needs beside the weights to go on.

Written by one process: state.pt (counters, RNG, masters and moments) and reference.safetensors. Written by several: state.pt (counters and
RNG) and shards/, a distributed checkpoint to which each rank adds its part of masters, moments and reference. Either is read by any
number of ranks.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from runner.learning.optimizer import MasterAdamW
from runner.learning.ranks import Alone
from runner.learning.trainer import Reference
from runner.learning.weights import part_of

STATE, REFERENCE, SHARDS = "state.pt", "reference.safetensors", "shards"


@dataclass(frozen=True)
class TrainerState:
    """What goes into the folder: `state` is state.pt, the others lie beside it; a single process has no shards, several have no reference."""

    state: dict[str, Any]
    reference: dict[str, Tensor]
    shards: dict[str, Tensor]

    @classmethod
    def of(cls, counters: dict[str, int], optimizer: MasterAdamW, reference: Reference | None, ranks: Alone) -> "TrainerState":
        """The tensors themselves, which the next step changes."""
        state = {"counters": counters, "rng": torch.get_rng_state()}
        if ranks.size > 1:
            return cls({**state, "optimizer": {"names": optimizer.names}}, {}, _parts(optimizer, reference))
        return cls({**state, "optimizer": optimizer.state()}, reference.frozen if reference else {}, {})

    def copied(self) -> "TrainerState":
        """The same in host memory, where no step changes it."""
        stager = DefaultStager(StagingOptions(False, False, False, False))
        return TrainerState(stager.stage(self.state), stager.stage(self.reference), stager.stage(self.shards))


def write_state(folder: Path, held: TrainerState, ranks: Alone) -> None:
    """Fill `folder`; every rank must ask. Raises OSError on all of them when one could not write its part."""
    if ranks.size > 1:
        with _told_as_oserror():
            # Flushed by the rank that wrote it: no other need be able to.
            writer = dcp.FileSystemWriter(folder / SHARDS, sync_files=True)
            dcp.save(held.shards, storage_writer=writer, process_group=ranks.writers)
    if not ranks.first:
        return
    folder.mkdir(exist_ok=True)
    torch.save(held.state, folder / STATE)
    if held.reference:
        save_file({name: tensor.contiguous() for name, tensor in held.reference.items()}, folder / REFERENCE)


def read_counters(folder: Path, device: str) -> dict[str, Any]:
    """What is in state.pt: `counters`, `rng`, `optimizer`."""
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
