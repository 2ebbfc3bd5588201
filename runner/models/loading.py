"""From a model source to a checked Hugging Face folder, and from a folder to a model."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar

from runner.contract.run_config import BuiltinModel, CheckpointModel, HubModel, LocalModel, LoraAdapter, Model, ModelSource
from runner.models.attention import PACKED_SDPA

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Bars of several actors would interleave in the run's log.
disable_progress_bar()
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model")


class ModelError(ValueError):
    """A model source cannot be used; the message names the field, the value and the remedy."""


@dataclass(frozen=True)
class ModelFolder:
    """A checked folder with config.json, tokenizer and weights. `revision` names its content."""

    path: Path
    revision: str
    description: str


def resolve_model(
    source: ModelSource,
    *,
    cache: Path,
    bank: bytes | None = None,
    seed: int = 0,
    locate_checkpoint: Callable[[str], Path] | None = None,
) -> ModelFolder:
    """Find, build or fetch the folder of `source`. Raises ModelError.

    `bank` is the bank file that assay-tiny's tokenizer is trained on; `locate_checkpoint` maps a checkpoint's
    identifier to its `step_N` folder.
    """
    if isinstance(source, BuiltinModel):
        folder = _builtin(source, cache, bank, seed)
    elif isinstance(source, LocalModel):
        folder = ModelFolder(Path(source.path), source.revision or "", f"folder {source.path}")
    elif isinstance(source, HubModel):
        folder = _hub(source, cache)
    else:
        folder = _checkpoint(source, cache, locate_checkpoint)
    check_folder(folder.path)
    return folder


def _builtin(source: BuiltinModel, cache: Path, bank: bytes | None, seed: int) -> ModelFolder:
    if source.name == "smollm2-135m-instruct":
        from runner.models import smollm2

        return ModelFolder(smollm2.convert(cache), smollm2.REVISION, "SmolLM2-135M-Instruct")
    if bank is None:
        raise ModelError(f"model.source.name: {source.name} is built from the task bank's text; the bank's file was not given")
    from runner.models import assay_tiny

    path = assay_tiny.ensure(cache, bank, seed, source.name)
    return ModelFolder(path, path.name, f"{source.name}, built on the spot")


def _hub(source: HubModel, cache: Path) -> ModelFolder:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
    try:
        path = Path(snapshot_download(source.repo_id, revision=source.revision, cache_dir=cache / "hub", allow_patterns=wanted))
    except HfHubHTTPError as error:
        raise ModelError(f"model.source.repo_id: the hub refused {source.repo_id!r} at {source.revision or 'main'}: {error}") from error
    except (LocalEntryNotFoundError, ConnectionError, OSError) as error:
        raise ModelError(
            f"model.source.repo_id: {source.repo_id!r} is not in {cache / 'hub'} and the hub cannot be reached ({type(error).__name__}); "
            "connect the node, or download the model elsewhere and use a source of type path"
        ) from error
    return ModelFolder(path, path.name, f"{source.repo_id} at {path.name[:12]}")


def _checkpoint(source: CheckpointModel, cache: Path, locate: Callable[[str], Path] | None) -> ModelFolder:
    from runner.learning import checkpoints

    if locate is None:
        raise ModelError(f"model.source.checkpoint: {source.checkpoint!r} cannot be located here; launch through the control plane")
    path = locate(source.checkpoint)
    try:
        manifest = checkpoints.verify(path)
    except checkpoints.BrokenCheckpoint as error:
        raise ModelError(f"model.source.checkpoint: {source.checkpoint!r} is not a complete checkpoint: {error}; choose another") from error
    folder = path / "model"
    if manifest.adapter:
        folder = cache / "merged" / manifest.revision
        checkpoints.export_huggingface(path, folder)
    return ModelFolder(folder, manifest.revision, f"checkpoint {path.name}")


def check_folder(path: Path) -> None:
    """Refuse a folder that is no causal language model with tokenizer and weights. Reads headers only. Raises ModelError."""
    if not path.is_dir():
        raise ModelError(f"model.source.path: {str(path)!r} is no folder on this node; copy the model there or correct the path")
    try:
        config = json.loads((path / "config.json").read_text())
    except FileNotFoundError:
        raise ModelError(f"model.source.path: {str(path)!r} has no config.json; point at a Hugging Face model folder") from None
    except ValueError as error:
        raise ModelError(f"model.source.path: {path / 'config.json'} is not JSON ({error}); copy the folder again") from None
    architectures = config.get("architectures") or []
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if not any(name in known for name in architectures):
        raise ModelError(
            f"model.source.path: architectures {architectures} of {str(path)!r} is no causal language model; choose a …ForCausalLM model"
        )
    if not any((path / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"model.source.path: {str(path)!r} has no tokenizer ({' or '.join(_TOKENIZER_FILES)}); save the tokenizer beside the weights"
        )
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"model.source.path: {str(path)!r} has no *.safetensors weights; convert the model with save_pretrained")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The folder's tokenizer. Raises ModelError when it has no end-of-sequence token."""
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    if tokenizer.eos_token_id is None:
        raise ModelError(f"model.source: the tokenizer of {str(folder)!r} names no eos_token; set one in tokenizer_config.json")
    return tokenizer


