"""One optimizer step of the learner on one GPU, beside TRL's GRPO trainer and plain transformers on the same sequences.

Two records per model: `learner` (mixed lengths, the three side by side) and `learner_mfu` (equal lengths, as a share of what the card's
tensor cores could do, with a breakdown of the GPU's time). Random weights in the shape of Qwen3. `./assay bench learner` needs a GPU and
TRL beside our own requirements (pip install trl==1.16.0); without Django: `python -m benchmarks.learner`. `--tiny` runs on a CPU and
keeps nothing.
"""

import argparse
import gc
import importlib.util
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from benchmarks.record import publish, record

# Dense bfloat16 of an H100 or H200, by their data sheet.
PEAK_FLOPS = 989e12


@dataclass(frozen=True)
class Shape:
    """A Qwen3 model: 16 query heads, 8 of keys and values, 128 wide each, tied embeddings."""

    name: str
    hidden: int
    intermediate: int
    layers: int = 28
    vocabulary: int = 151_936
    heads: int = 16
    head_size: int = 128

    @property
    def parameters(self) -> int:
        """Those that a token is multiplied with: the output layer counts, the embedding does not."""
        attention = self.hidden * self.head_size * (2 * self.heads + self.heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate) + self.vocabulary * self.hidden

    def flops(self, lengths: list[int]) -> float:
        """Of one step over sequences of those lengths: 6 N a token, and causal attention forward and backward."""
        attention = 6 * self.layers * self.heads * self.head_size * sum(length**2 for length in lengths)
        return 6.0 * self.parameters * sum(lengths) + attention


@dataclass(frozen=True)
class Size:
    """`mixed` sequences of `mean` tokens, the longest `longest`; `uniform` are (sequences, tokens each)."""

    shapes: tuple[Shape, ...] = (Shape("0.6 B", 1024, 3072), Shape("1.7 B", 2048, 6144))
    mixed: int = 16
    mean: int = 2048
    longest: int = 16_384
    uniform: tuple[tuple[int, int], ...] = ((8, 2048), (1, 16_384))
    micro_batch_tokens: int = 32_768
    repetitions: int = 5
    peer_repetitions: int = 2
    dtype: str = "bfloat16"
    compile: bool = True


TINY = Size(
    shapes=(Shape("tiny", 32, 64, layers=2, vocabulary=300, heads=4, head_size=8),),
    mixed=4,
    mean=24,
    longest=48,
    uniform=((2, 16),),
    micro_batch_tokens=64,
    repetitions=1,
    peer_repetitions=1,
    dtype="float32",
    compile=False,
)


@dataclass(frozen=True)
class Measured:
    """Seconds of each step, and the most bytes that tensors took during one; None where there is no GPU."""

    seconds: list[float]
    peak_bytes: int | None

    def of(self, tokens: int) -> dict:
        """The same per second, for a batch of `tokens`."""
        peak = None if self.peak_bytes is None else round(self.peak_bytes / 2**30, 1)
        rates = [round(tokens / seconds) for seconds in self.seconds]
        return {"tokens_per_s": round(statistics.median(rates)), "peak_gib": peak, "spread": rates}


