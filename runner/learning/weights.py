"""Weights on their way from the learner to a policy: named trainable tensors as numpy arrays."""

from collections.abc import Iterable

import numpy as np
import torch
from peft import PeftModel
from torch.distributed.tensor import DTensor, distribute_tensor

from runner.policies.base import Weights


def to_array(tensor: torch.Tensor) -> np.ndarray:
    """A numpy copy; bfloat16, which numpy lacks, travels as uint16."""
    tensor = tensor.detach().to("cpu", copy=True).contiguous()
    return tensor.view(torch.uint16).numpy() if tensor.dtype is torch.bfloat16 else tensor.numpy()


def to_tensor(array: np.ndarray, dtype: str) -> torch.Tensor:
    """The inverse of `to_array`."""
    # Arrays from an object store are read-only; torch only reads them here.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def trainable(network: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Parameters that training moves, by name; tied ones appear once."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor that ranks hold a part of each: every rank must ask, in the same order. Any other tensor as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_of(tensor: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """The part of `tensor`, which every rank has whole, that lies where `model` does."""
    if not isinstance(model, DTensor):
        return tensor
    return distribute_tensor(tensor.to(model.device), model.device_mesh, model.placements, src_data_rank=None)


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a tensor that ranks hold a part of each, in the same memory. Any other tensor as it is."""
    return tensor.detach().to_local() if isinstance(tensor, DTensor) else tensor


def as_part(own: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """The inverse: `own` as this process's part of a tensor that lies where `model` does, in the same memory."""
    if not isinstance(model, DTensor):
        return own
    return DTensor.from_local(own, model.device_mesh, model.placements, run_check=False, shape=model.shape, stride=model.stride())


def export_weights(network: torch.nn.Module, version: int, keep: bool = True) -> Weights | None:
    """What a policy over the same base needs: every weight, or the adapter's when there is one. One tensor at a time is made whole.

    A rank that only has its parts to give says `keep=False` and gets None.
    """
    tensors = trainable(network)
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    arrays = {}
    for name, tensor in tensors.items():
        found = whole(tensor.detach())
        if keep:
            arrays[name] = to_array(found)
    return Weights(version, arrays, dtypes) if keep else None


@torch.no_grad()
def import_weights(network: torch.nn.Module, weights: Weights) -> None:
    """Copy `weights` in place. Raises ValueError before any tensor is touched when one does not fit."""
    parameters = dict(network.named_parameters())
    for name, array in weights.tensors.items():
        _check_fit(parameters, name, array.shape)
    for name, array in weights.tensors.items():
        parameters[name].copy_(to_tensor(array, weights.dtypes[name]))


@torch.no_grad()
def import_tensors(network: torch.nn.Module, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy named tensors in place as they come. Raises ValueError at the first that does not fit; those before it are copied then."""
    parameters = dict(network.named_parameters())
    for name, tensor in tensors:
        _check_fit(parameters, name, tuple(tensor.shape))
        parameters[name].copy_(tensor)


def _check_fit(parameters: dict[str, torch.nn.Parameter], name: str, shape: tuple[int, ...]) -> None:
    if name not in parameters:
        raise ValueError(f"weights: {name!r} is not a parameter of this model; sampler and learner differ")
    if tuple(parameters[name].shape) != shape:
        raise ValueError(f"weights: {name!r} has shape {shape}, the model's is {tuple(parameters[name].shape)}")


def gather(network: torch.nn.Module, keep: bool) -> dict[str, torch.Tensor]:
    """Every parameter that an export needs, whole, in host memory: all, or the adapter's. Ranks that do not `keep` them get none."""
    wanted = trainable(network) if isinstance(network, PeftModel) else dict(network.named_parameters())
    found = {}
    for name, tensor in wanted.items():
        gathered = whole(tensor.detach())
        if keep:
            found[name] = gathered.to("cpu", copy=True)
    return found
