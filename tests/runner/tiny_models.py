"""Tiny random models with their own tokenizer, saved as Hugging Face folders."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TEXT = ["water boils at 100 degrees", "the answer is B", "iron is a metal", "which planet is largest? A) Mars B) Jupiter", "A B C D"]
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"


def tiny_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most 300 tokens: 0 pads, 1 starts, 2 ends."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token="<|im_start|>")
    fast.chat_template = template
    return fast


def save_tiny(folder: Path, kind: str = "qwen3", seed: int = 0, **changes) -> Path:
    """A random two-layer model of `kind` in `folder`. Its weights are large enough that its tokens differ in probability."""
    config_type, model_type = {"qwen3": (Qwen3Config, Qwen3ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}[kind]
    extra = {"head_dim": 8} if kind == "qwen3" else {}
    settings = {**SHAPE, **extra, "vocab_size": 300, "tie_word_embeddings": True, "initializer_range": 0.15, **changes}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = model_type(config_type(bos_token_id=1, eos_token_id=2, pad_token_id=0, **settings))
    model.generation_config = GenerationConfig(eos_token_id=2, pad_token_id=0, bos_token_id=1)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
