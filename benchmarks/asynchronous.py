"""Asynchronous GRPO with one GPU for vLLM and one for the learner: a whole run of the runner, as its spool tells it.

One record per model, `asynchronous`: what a step took and where it went, the way of the weights, staleness beside its bound. Random
weights in the shape of Qwen3, real questions: its answers earn nothing, but cost what any answers do. `--bank FILE` comes from
`python -m runner.importers sciknoweval --out FILE`. Needs two GPUs and vLLM: `python -m benchmarks.asynchronous --bank FILE --out DIR`.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks import learner
from benchmarks.learner import Shape, Size
from benchmarks.prove import _laboratory as laboratory
from benchmarks.record import publish, record
from benchmarks.scaling import gpus_here

CHECKOUT = Path(__file__).parents[1]
WARMUP = 5
VOCABULARY = 16_384
KEPT = ("timing_s/", "staleness/", "perf/", "weight_sync/", "rollout_corr/k3_kl", "rollout_corr/rollout_is_eff_sample_size", "actor/grad_norm", "response_length/mean")
DOCUMENT = {
    "model": {"dtype": "bfloat16", "max_length": 4096},
    "environment": {"type": "sciknoweval", "train_limit": 6400},
    "sampling": {"max_new_tokens": 128},
    "evaluation": {"type": "none"},
    "engine": {"type": "vllm", "memory_fraction": 0.6, "max_sequences": 512},
    "learner": {"compile": True},
    "resources": {"gpus": 2, "rollout_workers": 1, "worker_cpus": 1.0, "learner_cpus": 1.0, "worker_threads": 4, "learner_threads": 4},
}
STAGE = {
    "type": "grpo",
    "batch_size": 512,
    "group_size": 8,
    "micro_batch_tokens": 32_768,
    "max_staleness": 1,
    # Nothing is earned, and the learner shall learn all the same.
    "filters": {"zero_advantage": "monitor", "gibberish": "monitor", "repetition": "monitor"},
    "optimizer": {"learning_rate": 1e-6},
}


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.asynchronous")
    parser.add_argument("--bank", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the runs' folder")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--shapes", nargs="*", default=[shape.name for shape in Size().shapes], help="such as '0.6 B'")
    asked = parser.parse_args(arguments)
    if (gpus := gpus_here()) < 2:
        sys.exit(f"assay: bench asynchronous wants two GPUs, torch finds {gpus}; nothing was measured, no record was written")
    for shape in Size().shapes:
        if shape.name in asked.shapes:
            publish(measure(replace(shape, vocabulary=VOCABULARY), asked.bank, asked.out / shape.name.replace(" ", ""), asked.steps))


def measure(shape: Shape, bank: Path, out: Path, steps: int) -> dict:
    """Raises SystemExit with the end of its output when the run fails."""
    from benchmarks.prove.scienceworld_learning import outcome_of, start

    # In a process of its own: what it leaves on a GPU would refuse the run.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
        apart.submit(save, shape, bank, out / "model").result()
    source = {"source": {"type": "path", "path": str((out / "model").resolve())}}
    document = {**DOCUMENT, "name": f"asynchronous, {shape.name}", "model": {**DOCUMENT["model"], **source}, "stages": [{**STAGE, "steps": steps}]}
    with cluster():
        start(out, document, bank.resolve()).wait()
    if (outcome := outcome_of(out)) != "succeeded":
        sys.exit(f"the run ended {outcome}: {(out / 'output.log').read_text()[-4000:]}")
    return summary(shape, out, document)


@contextmanager
def cluster() -> Iterator[None]:
    """A Ray of this machine's own with every GPU, whose address the run finds."""
    import ray

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    ray.init(num_cpus=8, include_dashboard=False, configure_logging=False, log_to_driver=False)
    os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    try:
        yield
    finally:
        ray.shutdown()


def save(shape: Shape, bank: Path, folder: Path) -> None:
    """Random weights, and a tokenizer of the bank's own words."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedTokenizerFast

    from runner.contract.bank import read_bank

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<begin>", "<end>", "<pad>"]
    texts = (json.dumps(task.payload, ensure_ascii=False) for task in read_bank(bank.read_bytes())[0])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<begin>", eos_token="<end>", pad_token="<pad>")
    fast.chat_template = "{% for m in messages %}<begin>{{ m.content }}<end>{% endfor %}{% if add_generation_prompt %}<begin>{% endif %}"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    with torch.device(learner.place()):
        model = AutoModelForCausalLM.from_config(learner.config_of(shape, DOCUMENT["model"]["max_length"]), dtype=torch.bfloat16)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    model.save_pretrained(folder)


def summary(shape: Shape, out: Path, document: dict) -> dict:
    curves = laboratory.read(out, KEPT).curves
    curves = {name: [value for step, value in sorted(points.items()) if step > WARMUP] for name, points in curves.items()}
    middle = {name: round(statistics.median(values), 4) for name, values in curves.items() if values}
    step, bytes_sent = middle["timing_s/step"], 2 * (shape.parameters)
    also = {
        "median": middle,
        "most": {name: max(curves[name]) for name in ("timing_s/weight_transfer", "timing_s/sync", "staleness/max")},
        "waiting_share": round(middle["timing_s/wait"] / step, 3),
        "tokens_per_s": round(middle["perf/total_num_tokens"] / step),
        "learner_tokens_per_s": round(middle["perf/total_num_tokens"] / middle["timing_s/learn"]),
        "transfer_gb_per_s": round(bytes_sent / middle["timing_s/weight_transfer"] / 1e9, 2),
        "bytes": bytes_sent,
    }
    settings = {"document": document, "model": f"random Qwen3 shape, {shape.name} without its embedding of 152 k", "warmup_steps": WARMUP}
    return record("asynchronous", step, None, "s a step", settings, also, lower_is_better=True)


if __name__ == "__main__":
    main(sys.argv[1:])
