"""Weights on their way from the learner to a policy: named trainable tensors as numpy arrays."""

import numpy as np
import torch

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


def export_weights(network: torch.nn.Module, version: int) -> Weights:
    """What a policy over the same base needs: every weight, or the adapter's when there is one."""
    tensors = trainable(network)
    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in tensors.items()}
    return Weights(version, {name: to_array(tensor) for name, tensor in tensors.items()}, dtypes)


@torch.no_grad()
def import_weights(network: torch.nn.Module, weights: Weights) -> None:
    """Copy `weights` in place. Raises ValueError before any tensor is touched when one does not fit."""
    parameters = dict(network.named_parameters())
    for name, array in weights.tensors.items():
        if name not in parameters:
            raise ValueError(f"weights: {name!r} is not a parameter of this model; sampler and learner differ")
        if tuple(parameters[name].shape) != array.shape:
            raise ValueError(f"weights: {name!r} has shape {array.shape}, the model's is {tuple(parameters[name].shape)}")
    for name, array in weights.tensors.items():
        parameters[name].copy_(to_tensor(array, weights.dtypes[name]))