def stop_token_ids(folder: Path) -> set[int]:
    """Tokens that end a response: those of the generation config and the tokenizer's end of sequence."""
    stops = {load_tokenizer(folder).eos_token_id}
    if (folder / "generation_config.json").is_file():
        configured = GenerationConfig.from_pretrained(str(folder), local_files_only=True).eos_token_id
        stops.update([configured] if isinstance(configured, int) else configured or [])
    return stops


def load_model(folder: Path, model: Model, *, seed: int, device: str = "cpu") -> torch.nn.Module:
    """The causal language model of `folder`, in evaluation mode, wrapped by peft when the adapter is LoRA.

    The adapter's first weights are a function of `seed`, so that sampler and learner begin equal. Raises ModelError.
    """
    _check_supported(AutoConfig.from_pretrained(str(folder), local_files_only=True), model)
    network = AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=DTYPES[model.dtype], attn_implementation=PACKED_SDPA, local_files_only=True
    ).to(device)
    _check_plain_head(network)
    if isinstance(model.adapter, LoraAdapter):
        network = _with_adapter(network, model.adapter, seed)
    return network.eval()


def _check_supported(config, model: Model) -> None:
    context = getattr(config, "max_position_embeddings", None)
    if context and model.max_length > context:
        raise ModelError(f"model.max_length: {model.max_length} exceeds the model's context of {context} tokens; lower it")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if kinds - {"full_attention", "sliding_attention"}:
        raise ModelError(f"model.source: layers of kind {sorted(kinds)} are not supported; choose a model with full attention")
    slides = "sliding_attention" in kinds or (not hasattr(config, "layer_types") and window)
    if slides and window and model.max_length > window:
        raise ModelError(
            f"model.max_length: {model.max_length} exceeds the model's sliding window of {window} tokens; lower it to {window}"
        )


def _check_plain_head(network: torch.nn.Module) -> None:
    # The learner computes logits from hidden states piece by piece, which a scaled or capped head would falsify.
    probe = torch.arange(4, device=network.device)[None]
    with torch.no_grad():
        whole = network(input_ids=probe, use_cache=False).logits
        pieces = head(network)(backbone(network)(input_ids=probe, use_cache=False).last_hidden_state)
    if not torch.allclose(whole.float(), pieces.float(), atol=1e-3, rtol=1e-3):
        raise ModelError(
            f"model.source: {type(network).__name__} transforms its logits after the output layer, which is not supported; choose another model"
        )


def _with_adapter(network: torch.nn.Module, adapter: LoraAdapter, seed: int) -> PeftModel:
    if adapter.dropout:
        raise ModelError(f"model.adapter.dropout: {adapter.dropout} would make sampler and learner disagree; set it to 0")
    targets = "all-linear" if adapter.target_modules == ["all-linear"] else adapter.target_modules
    config = LoraConfig(r=adapter.rank, lora_alpha=adapter.alpha, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return get_peft_model(network, config)
        except ValueError as error:
            raise ModelError(f"model.adapter.target_modules: {adapter.target_modules} does not fit this model: {error}") from error


def base_model(network: torch.nn.Module) -> torch.nn.Module:
    """The transformers model, with adapter layers inside when there are any."""
    return network.get_base_model() if isinstance(network, PeftModel) else network


def backbone(network: torch.nn.Module) -> torch.nn.Module:
    """The decoder: token ids to hidden states."""
    return base_model(network).base_model


def decoder(network: torch.nn.Module) -> Callable:
    """What computes hidden states: the backbone, or where weights are sharded the whole model's way to it, which gathers them."""
    return getattr(base_model(network), "decode", None) or backbone(network)


def head(network: torch.nn.Module) -> torch.nn.Linear:
    """The output layer: hidden states to logits."""
    return base_model(network).get_output_embeddings()
