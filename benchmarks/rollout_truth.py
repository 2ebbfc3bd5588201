"""Sampling log-probs of the engine against the learner's on the same tokens, on the real weights of SmolLM2-135M at temperature 1.

In bfloat16 engine and learner round apart. Where the difference comes from is told by variants of both sides, each measured against the
same weights in float32: logits rounded or not, and the residual stream of the layers too. The peer is plain transformers in bfloat16.
Without Django: `python -m benchmarks.rollout_truth`.
"""

import gc
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.record import publish, record
from benchmarks.rollout import device, engine, why_not

QUESTIONS = (
    "Question: Why is the sky blue, and why are sunsets red?\nAnswer:",
    "Question: What does an enzyme do to the activation energy of a reaction?\nAnswer:",
    "Question: How do the orbits of planets differ from circles?\nAnswer:",
    "Question: Why does ice float on water?\nAnswer:",
)


def main() -> None:
    if why := why_not():
        sys.exit(f"assay: bench rollout_truth measures vLLM on a GPU: {why}; nothing was measured, no record was written")
    publish(measure())


def measure(rows: int = 64, new_tokens: int = 128) -> dict:
    """Target: a mean difference of at most 0.01 in bfloat16, or where the rest comes from."""
    from runner.models.smollm2 import convert

    gc.collect()
    folder = convert(Path(tempfile.gettempdir()) / "assay-models")
    policy = engine(folder, 1024, rows, 0.2, enforce_eager=True)
    found, tokens = compare(policy, folder, rows, new_tokens)
    settings = {
        "model": "SmolLM2-135M-Instruct",
        "rows": rows,
        "new_tokens": new_tokens,
        "tokens": tokens,
        "temperature": 1.0,
        "engine_dtype": "bfloat16",
        "device": device(),
        "peer": "plain transformers in bfloat16 on the same tokens, against the engine with logits in bfloat16",
        "target": "mean |difference| to the learner in bf16 at most 0.01, or where the rest comes from",
    }
    ours, peer = (found["against_engine"][name]["mean_abs"] for name in ("learner", "transformers"))
    return record("rollout_truth", ours, peer, "nats, mean absolute", settings, found, lower_is_better=True)


def compare(policy, folder: Path, rows: int, new_tokens: int) -> tuple[dict[str, dict[str, dict]], int]:
    """Differences by what they are taken against, and of how many tokens. The engine samples once; everybody scores these tokens."""
    from runner.models.loading import load_tokenizer
    from runner.policies.base import SamplingParams

    tokenizer = load_tokenizer(folder)
    prompts = [tokenizer.encode(QUESTIONS[row % len(QUESTIONS)]) for row in range(rows)]
    generations = policy.generate(prompts, SamplingParams(max_new_tokens=new_tokens), [(row,) for row in range(rows)])
    sequences = [[*prompt, *one.token_ids.tolist()] for prompt, one in zip(prompts, generations, strict=True)]
    sampled = np.concatenate([one.logprobs for one in generations])

    def responses(scores: Sequence[np.ndarray]) -> np.ndarray:
        return np.concatenate([score[len(prompt) :] for prompt, score in zip(prompts, scores, strict=True)])

    engines = {"engine": sampled, "engine_scored": responses(policy.score(sequences))}
    with rounded_logits():
        engines["engine_rounded_logits"] = responses(policy.score(sequences))
    learners = {name: responses(score(folder, sequences)) for name, score in LEARNERS.items()}
    exact = learners.pop("float32")
    against = dict.fromkeys(learners, engines["engine"]) | {"transformers": engines["engine_rounded_logits"]}
    return {
        "against_engine": {name: differences(learners[name] - other) for name, other in against.items()},
        "engine_against_itself": {"scored": differences(engines["engine_scored"] - sampled)},
        "against_float32": {name: differences(values - exact) for name, values in {**engines, **learners}.items()},
    }, len(sampled)


@contextmanager
def rounded_logits() -> Iterator[None]:
    """The engine's output layer as vLLM has it."""
    from runner.policies.vllm import UnquantizedEmbeddingMethod

    ours = UnquantizedEmbeddingMethod.apply
    UnquantizedEmbeddingMethod.apply = ours.general
    try:
        yield
    finally:
        UnquantizedEmbeddingMethod.apply = ours


# ---------------------------------------------------------------- who scores
def learner(dtype: str, prepare: Callable = lambda network: None) -> Callable:
    """The run's own learner."""

    def score(folder: Path, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
        from runner.contract.run_config import Model
        from runner.learning.logprobs import score_sequences
        from runner.models.loading import load_model

        network = load_model(folder, Model(dtype=dtype, max_length=1024), seed=0, device=place())
        prepare(network)
        return score_sequences(network, sequences)

    return score


def place() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def keep_residual_exact(network) -> None:
    """Add what each layer writes in float32; layers go on reading bfloat16."""
    model = network.model

    def lower(module, inputs, output):
        return tuple(one.bfloat16() for one in output) if isinstance(output, tuple) else output.bfloat16()

    model.embed_tokens.register_forward_hook(lambda module, inputs, output: output.float())
    for module in model.modules():
        if type(module).__name__.endswith(("RMSNorm", "RotaryEmbedding")):
            module.register_forward_hook(lower)


def keep_logits_exact(network) -> None:
    """An output layer in float32, apart from the embedding it is tied to."""
    import torch

    weight = network.lm_head.weight.detach().float()
    network.lm_head = torch.nn.Linear(*reversed(weight.shape), bias=False, device="meta")
    network.lm_head.weight = torch.nn.Parameter(weight, requires_grad=False)
    network.model.norm.register_forward_hook(lambda module, inputs, output: output.float())


def keep_both_exact(network) -> None:
    keep_residual_exact(network)
    keep_logits_exact(network)


def transformers(folder: Path, sequences: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """One sequence after the other, logits rounded to bfloat16 as the model gives them."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.bfloat16, attn_implementation="sdpa").to(place()).eval()
    scores = []
    for sequence in sequences:
        ids = torch.tensor([sequence], device=place())
        with torch.no_grad():
            logprobs = torch.log_softmax(network(input_ids=ids, use_cache=False).logits[0, :-1].float(), -1)
        scores.append(np.array([np.nan, *logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()], np.float32))
    return scores


LEARNERS = {
    "learner": learner("bfloat16"),
    "learner_float32_logits": learner("bfloat16", keep_logits_exact),
    "learner_float32_logits_and_residual": learner("bfloat16", keep_both_exact),
    "transformers": transformers,
    "float32": learner("float32"),
}


def differences(gap: np.ndarray) -> dict[str, float]:
    """Of log p_learner − log p_sampler, float[n]: absolute differences, the k3 estimate of KL, the effective sample size as a share."""
    return {
        "mean_abs": float(np.abs(gap).mean()),
        "p99_abs": float(np.quantile(np.abs(gap), 0.99)),
        "max_abs": float(np.abs(gap).max()),
        "k3": float((np.exp(gap) - 1 - gap).mean()),
        "ess": float(np.exp(gap).sum() ** 2 / (np.exp(2 * gap).sum() * len(gap))),
    }


if __name__ == "__main__":
    main()
