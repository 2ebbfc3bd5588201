"""What makes an update faster or smaller without changing what is computed: layers compiled, activations computed again."""

from functools import partial

import torch
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from runner.contract.run_config import LearnerSettings
from runner.models.attention import PACKED_SDPA, packed_sdpa
from runner.models.loading import ModelError, backbone


def accelerate(network: torch.nn.Module, settings: LearnerSettings, backend: str = "inductor") -> None:
    """Apply `settings` to the decoder's layers. Raises ModelError when the model has no list of layers.

    One compilation serves all layers and all lengths of rows. Attention is left out of it: its kernels take each row's layout.
    """
    if not (settings.compile or settings.checkpoint_activations):
        return
    layers = getattr(backbone(network), "layers", None)
    if layers is None:
        raise ModelError(
            f"learner: {type(network).__name__} keeps no list of layers to work on; turn compile and checkpoint_activations off"
        )
    if settings.compile:
        AttentionInterface.register(PACKED_SDPA, torch.compiler.disable(packed_sdpa))
    for layer in layers:
        if settings.compile:
            layer.forward = torch.compile(layer.forward, dynamic=True, backend=backend)
        if settings.checkpoint_activations:
            # No dropout is ever on, so no random state needs to be kept.
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
