"""Which share of a GPU's arithmetic an update used: model FLOPs utilisation (Chowdhery et al. 2022, appendix B)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from runner.models.loading import base_model, head

# Dense bfloat16 operations a second by the makers' data sheets; of two names that fit, the first.
PEAK_FLOPS = (
    ("B200", 2250e12),
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100", 989e12),
    ("A100", 312e12),
    ("L40S", 362e12),
)


def peak_flops(device: torch.device, dtype: torch.dtype) -> float | None:
    """Operations a second of one GPU; None where they are not known."""
    if device.type != "cuda" or dtype is not torch.bfloat16:
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_FLOPS if part in name), None)


@dataclass(frozen=True)
class Work:
    """What a model computes. `parameters` are those that a token is multiplied with: the output layer counts, the embedding does not;
    `trained` are those of them that get a gradient. `attention` is layers × heads × head size."""

    parameters: int
    trained: int
    attention: int

    @classmethod
    def of(cls, network: torch.nn.Module) -> "Work":
        base = base_model(network)
        embedding, output = base.get_input_embeddings().weight, head(network).weight
        multiplied = [item for item in network.parameters() if item.ndim == 2 and (item is not embedding or item is output)]
        config = base.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        counts = (sum(item.numel() for item in chosen) for chosen in (multiplied, [item for item in multiplied if item.requires_grad]))
        return cls(*counts, config.num_hidden_layers * config.num_attention_heads * size)

    def flops(self, lengths: Sequence[int]) -> float:
        """Of an update over sequences of `lengths` tokens: 2 a weight forward, 2 back to its input, 2 for its gradient where it is trained;
        causal attention, forward and back, is 6 · attention · length². What is computed twice counts once."""
        return (4.0 * self.parameters + 2.0 * self.trained) * sum(lengths) + 6.0 * self.attention * sum(length**2 for length in lengths)
