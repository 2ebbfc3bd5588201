"""A whole GRPO step on one GPU: generate, score, learn, sync, beside TRL's GRPOTrainer with vLLM in its own process.

Same model, batch and lengths on both sides: 64 prompts of 256 tokens, 8 responses of 256 tokens each, 0.49 B parameters in bfloat16, one
optimizer step. Engine and learner share this process as TRL's do. The reward is the parity of a response's sum, so that groups differ.
TRL runs first, in a process of its own, at its best settings found (in the record). Needs a GPU, vLLM and TRL. Without Django:
`python -m benchmarks.step`.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.record import publish, record
from benchmarks.rollout import MODEL, SHAPE, device, engine, never_stopping, random_tokens, save_random, why_not

TARGET = "at most 0.4 of the peer's time, floor 0.6; sync at most 0.1 s"


@dataclass(frozen=True)
class Size:
    """`prompts` prompts of `length` tokens, `group` responses of as many new ones each; the first `warmup` of `steps` compile and do not count."""

    prompts: int = 64
    group: int = 8
    length: int = 256
    steps: int = 7
    warmup: int = 2
    micro_batch_tokens: int = 16_384
    peer_micro_batch: int = 32


def main() -> None:
    if why := why_not():
        sys.exit(f"assay: bench step measures a GPU: {why}; nothing was measured, no record was written")
    size = Size()
    with tempfile.TemporaryDirectory() as folder:
        save_random(Path(folder), SHAPE)
        peer = measure_peer(Path(folder), size)
        publish(compare(measure_ours(Path(folder), size), peer, size))


def compare(ours: dict, peer: dict | None, size: Size) -> dict:
    """The record: medians of a step's seconds."""
    settings = {
        **{"model": MODEL, "dtype": "bfloat16", "device": device(), **asdict(size)},
        **{"peer": "TRL GRPOTrainer, vllm_mode colocate, gradient checkpointing", "target": TARGET},
    }
    tokens = 2 * size.prompts * size.group * size.length
    theirs = peer and statistics.median(peer["seconds"])
    also = {
        **ours,
        "tokens_per_s": round(tokens / ours["phases"]["step"]),
        "trl": peer,
        "of_peer": theirs and round(ours["phases"]["step"] / theirs, 3),
    }
    return record("step", ours["phases"]["step"], theirs, "s a step", settings, also, lower_is_better=True)


