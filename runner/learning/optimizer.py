"""AdamW over named parameters, with float32 masters when the model is kept in lower precision."""

import math

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from runner.contract.run_config import Optimizer as OptimizerConfig
from runner.learning.weights import as_part, own_part, part_of, whole


def learning_rate(config: OptimizerConfig, step: int, total: int) -> float:
    """The rate of the stage's step `step`, counted from 0, of `total`.

    Warm-up rises by 1/warmup_steps a step to the peak; linear and cosine then fall so that step `total` would be 0.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, total - config.warmup_steps)
    factor = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}[config.schedule]
    return config.learning_rate * max(0.0, factor)


class MasterAdamW:
    """Clip by global norm, then AdamW. Weight decay applies to matrices, not to norms and biases.

    A bfloat16 weight rounds away updates below 1/256 of its size, so such parameters have a float32 master that
    gradients are summed into and updates applied to; the model holds its rounding. Where ranks hold a part of every
    parameter, such masters are this rank's parts as plain tensors: each operation on a DTensor costs the processor some
    0.1 ms, which over hundreds of parameters is more than the update itself.
    """

    def __init__(self, parameters: dict[str, Parameter], config: OptimizerConfig):
        self.config = config
        self.parameters = parameters
        first = next(iter(parameters.values()))
        in_parts = all(isinstance(one, DTensor) and one.dtype is not torch.float32 for one in parameters.values())
        self._group = first.device_mesh.get_group() if in_parts else None
        self.masters = {name: self._master(parameter) for name, parameter in parameters.items()}
        matrices = [master for master in self.masters.values() if master.ndim > 1]
        vectors = [master for master in self.masters.values() if master.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.epsilon,
            fused=True,
        )

    def _master(self, parameter: Parameter) -> Parameter:
        if parameter.dtype is torch.float32:
            return parameter
        return Parameter(self._held(parameter.detach()).float())

    def _held(self, tensor: Tensor) -> Tensor:
        """What masters are kept of: this rank's part where they are parts."""
        return own_part(tensor) if self._group else tensor

    def collect(self) -> None:
        """Add the gradients of one backward pass to the masters; call after each micro-batch."""
        for name, parameter in self.parameters.items():
            master = self.masters[name]
            if master is parameter or parameter.grad is None:
                continue
            gradient = self._held(parameter.grad).float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            parameter.grad = None

    def step(self, rate: float) -> tuple[float, bool]:
        """(global gradient norm before clipping, whether the update was made). Not made when the norm is not finite."""
        norm = self._norm([master.grad for master in self.masters.values() if master.grad is not None])
        finite = bool(torch.isfinite(norm))
        if finite:
            torch.nn.utils.clip_grads_with_norm_(self.masters.values(), self.config.max_grad_norm, norm)
            for group in self._adamw.param_groups:
                group["lr"] = rate
            self._adamw.step()
            self._publish()
        self._adamw.zero_grad(set_to_none=True)
        return float(norm), finite

    def _norm(self, gradients: list[Tensor]) -> Tensor:
        norm = whole(torch.nn.utils.get_total_norm(gradients))
        if self._group is None:
            return norm
        square = norm.square()
        dist.all_reduce(square, group=self._group)
        return square.sqrt()

    @torch.no_grad()
    def _publish(self) -> None:
        for name, parameter in self.parameters.items():
            if self.masters[name] is not parameter:
                self._held(parameter).copy_(self.masters[name])

    def state(self) -> dict:
        """Everything needed to go on, as tensors and plain values."""
        masters = {name: master.detach() for name, master in self.masters.items() if master is not self.parameters[name]}
        return {"names": self.names, "adamw": self._adamw.state_dict(), "masters": masters}

    @property
    def names(self) -> list[str]:
        """Of the parameters, in order."""
        return list(self.parameters)

    def parts(self) -> dict[str, Tensor]:
        """Masters and moments by name, of each what this process holds; whoever fills these tensors changes the optimizer."""
        found = {}
        for name, master in self.masters.items():
            parameter = self.parameters[name]
            if master is not parameter:
                found[f"master.{name}"] = self._told(master.detach(), parameter)
            moments = self._adamw.state[master]
            if not moments:
                # What AdamW begins with, so that a checkpoint has the same tensors before the first step.
                zeros = {key: torch.zeros_like(master, requires_grad=False) for key in ("exp_avg", "exp_avg_sq")}
                moments.update(step=torch.zeros((), dtype=torch.float32, device=master.device), **zeros)
            found |= {f"{key}.{name}": self._told(tensor, parameter) for key, tensor in moments.items()}
        return found

    def check_names(self, names: list[str]) -> None:
        """Raises ValueError when a state of parameters `names` belongs to others than these."""
        if names != self.names:
            raise ValueError(
                "optimizer state: its parameters are not those of this model; resume with the configuration it was written under"
            )

    @torch.no_grad()
    def load_state(self, state: dict) -> None:
        """Take over what `state()` returned. Raises ValueError when it belongs to other parameters."""
        self.check_names(state["names"])
        parameters = {master: self.parameters[name] for name, master in self.masters.items()}
        order = [parameters[master] for group in self._adamw.param_groups for master in group["params"]]
        moments = {
            index: {key: self._taken(tensor, order[index]) for key, tensor in values.items()}
            for index, values in state["adamw"]["state"].items()
        }
        self._adamw.load_state_dict({**state["adamw"], "state": moments})
        for name, master in state["masters"].items():
            self.masters[name].copy_(self._taken(master, self.parameters[name]))

    def _told(self, tensor: Tensor, parameter: Parameter) -> Tensor:
        """A master or moment of `parameter` as a checkpoint of many ranks takes it."""
        return as_part(tensor, parameter) if self._group and tensor.ndim else tensor

    def _taken(self, tensor: Tensor, parameter: Parameter) -> Tensor:
        """What this process keeps of a master or moment that it was given whole."""
        return self._held(part_of(tensor, parameter)) if tensor.ndim else tensor
