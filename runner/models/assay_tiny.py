"""assay-tiny: a Qwen3-shaped model of about a million weights and its own tokenizer, built on the spot.

The tokenizer is a byte-level BPE trained on the bank's text, so that its words and figures are single tokens and prompts stay
short. Nothing is downloaded.

The weights are random, a function of the seed, but for where attention looks at the start: see `aimed_heads`.

There are two makes. `assay-tiny` answers by letter; `assay-tiny-3` by number as well: a line's number is one token, a name is the same
token in a list as in a sentence, and its heads are aimed at numbered lists.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from runner.contract.bank import Demonstration, Task, read_bank
from runner.contract.builtin_models import BUILTIN_MODELS
from runner.contract.repair import RepairPayload
from runner.environments.choice import prompt_messages, read_payload
from runner.models.aimed_heads import ROTARY_BASE, SCALE, aim_reading, aim_sight

VOCABULARY = 4096
CONTEXT = 2048
END, USER, ASSISTANT, SYSTEM = "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"
PAD = "<|pad|>"

# One token an option label ("\nB."), one a word with the blank before it; figures and formulas such as 1.6e-19 or mv²/2 stay whole.
_LABEL, _WORDS, _BLANKS = r"\n+[A-Z]\.", r" ?[\p{L}\p{N}²√π/](?:[\p{L}\p{N}²√π/.\-]*[\p{L}\p{N}²√π/])?| ?[^\s\p{L}\p{N}]+", r"\s+"
# A line's number is one token too ("\n2."), and of several blanks the last goes with the word, so that an indented name is the same token.
_NUMBER, _BLANKS_BEFORE = r"\n+\d+\.", r"\s+(?!\S)"
MOST_NUMBERED = 50


@dataclass(frozen=True)
class Make:
    """How a built-in model is made: `pieces` is what the tokenizer splits text into, a regular expression."""

    revision: str
    pieces: str
    reads_lists: bool = False


MAKES = {
    "assay-tiny": Make(BUILTIN_MODELS["assay-tiny"].revision, "|".join((_LABEL, _WORDS, _BLANKS))),
    "assay-tiny-3": Make(
        BUILTIN_MODELS["assay-tiny-3"].revision, "|".join((_LABEL, _NUMBER, _WORDS, _BLANKS_BEFORE, _BLANKS)), reads_lists=True
    ),
}

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def ensure(cache: Path, bank: bytes, seed: int, name: str = "assay-tiny") -> Path:
    """The folder of the model `name` in `cache`, built when it is not there yet. Raises InvalidBank when `bank` is no bank file."""
    tasks, demonstrations, digest = read_bank(bank)
    make = MAKES[name]
    folder = cache / f"{make.revision}-{digest[:16]}-{seed}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".assay-tiny-") as scratch:
        partial = Path(scratch) / "model"
        build(partial, texts(tasks, demonstrations), seed, make)
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


def build(folder: Path, corpus: Iterator[str], seed: int, make: Make) -> None:
    """Write config, weights and tokenizer to `folder`."""
    tokenizer = train_tokenizer(corpus, make.pieces)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Qwen3ForCausalLM(configuration(tokenizer))
        aim_sight(network)
        if make.reads_lists:
            aim_reading(network, numbers(tokenizer))
    network.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def numbers(tokenizer: PreTrainedTokenizerFast) -> list[tuple[int, int]]:
    """Token ids of ("\\n2.", "2") for every number up to MOST_NUMBERED that is one token in both places."""
    pairs = ((tokenizer.encode(f"\n{number}."), tokenizer.encode(str(number))) for number in range(1, MOST_NUMBERED + 1))
    return [(line[0], answer[0]) for line, answer in pairs if len(line) == len(answer) == 1]


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


def train_tokenizer(corpus: Iterator[str], pieces: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE of at most VOCABULARY tokens: any text is encoded, and decoded to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pieces), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
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