# ---------------------------------------------------------------- ours
def measure_ours(folder: Path, size: Size) -> dict:
    """Median seconds of each phase, and the largest memory of the GPU held by this process."""
    import torch

    from runner.learning.learner import Learner

    config = run_config(folder, size)
    policy = engine(folder, config.model.max_length, size.prompts * size.group, 0.4)
    learner = Learner(config, folder, device="cuda")
    learner.begin_stage(0)

    def push() -> None:
        policy.load_tensors(list(learner.network.named_parameters()), learner.completed)

    with never_stopping(policy):
        found = steps(policy, learner, push, size)
    return {**found, "learner_peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1)}


def run_config(folder: Path, size: Size, dtype: str = "bfloat16"):
    from runner.contract.parse import parse

    stage = {"type": "grpo", "steps": size.steps, "batch_size": size.prompts * size.group, "group_size": size.group}
    return parse(
        {
            "name": "step",
            "model": {"source": {"type": "path", "path": str(folder)}, "dtype": dtype, "max_length": 2 * size.length},
            "sampling": {"max_new_tokens": size.length},
            "stages": [{**stage, "micro_batch_tokens": size.micro_batch_tokens, "optimizer": {"learning_rate": 1e-6}}],
            **({"learner": {"compile": True}, "resources": {"gpus": 2}} if dtype == "bfloat16" else {}),
        }
    )


def steps(policy, learner, push: Callable[[], None], size: Size) -> dict:
    """`size.steps` steps in order; `push` hands the learner's weights to the policy."""
    spent: dict[str, list[float]] = {}
    metrics = {}
    for step in range(1, size.steps + 1):
        clock = Clock()
        prompts = [prompt for prompt in random_tokens(size.prompts, size.length, step) for _ in range(size.group)]
        generations = clock.measure("generate", lambda: generate(policy, prompts, step, size))
        samples = clock.measure("score", lambda: graded(prompts, generations, step, size))
        metrics = clock.measure("learn", lambda: learner.learn(step, samples).metrics)
        clock.measure("sync", push)
        for phase, seconds in {**clock.seconds, "step": sum(clock.seconds.values())}.items():
            spent.setdefault(phase, []).append(seconds)
    kept = ("rollout_corr/k3_kl", "rollout_corr/rollout_is_eff_sample_size", "actor/grad_norm", "critic/score/mean")
    return {
        "phases": {phase: round(statistics.median(seconds[size.warmup :]), 4) for phase, seconds in spent.items()},
        "seconds": {phase: [round(one, 4) for one in seconds] for phase, seconds in spent.items()},
        "health": {name: metrics[name] for name in kept if name in metrics},
    }


class Clock:
    """Seconds of each phase until the GPU has done it."""

    def __init__(self):
        self.seconds: dict[str, float] = {}

    def measure(self, phase: str, work: Callable):
        import torch

        start = time.perf_counter()
        found = work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds[phase] = time.perf_counter() - start
        return found


def generate(policy, prompts: Sequence[Sequence[int]], step: int, size: Size) -> list:
    from runner.policies.base import SamplingParams

    return policy.generate(prompts, SamplingParams(max_new_tokens=size.length), [(step, row) for row in range(len(prompts))])


def graded(prompts: Sequence[Sequence[int]], generations: Sequence, step: int, size: Size) -> list:
    """Episodes as the learner takes them."""
    from runner.contract.termination import Termination
    from runner.rollouts.types import Author, SampleBuilder

    samples = []
    for row, (prompt, generation) in enumerate(zip(prompts, generations, strict=True)):
        builder = SampleBuilder()
        builder.append(prompt, Author.ENVIRONMENT)
        builder.append(generation.token_ids, Author.STUDENT, generation.logprobs)
        about = {"episode": f"{step}-{row}", "task": str(row // size.group), "group": row // size.group, "index": row % size.group}
        reward = parity(generation.token_ids)
        samples.append(builder.build(**about, reward=reward, termination=Termination.FINISHED, policy_version=generation.policy_version))
    return samples


def parity(tokens: Sequence[int]) -> float:
    return float(int(np.sum(tokens)) % 2)


# ---------------------------------------------------------------- TRL
def measure_peer(folder: Path, size: Size) -> dict | None:
    """Seconds of each step that counts, and the peak of its memory; None where TRL is not installed."""
    if importlib.util.find_spec("trl") is None:
        print("the peer is left out: trl is not installed here", file=sys.stderr)
        return None
    single = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    argv = [sys.executable, "-m", "benchmarks.step", str(folder), json.dumps(asdict(size))]
    done = subprocess.run(argv, env={**os.environ, **single}, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"the peer ended with {done.returncode}: {done.stdout[-2000:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.strip().splitlines()[-1])


def peer_process(folder: str, size: Size) -> None:
    """In its own process: prints one line of JSON."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ends = []

    class Watch(TrainerCallback):
        def on_step_end(self, *arguments, **named):
            torch.cuda.synchronize()
            ends.append(time.perf_counter())

    rows = random_tokens(size.prompts * size.steps, size.length, 0)
    prompts = Dataset.from_list([{"prompt": " ".join(f"w{token}" for token in row)} for row in rows])
    arguments = GRPOConfig(**peer_settings(size), output_dir=tempfile.mkdtemp(), report_to=[], save_strategy="no", disable_tqdm=True)

    def reward(completion_ids, **_):
        return [parity(tokens) for tokens in completion_ids]

    trainer = GRPOTrainer(model=folder, reward_funcs=reward, args=arguments, train_dataset=prompts, callbacks=[Watch()])
    trainer.train()
    told = {"seconds": np.diff(ends).round(4).tolist()[size.warmup - 1 :], "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1)}
    print(
        json.dumps({**told, "settings": peer_settings(size), "log": [row for row in trainer.state.log_history if "step_time" in row][-1:]})
    )


def peer_settings(size: Size) -> dict:
    batch = size.prompts * size.group
    return {
        **{"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.4, "vllm_max_model_length": 2 * size.length + 8},
        **{"per_device_train_batch_size": size.peer_micro_batch, "gradient_accumulation_steps": batch // size.peer_micro_batch},
        **{"num_generations": size.group, "max_completion_length": size.length, "max_steps": size.steps, "logging_steps": 1},
        **{"bf16": True, "gradient_checkpointing": True, "learning_rate": 1e-6, "temperature": 1.0, "seed": 0},
        **{"model_init_kwargs": {"dtype": "bfloat16"}, "generation_kwargs": {"ignore_eos": True}},
    }


if __name__ == "__main__":
    peer_process(sys.argv[1], Size(**json.loads(sys.argv[2]))) if sys.argv[1:] else main()
