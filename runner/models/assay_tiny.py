"""assay-tiny: a Qwen3-shaped model of about a million weights and its own tokenizer, built on the spot.

The tokenizer is a byte-level BPE trained on the bank's text, so that its words and figures are single tokens and prompts stay
short. Nothing is downloaded.

The weights are random, a function of the seed, but for where attention looks at the start. Every pretrained language model has
heads that look at the token before, and heads that look at tokens like the current one; together they read a list. Random
weights form them only after some ten times the training that the sample run has time for. So they are built in, by choice of
the query and key projections alone; what a head does with what it looks at is left to learn:
  layer 0, head 0   attends one token back. It needs queries and keys that say where, not what: one embedding feature is the
                    same for every token, both read it alone, and the fastest rotary pairs turn it into a position.
  every other head  has equal query and key projections on the slow rotary pairs, so like attends to like at any distance.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from runner.contract.bank import Demonstration, Task, read_bank
from runner.contract.repair import RepairPayload
from runner.environments.choice import prompt_messages, read_payload

REVISION = "assay-tiny-2"
VOCABULARY = 4096
CONTEXT = 2048
SCALE = 0.02
ROTARY_BASE = 10_000.0
# Rotary pairs that turn fast enough to tell neighbours apart, and those too fast to be the same at any distance.
POSITION_PAIRS = 3
FAST_PAIRS = 6
# How sharply layer 0 attends at the start: the gain of both query and key norm.
SHARPNESS = 2.2
END, USER, ASSISTANT, SYSTEM = "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"
PAD = "<|pad|>"

# One token an option label ("\nB."), one a word with the blank before it; figures and formulas such as 1.6e-19 or mv²/2 stay whole.
_PIECES = r"\n+[A-Z]\.| ?[\p{L}\p{N}²√π/](?:[\p{L}\p{N}²√π/.\-]*[\p{L}\p{N}²√π/])?| ?[^\s\p{L}\p{N}]+|\s+"

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def ensure(cache: Path, bank: bytes, seed: int) -> Path:
    """The model's folder in `cache`, built when it is not there yet. Raises InvalidBank when `bank` is no bank file."""
    tasks, demonstrations, digest = read_bank(bank)
    folder = cache / f"{REVISION}-{digest[:16]}-{seed}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".assay-tiny-") as scratch:
        partial = Path(scratch) / "model"
        build(partial, texts(tasks, demonstrations), seed)
        try:
            os.rename(partial, folder)
        except OSError:
            # Another process built the same one meanwhile.
            if not folder.is_dir():
                raise
    return folder


def texts(tasks: Sequence[Task], demonstrations: Sequence[Demonstration]) -> Iterator[str]:
    """What the tokenizer learns from: training prompts and demonstrations, never a held-out question."""
    for task in tasks:
        if task.split == "train":
            yield from _shown(task)
    for demonstration in demonstrations:
        yield f"{''.join(demonstration.history)}{demonstration.prompt or ''}{demonstration.completion}"


def _shown(task: Task) -> Iterable[str]:
    if "variation" in task.payload:
        # A simulator's variation: its words are the simulator's, and stand in the demonstrations.
        return ()
    if "task_digest" not in task.payload:
        return (message["content"] for message in prompt_messages(read_payload(task)))
    from runner.environments import repair_menu

    return repair_menu.texts(RepairPayload.model_validate(task.payload))


def build(folder: Path, corpus: Iterator[str], seed: int) -> None:
    """Write config, weights and tokenizer to `folder`."""
    tokenizer = train_tokenizer(corpus)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Qwen3ForCausalLM(configuration(tokenizer))
        aim_attention(network)
    network.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def aim_attention(network: Qwen3ForCausalLM) -> None:
    """Give every head its first direction of sight; see above."""
    width, size = network.config.hidden_size, network.config.head_dim
    network.model.embed_tokens.weight[:, 0] = 0.5 * SCALE * width**0.5
    for number, layer in enumerate(network.model.layers):
        attention = layer.self_attn
        queries, keys = (projection.weight.view(-1, size, width) for projection in (attention.q_proj, attention.k_proj))
        for head in range(len(queries)):
            if number == head == 0:
                _look_back(queries[head], keys[head])
            else:
                _look_for_likes(queries[head], keys[head])
    first = network.model.layers[0].self_attn
    first.q_norm.weight.fill_(SHARPNESS)
    first.k_norm.weight.fill_(SHARPNESS)


def _look_back(query: torch.Tensor, key: torch.Tensor) -> None:
    """query and key [size, width]: score(distance) = Σ cos(fᵢ·(distance − 1)) over the fast rotary pairs, greatest at distance 1."""
    half = len(query) // 2
    speeds = ROTARY_BASE ** (-torch.arange(POSITION_PAIRS) / half)
    for projection in (query, key):
        projection *= 0.1
    query[:POSITION_PAIRS, 0] += 0.3
    key[:POSITION_PAIRS, 0] += 0.3 * speeds.cos()
    key[half : half + POSITION_PAIRS, 0] += 0.3 * speeds.sin()


def _look_for_likes(query: torch.Tensor, key: torch.Tensor) -> None:
    """query and key [size, width] become the same orthonormal rows, scaled; the constant feature and the fast pairs are left out."""
    size, width = query.shape
    rows = torch.linalg.qr(torch.randn(width, size))[0].T * SCALE * width**0.5
    rows[:, 0] = 0
    for start in (0, size // 2):
        rows[start : start + FAST_PAIRS] = 0
    query.copy_(rows)
    key.copy_(rows)


def configuration(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """Four layers of width 128; the embedding is tied to the output."""
    return Qwen3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        initializer_range=SCALE,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )


def train_tokenizer(corpus: Iterator[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of at most VOCABULARY tokens: any text is encoded, and decoded to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_PIECES), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True, normalized=False) for text in (PAD, END, USER, ASSISTANT, SYSTEM)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        corpus, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False)
    fast.chat_template = CHAT_TEMPLATE
    return fast
