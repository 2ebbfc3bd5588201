"""Generation by vLLM inside this process: batches at the engine's own speed, weights handed over without a copy.

Randomness. With a generator of its own for each request vLLM would draw row by row: one more kernel for each token of each response. So
the engine's one stream is set anew from all the seeds of a batch before the batch is generated: the same batch after the same push of
weights gives the same tokens, and no evaluation shifts the training after it. Unlike with `TransformersPolicy`, a response depends on what
shares its batch, and on what the prefix cache holds by then.
"""

import os
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from runner.contract.resources import VllmEngine
from runner.contract.run_config import Model
from runner.learning.weights import to_tensor
from runner.models.loading import stop_token_ids
from runner.policies.base import Generation, SamplingParams, Seed, Weights, score_choices

# All read when vllm is imported.
_ENVIRONMENT = {
    # The engine stays in the calling process, so a learner there hands its tensors over directly.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # FlashInfer's sampler is compiled on the node at its first call, which needs nvcc.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # A score generates one token after the longest sequence; that token is never read.
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1",
    # The run grants processors; the engine must not pin its threads to some of them.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
for _name, _value in _ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

import vllm  # noqa: E402
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod  # noqa: E402

from runner.policies.vllm_logprobs import capture_sampled_logprobs  # noqa: E402


class VllmPolicy:
    """The student as a vLLM engine. See `Policy` for the methods; `options` are vLLM's own engine arguments and win over `settings`.

    After `sleep` its memory on the GPU is free for the learner; `wake` brings it back. Raises ValueError for an adapter.
    """

    def __init__(self, folder: Path, model: Model, settings: VllmEngine, *, seed: int, **options):
        if model.adapter.type != "none":
            raise ValueError(
                f"model.adapter.type: {model.adapter.type!r} is not served by vLLM here; train every weight or use transformers"
            )
        capture_sampled_logprobs()
        _keep_logits_exact()
        on_gpu = torch.cuda.is_available()
        if not on_gpu:
            _keep_plain_weights()
        self.stop_tokens = sorted(stop_token_ids(folder))
        self.max_length = model.max_length
        self.version = 0
        self.asleep = False
        arguments = {
            "dtype": model.dtype,
            "seed": seed,
            "max_model_len": model.max_length + 1,
            "logprobs_mode": "processed_logprobs",
            "enable_prefix_caching": True,
            "gpu_memory_utilization": settings.memory_fraction,
            "max_num_seqs": settings.max_sequences,
            "max_num_batched_tokens": settings.max_batched_tokens,
            "enable_sleep_mode": settings.sleep_while_learning,
            "kv_cache_memory_bytes": None if settings.cache_gib is None else int(settings.cache_gib * 2**30),
            # Compiling costs a processor minutes and wins little there.
            "enforce_eager": not on_gpu,
        }
        self.engine = vllm.LLM(str(folder), **{**arguments, **options})

    def generate(self, prompts: Sequence[Sequence[int]], sampling: SamplingParams, seeds: Sequence[Seed]) -> list[Generation]:
        if len(prompts) != len(seeds):
            raise ValueError(f"seeds: {len(seeds)} for {len(prompts)} prompts; pass one per prompt")
        params = [self._sampling(len(prompt), sampling) for prompt in prompts]
        _seed_everything(seeds)
        return [self._generation(output.outputs[0]) for output in self._run(prompts, params)]

    def _sampling(self, prompt: int, sampling: SamplingParams) -> vllm.SamplingParams:
        room = self.max_length - prompt
        if not 0 < room < self.max_length:
            raise ValueError(
                f"model.max_length: a prompt of {prompt} tokens leaves no room in {self.max_length}; raise it or shorten the prompt"
            )
        return vllm.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=min(sampling.max_new_tokens, room),
            stop_token_ids=self.stop_tokens,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
        )

    def _generation(self, output) -> Generation:
        if output.finish_reason not in ("stop", "length"):
            raise RuntimeError(
                f"vllm ended a request with {output.finish_reason!r} after {len(output.token_ids)} tokens; see the worker's log"
            )
        logprobs = np.array(output.logprobs.logprobs, np.float32)
        return Generation(np.array(output.token_ids, np.int32), logprobs, output.finish_reason, self.version)

    def _run(self, prompts: Sequence[Sequence[int]], params: list[vllm.SamplingParams]) -> list:
        inputs = [{"prompt_token_ids": list(map(int, prompt))} for prompt in prompts]
        return self.engine.generate(inputs, params, use_tqdm=False)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[np.ndarray]:
        if temperature != 1:
            raise ValueError(f"temperature: vLLM scores at 1 only, not at {temperature}; score with transformers")
        params = vllm.SamplingParams(max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False)
        outputs = self._run(sequences, [params] * len(sequences))
        return [np.array([np.nan, *output.prompt_logprobs.logprobs], np.float32) for output in outputs]

    def choice_logprobs(self, prompts: Sequence[Sequence[int]], candidates: Sequence[Sequence[Sequence[int]]]) -> list[np.ndarray]:
        return score_choices(self.score, prompts, candidates)

    def load_weights(self, weights: Weights) -> None:
        self.load_tensors([(name, to_tensor(array, weights.dtypes[name])) for name, array in weights.tensors.items()], weights.version)

    def load_tensors(self, tensors: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        self.engine.collective_rpc(_load, args=(tensors,))
        # Cached keys and values are the old weights' own.
        self.engine.reset_prefix_cache()
        self.version = version

    def sleep(self) -> None:
        """Free the engine's memory on the GPU; its weights wait in main memory. Needs `settings.sleep_while_learning`."""
        if not self.asleep:
            self.engine.sleep(level=1)
            self.asleep = True

    def wake(self) -> None:
        """Take the memory back."""
        if self.asleep:
            self.engine.wake_up()
            self.asleep = False

    def health(self) -> dict:
        config = self.engine.llm_engine.model_config
        return {
            "policy_version": self.version,
            "engine": f"vllm {vllm.__version__}",
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            "dtype": str(config.dtype).removeprefix("torch."),
            "parameters": sum(self.engine.collective_rpc(_count)),
            "threads": torch.get_num_threads(),
        }


def _load(worker, tensors: Iterable[tuple[str, torch.Tensor]]) -> int:
    return len(worker.model_runner.model.load_weights(tensors))


def _count(worker) -> int:
    return sum(parameter.numel() for parameter in worker.model_runner.model.parameters())


def _seed_everything(seeds: Sequence[Seed]) -> None:
    # torch's generators are what its samplers draw from; some of vLLM's begin from numpy's or Python's.
    entropy = [part for seed in seeds for part in (len(seed), *seed)]
    number = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)


def _keep_logits_exact() -> None:
    """Have the output layer of a half-precision model on a GPU give float32.

    bfloat16 would round a logit of 24 to steps of 1/8, which alone moves a log-prob by 0.02 in the mean.
    """
    general = UnquantizedEmbeddingMethod.apply
    if general is not _exact_logits:
        _exact_logits.general = general
        UnquantizedEmbeddingMethod.apply = _exact_logits


def _exact_logits(method, layer, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if bias is not None or not x.is_cuda or x.dtype == torch.float32:
        return _exact_logits.general(method, layer, x, bias)
    return torch.mm(x, layer.weight.t(), out_dtype=torch.float32)


def _keep_plain_weights() -> None:
    # The CPU build repacks weights for oneDNN and drops the originals, which new ones could then not be copied into.
    from vllm.model_executor.layers import utils

    def plain(layer, remove_weight):
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = plain