def main(arguments: list[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.learner")
    parser.add_argument("--tiny", action="store_true", help="a small model on whatever is here; nothing is kept")
    if parser.parse_args(arguments).tiny:
        for found in measure(TINY):
            print(json.dumps(found))
        return
    if why := why_not():
        sys.exit(f"assay: bench learner measures updates on a GPU: {why}; nothing was measured, no record was written")
    for found in measure(Size()):
        publish(found)


def why_not() -> str:
    """What this machine lacks; empty where nothing is missing."""
    import torch

    if not torch.cuda.is_available():
        return "torch finds no GPU on this machine"
    return "" if importlib.util.find_spec("trl") else "its peer TRL is not installed; pip install trl==1.16.0"


def measure(size: Size) -> Iterator[dict]:
    """Targets: 1.5 times TRL's tokens a second in no more memory; MFU 0.35 at 8 × 2,048 and 0.40 at 1 × 16,384."""
    for shape in size.shapes:
        yield equal_lengths(shape, size)
        yield mixed_lengths(shape, size)


# ---------------------------------------------------------------- what is learned from
def mixed_batch(size: Size) -> list[int]:
    """Lengths with that mean, one of them the longest; drawn once for all sides."""
    drawn = np.random.default_rng(0).lognormal(0.0, 0.7, size.mixed - 1)
    rest = size.mixed * size.mean - size.longest
    return [size.longest, *(max(8, int(part)) for part in drawn / drawn.sum() * rest)]


def sequences_of(lengths: list[int], vocabulary: int) -> list:
    """Random tokens; the first quarter, at most 256, is the prompt. Nothing is shared, so that all sides compute the same."""
    from runner.methods.base import TrainingSequence

    generator, made = np.random.default_rng(1), []
    loss_tokens = sum(length - prompt_of(length) for length in lengths)
    for number, length in enumerate(lengths):
        mask = np.arange(length) >= prompt_of(length)
        columns = {
            "sampler_logprob": np.full(length, -np.log(vocabulary), np.float32),
            "advantage": np.full(length, 1.0 if number % 2 else -1.0, np.float32),
        }
        tokens = generator.integers(3, vocabulary, length).astype(np.int32)
        made.append(TrainingSequence(tokens, mask, (mask / loss_tokens).astype(np.float32), columns))
    return made


def prompt_of(length: int) -> int:
    return max(1, min(256, length // 4))


# ---------------------------------------------------------------- the sides
def config_of(shape: Shape, longest: int):
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads // 2,
        head_dim=shape.head_size,
        max_position_embeddings=max(longest, 1024),
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )


def random_model(shape: Shape, size: Size, attention: str):
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(place()):
        config = config_of(shape, size.longest)
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, size.dtype), attn_implementation=attention).eval()


def place() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


@contextmanager
def ours(shape: Shape, size: Size, sequences: list, checkpoint: bool, ranks=None) -> Iterator[Callable[[], object]]:
    """The step that a run makes, given what it learns from; with `ranks` this process's part of it."""
    from runner.contract.run_config import GrpoStage, LearnerSettings, Optimizer
    from runner.learning.acceleration import accelerate
    from runner.learning.optimizer import MasterAdamW
    from runner.learning.ranks import ALONE
    from runner.learning.trainer import update
    from runner.learning.weights import trainable
    from runner.methods.grpo import Grpo
    from runner.models.attention import PACKED_SDPA

    network = random_model(shape, size, PACKED_SDPA)
    accelerate(network, LearnerSettings(compile=size.compile, checkpoint_activations=checkpoint))
    ranks = ranks or ALONE
    ranks.shard(network)
    optimizer = MasterAdamW(trainable(network), Optimizer(learning_rate=1e-6))
    method = Grpo(GrpoStage(), seed=0, vocabulary=shape.vocabulary)
    yield lambda: update(network, optimizer, sequences, method, 1e-6, size.micro_batch_tokens, ranks=ranks)


@contextmanager
def plain(shape: Shape, size: Size, sequences: list, checkpoint: bool) -> Iterator[Callable[[], object]]:
    """transformers alone, a sequence at a time, which wastes nothing on padding; whole logits, weights and moments in one precision."""
    import torch

    network = random_model(shape, size, "sdpa").train()
    if checkpoint:
        network.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-6, weight_decay=0.0, fused=True)

    def step() -> None:
        for item in sequences:
            ids = torch.as_tensor(item.token_ids, dtype=torch.long, device=place())
            prompt = int(item.mask.argmax())
            logits = network(ids[None], use_cache=False).logits[0, prompt - 1 : -1].float()
            logprob = torch.log_softmax(logits, -1).gather(-1, ids[prompt:, None])[:, 0]
            change = (logprob - float(item.columns["sampler_logprob"][0])).exp()
            (-change * float(item.columns["advantage"][0]) * float(item.weight[-1])).sum().backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    yield step


def steps_of(side, repetitions: int) -> Measured:
    """The first step, which compiles and allocates, is not counted."""
    measured = timed(side, repetitions)
    free()
    return measured


def timed(side, repetitions: int) -> Measured:
    import torch

    with side as step:
        step()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        seconds = [seconds_of(step) for _ in range(repetitions)]
    return Measured(seconds, torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None)


def seconds_of(step: Callable[[], object]) -> float:
    import torch

    start = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def free() -> None:
    """What a side leaves on the card would count against the next."""
    import torch

    gc.collect()
    torch.cuda.empty_cache()


