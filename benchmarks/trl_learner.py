"""TRL's GRPO trainer as it trains, given finished episodes in place of those it would generate."""

import gc
import tempfile
import time

import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from tokenizers import Tokenizer, models
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Given(GRPOTrainer):
    """Learns from `sequences` at every step, padded as the trainer pads what it generates: prompts left, responses right."""

    sequences: list

    def _generate_and_score_completions(self, inputs):
        prompts, responses = [], []
        for item in self.sequences:
            ids, prompt = torch.as_tensor(item.token_ids, dtype=torch.long, device=self.accelerator.device), int(item.mask.argmax())
            prompts.append(ids[:prompt])
            responses.append(ids[prompt:])
        return {
            **_padded("prompt", prompts, "left"),
            **_padded("completion", responses, "right"),
            "advantages": torch.tensor([float(item.columns["advantage"][0]) for item in self.sequences], device=self.accelerator.device),
            "num_items_in_batch": torch.tensor(float(sum(map(len, responses))), device=self.accelerator.device),
        }


def _padded(name: str, rows: list, side: str) -> dict:
    ids = pad_sequence(rows, batch_first=True, padding_value=2, padding_side=side)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side=side)
    return {f"{name}_ids": ids, f"{name}_mask": mask}


class Clock(TrainerCallback):
    """Seconds of each optimizer step; the peak of memory counts from the second on."""

    def __init__(self):
        self.seconds: list[float] = []

    def on_step_begin(self, args, state, control, **kwargs):
        if len(self.seconds) == 1 and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self.begun = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.begun)


def steps(config, sequences: list, dtype: str, repetitions: int) -> tuple[list[float], int | None, dict]:
    """(seconds of each step but the first, peak bytes, settings) at the largest micro-batch that fits."""
    rows = len(sequences)
    while rows:
        try:
            return _train(config, sequences, dtype, repetitions, rows)
        except torch.OutOfMemoryError:
            rows //= 2
        gc.collect()
        torch.cuda.empty_cache()
    raise RuntimeError("TRL: not even one sequence fits")


def _train(config, sequences: list, dtype: str, repetitions: int, rows: int) -> tuple[list[float], int | None, dict]:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trainer = _trainer(config, dtype, _arguments(folder, dtype, repetitions, rows, len(sequences)), clock)
        trainer.sequences = sequences
        trainer.train()
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    return clock.seconds[1:], peak, {"micro_batch": rows, "liger_layers": trainer.args.use_liger_kernel, "attention": "sdpa"}


def _arguments(folder: str, dtype: str, repetitions: int, rows: int, count: int) -> GRPOConfig:
    from transformers.utils import is_liger_kernel_available

    return GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=count // rows,
        num_generations=min(8, count),
        max_steps=repetitions + 1,
        bf16=dtype == "bfloat16",
        gradient_checkpointing=True,
        loss_type="grpo",
        beta=0.0,
        learning_rate=1e-6,
        optim="adamw_torch_fused",
        use_liger_kernel=torch.cuda.is_available() and is_liger_kernel_available(),
        use_cpu=not torch.cuda.is_available(),
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )


def _trainer(config, dtype: str, arguments: GRPOConfig, clock: Clock) -> Given:
    tokenizer = Tokenizer(models.WordLevel({"<begin>": 0, "<end>": 1, "<pad>": 2, "word": 3}, unk_token="word"))
    return Given(
        model=AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation="sdpa"),
        reward_funcs=lambda completions, **kwargs: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset(InMemoryTable.from_pydict({"prompt": ["word"] * 64}), fingerprint="prompts"),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<pad>"),
        callbacks=[clock],
    )
