"""The learner's processes as one: each holds a part of every weight (FSDP2), computes its rows, and knows what all of them found.

Every rank makes the same calls in the same order; a rank that stops doing so is missed by the others at the next layer. A single
process is `Alone`, which has no process group and shares nothing out.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

from runner.learning.dealing import Row, deal
from runner.learning.packing import Bundle, plan_rows
from runner.models.loading import ModelError, backbone, base_model

# A learner waits for the driver between two steps without talking, but inside a step nobody is minutes behind.
PATIENCE = timedelta(minutes=30)


class Alone:
    """One process."""

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this rank speaks for all."""
        return self.rank == 0

    def rows(self, bundles: Sequence[Bundle], lengths: Sequence[int], max_tokens: int) -> list[Row]:
        """The rows that this rank computes."""
        return plan_rows(bundles, max_tokens)

    def merge(self, found: dict) -> dict:
        """What all ranks found."""
        return found

    def told(self, value: Any) -> Any:
        """The first rank's `value`, for those who write a checkpoint."""
        return value

    def place(self, device: str) -> str:
        """Where a model is loaded that `shard` takes."""
        return device

    def shard(self, network: torch.nn.Module) -> None:
        """Keep this rank's part of each weight only."""

    def settle(self, network: torch.nn.Module) -> None:
        """Give back what a pass without gradients left whole: it would outlive the next change of the weights."""


ALONE = Alone()


class Ranks(Alone):
    """Rank `rank` of `size`, on the processor (gloo) or one GPU each (NCCL). Tensors are sharded along their first dimension."""

    def __init__(self, store: dist.Store, rank: int, size: int, device: str = "cpu"):
        self.rank, self.size = rank, size
        backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
        self.mesh = init_device_mesh(device, (size,))
        # A checkpoint may be written beside a step: its talk must not get between that of the step.
        self.writers = dist.new_group(backend="gloo")

    def rows(self, bundles: Sequence[Bundle], lengths: Sequence[int], max_tokens: int) -> list[Row]:
        return deal(bundles, lengths, max_tokens, self.size)[self.rank]

    def merge(self, found: dict) -> dict:
        parts: list[dict] = [{} for _ in range(self.size)]
        dist.all_gather_object(parts, found)
        return {key: value for part in parts for key, value in part.items()}

    def told(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.writers)
        return box[0]

    def place(self, device: str) -> str:
        # Layer by layer `shard` brings its part to the GPU, so that the whole never lies there.
        return "cpu"

    def shard(self, network: torch.nn.Module) -> None:
        """Raises ModelError when the model has no list of layers."""
        layers = getattr(backbone(network), "layers", None)
        if layers is None:
            raise ModelError(f"resources.learner_processes: {type(network).__name__} keeps no list of layers to shard; use one process")
        # Gradients are rounded to the weights' precision once they are summed, not before.
        settings = {"mesh": self.mesh, "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32)}
        whole = base_model(network)
        for module in (*layers, whole):
            fully_shard(module, **settings)
            # The weights of a batch sum to 1 over all ranks, so gradients add up; gloo knows sums only.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
        whole.decode = backbone(network).__call__
        register_fsdp_forward_method(whole, "decode")

    def settle(self, network: torch.nn.Module) -> None:
        base_model(network).reshard()