# ---------------------------------------------------------------- mixed lengths
def mixed_lengths(shape: Shape, size: Size) -> dict:
    lengths = mixed_batch(size)
    sequences, tokens = sequences_of(lengths, shape.vocabulary), sum(lengths)
    found = steps_of(ours(shape, size, sequences, True), size.repetitions).of(tokens)
    also = {
        "ours": found,
        "ours_mfu": share_of_peak(shape, lengths, found),
        "ours_without_checkpointing": steps_of(ours(shape, size, sequences, False), size.repetitions).of(tokens),
        "plain_transformers": steps_of(plain(shape, size, sequences, True), size.peer_repetitions).of(tokens),
        "trl": trl(shape, size, sequences),
    }
    settings = {
        **about(shape, size),
        "lengths": lengths,
        "activation_checkpointing": True,
        "peer": "TRL's GRPO trainer: bf16 weights and moments, fused loss, largest micro-batch that fits; it pads every row to the longest",
        "ours": "packed rows, bf16 weights, fp32 masters and moments",
        "target": "1.5 times the peer in no more memory",
    }
    return record("learner", found["tokens_per_s"], also["trl"].get("tokens_per_s"), "non-padding tokens/s", settings, also)


def trl(shape: Shape, size: Size, sequences: list) -> dict:
    if importlib.util.find_spec("trl") is None:
        return {"left_out": "trl is not installed"}
    from benchmarks import trl_learner

    # In a process of its own: its layer kernels replace those of every model of the kind, ours included.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
        asked = config_of(shape, size.longest), sequences, size.dtype, size.peer_repetitions
        seconds, most, settings = apart.submit(trl_learner.steps, *asked).result()
    return {**Measured(seconds, most).of(sum(len(item.token_ids) for item in sequences)), **settings}


def about(shape: Shape, size: Size) -> dict:
    from benchmarks.rollout import device

    return {
        "model": f"random Qwen3 shape, {shape.name}",
        "dtype": size.dtype,
        "micro_batch_tokens": size.micro_batch_tokens,
        "compile": size.compile,
        "repetitions": size.repetitions,
        "peer_repetitions": size.peer_repetitions,
        "device": device(),
    }


# ---------------------------------------------------------------- equal lengths
def equal_lengths(shape: Shape, size: Size) -> dict:
    found = {}
    for count, length in size.uniform:
        lengths = [length] * count
        sequences = sequences_of(lengths, shape.vocabulary)
        rates = steps_of(ours(shape, size, sequences, False), size.repetitions).of(sum(lengths))
        parts = breakdown(ours(shape, size, sequences, False))
        found[f"{count} x {length}"] = {**rates, "mfu": share_of_peak(shape, lengths, rates), "gpu_ms": parts}
    settings = {
        **about(shape, size),
        "peak_flops": PEAK_FLOPS,
        "flops": "6 N with the output layer, and causal attention",
        "activation_checkpointing": False,
        "target": "MFU 0.35 at 8 x 2048 and 0.40 at 1 x 16384",
    }
    return record("learner_mfu", next(iter(found.values()))["mfu"], None, "share of the peak", settings, found)


def share_of_peak(shape: Shape, lengths: list[int], rates: dict) -> float:
    return round(shape.flops(lengths) / sum(lengths) * rates["tokens_per_s"] / PEAK_FLOPS, 4)


# A kernel belongs to the first kind one of whose words its name holds.
KINDS = {
    "communication": ("nccl",),
    "attention": ("flash", "fmha", "sdpa", "cudnn"),
    "vocabulary": ("_normalise", "_slope"),
    "matrix products": ("gemm", "nvjet", "cutlass", "splitk"),
    "optimizer": ("adam", "multi_tensor", "foreach"),
    "compiled": ("triton",),
}


def breakdown(side) -> dict[str, float]:
    """Milliseconds of GPU time of one step by kind of kernel, and of the step in all; empty without a GPU."""
    import torch

    parts = profiled(side) if torch.cuda.is_available() else {}
    free()
    return parts


def profiled(side) -> dict[str, float]:
    from torch.profiler import ProfilerActivity, profile

    with side as step:
        seconds_of(step)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            whole = seconds_of(step)
    return by_kind({event.key: event.self_device_time_total / 1e3 for event in profiler.key_averages()}, whole * 1e3)


def by_kind(kernels: dict[str, float], whole: float) -> dict[str, float]:
    """Milliseconds by kind from those by kernel name."""
    found = dict.fromkeys([*KINDS, "other"], 0.0)
    for name, spent in kernels.items():
        kind = next((kind for kind, words in KINDS.items() if any(word in name.lower() for word in words)), "other")
        found[kind] += spent
    return {**{kind: round(spent, 2) for kind, spent in found.items()}, "step": round(whole, 2)}


if __name__ == "__main__":
    main(sys.argv[1:])
