"""The learner of a run: model, optimizer and method of the current stage, step by step, saved and restored.

A stopped and resumed learner goes on bit for bit (same machine, threads and dtype): every draw is a function of
(seed, step), and weights, moments, counters and RNG state travel in the checkpoint.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

from runner.contract.bank import Demonstration
from runner.contract.canonical import canonical_bytes, digest
from runner.contract.run_config import RunConfig, SftStage, Stage
from runner.learning import checkpoints
from runner.learning.acceleration import accelerate
from runner.learning.health import rollout_metrics
from runner.learning.logprobs import score_sequences
from runner.learning.optimizer import MasterAdamW, learning_rate
from runner.learning.trainer import Reference, update
from runner.learning.weights import export_weights, trainable
from runner.methods.base import Method
from runner.methods.gigpo import Gigpo
from runner.methods.grpo import Grpo
from runner.methods.sft import Sft
from runner.models.loading import head, load_model, load_tokenizer
from runner.policies.base import Weights
from runner.rollouts.types import Sample, TrainedSample


@dataclass
class StepReport:
    """One step. `metrics` holds defined values only; `skipped` says why the weights did not move, else None."""

    step: int
    metrics: dict[str, float]
    samples: list[TrainedSample] = field(default_factory=list)
    skipped: str | None = None
    policy_version: int = 0
    seconds: float = 0.0


@dataclass
class CheckpointWritten:
    """A finished write."""

    path: Path
    manifest: checkpoints.Manifest
    seconds: float


class Learner:
    """`folder` is the checked model folder of `config.model.source`. Steps are numbered from 1 over all stages."""

    def __init__(self, config: RunConfig, folder: Path, *, device: str = "cpu"):
        self.config = config
        self.folder = folder
        self.device = device
        self.network = self._load(folder)
        self.tokenizer = load_tokenizer(folder)
        self.completed = 0
        self.first_step = 1
        self.stage_index: int | None = None
        self.method: Method | None = None
        self.optimizer: MasterAdamW | None = None
        self.reference: Reference | None = None
        torch.manual_seed(config.seed)

    def _load(self, folder: Path) -> torch.nn.Module:
        network = load_model(folder, self.config.model, seed=self.config.seed, device=self.device)
        accelerate(network, self.config.learner)
        return network

    @property
    def stage(self) -> Stage:
        """The current stage's settings. Raises RuntimeError before the first one began."""
        if self.stage_index is None:
            raise RuntimeError("no stage has begun; call begin_stage or restore first")
        return self.config.stages[self.stage_index]

    @property
    def adapter(self) -> bool:
        """Whether only a low-rank adapter is trained."""
        return self.config.model.adapter.type != "none"

    def begin_stage(self, index: int, demonstrations: Sequence[Demonstration] = ()) -> None:
        """Start stage `index` from the current weights with a fresh optimizer. `demonstrations` are read by sft only."""
        self._enter(index, self.completed + 1, demonstrations)

    def _enter(self, index: int, first_step: int, demonstrations: Sequence[Demonstration]) -> None:
        self.stage_index, self.first_step = index, first_step
        stage, seed = self.stage, self.config.seed
        if isinstance(stage, SftStage):
            limit = self.config.model.max_length
            self.method = Sft(stage, demonstrations, self.tokenizer, seed=seed, first_step=first_step, max_length=limit)
        else:
            make = {"grpo": Grpo, "gigpo": Gigpo}[stage.type]
            self.method = make(stage, seed=seed, vocabulary=head(self.network).weight.shape[0])
        parameters = trainable(self.network)
        self.optimizer = MasterAdamW(parameters, stage.optimizer)
        self.reference = Reference(self.network, parameters) if self.method.needs_reference else None

    def learn(self, step: int, samples: Sequence[Sample] | None = None) -> StepReport:
        """Make global step `step` from `samples` (grpo, gigpo) or from the stage's own batch (sft)."""
        if step != self.completed + 1:
            raise ValueError(f"step: {step} does not follow {self.completed}; learn step {self.completed + 1}")
        started, stage, samples = time.perf_counter(), self.stage, list(samples or ())
        self._refuse_long(samples)
        plan = self.method.plan(step, samples)
        if self.reference:
            self.reference.add_logprobs(plan.sequences, stage.micro_batch_tokens)
        rate = learning_rate(stage.optimizer, step - self.first_step, stage.steps)
        done = update(self.network, self.optimizer, plan.sequences, self.method, rate, stage.micro_batch_tokens, plan.batches)
        metrics, trained = self.method.report(plan, done.results)
        self.completed = step
        seconds = time.perf_counter() - started
        metrics |= rollout_metrics(samples, self.config.sampling.max_new_tokens)
        metrics |= {"actor/lr": rate, "actor/skipped_steps": float(done.skipped is not None), "timing_s/learn": seconds}
        if done.grad_norm is not None:
            metrics["actor/grad_norm"] = done.grad_norm
        return StepReport(step, metrics, trained, done.skipped, self.completed, seconds)

    def _refuse_long(self, samples: Sequence[Sample]) -> None:
        limit = self.config.model.max_length
        for sample in samples:
            if sample.loss_mask.any() and sample.longest_sequence > limit:
                raise ValueError(
                    f"model.max_length: episode {sample.episode} has {sample.longest_sequence} tokens, the limit is {limit}; raise it or lower max_new_tokens"
                )

    def weights(self) -> Weights:
        """What policies must hold after `completed` steps: all weights, or the adapter's."""
        return export_weights(self.network, self.completed)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[np.ndarray]:
        """float32[T] per sequence: the learner's log-prob of each token; the first is NaN."""
        return score_sequences(self.network, sequences, temperature)

    # ------------------------------------------------------------ checkpoints
    def save(self, root: Path, *, extra: dict[str, Any] | None = None) -> CheckpointWritten:
        """Write `root/step_N`. `extra` is the driver's own state, plain JSON, returned by `restore`."""
        started = time.perf_counter()
        manifest = checkpoints.Manifest(
            step=self.completed,
            stage=self.stage_index,
            stage_type=self.stage.type,
            policy_version=self.completed,
            adapter=self.adapter,
            config_hash=digest(canonical_bytes(self.config)),
            topology={
                "learners": 1,
                "rollout_workers": self.config.resources.rollout_workers,
                "threads": torch.get_num_threads(),
                "device": self.device,
            },
            versions={"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__},
            rng={"seed": self.config.seed, "torch": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()},
        )
        path = checkpoints.write(root, manifest, lambda folder: self._write(folder, extra or {}))
        return CheckpointWritten(path, checkpoints.read_manifest(path), time.perf_counter() - started)

    def _write(self, folder: Path, extra: dict[str, Any]) -> None:
        if self.adapter:
            self.network.save_pretrained(folder / "adapter", save_embedding_layers=False)
        else:
            self.network.save_pretrained(folder / "model")
            self.tokenizer.save_pretrained(folder / "model")
        trainer = folder / "trainer"
        trainer.mkdir()
        counters = {"completed": self.completed, "stage": self.stage_index, "first_step": self.first_step}
        torch.save({"counters": counters, "rng": torch.get_rng_state(), "optimizer": self.optimizer.state()}, trainer / "state.pt")
        if self.reference:
            save_file({name: tensor.contiguous() for name, tensor in self.reference.frozen.items()}, trainer / "reference.safetensors")
        (folder / "driver.json").write_text(json.dumps(extra, sort_keys=True, allow_nan=False))

    def restore(self, path: Path, demonstrations: Sequence[Demonstration] = ()) -> dict[str, Any]:
        """Go on after the verified checkpoint `path`, inside the stage it was written in; returns the driver's `extra`.

        Raises BrokenCheckpoint, or ValueError when it was written under another configuration.
        """
        manifest = checkpoints.verify(path)
        if manifest.config_hash != digest(canonical_bytes(self.config)):
            raise ValueError(
                f"{path.name}: written under another configuration; start a new run with this checkpoint as model.source instead"
            )
        state = torch.load(path / "trainer" / "state.pt", map_location=self.device, weights_only=True)
        if self.adapter:
            adapter = load_file(path / "adapter" / "adapter_model.safetensors", device=self.device)
            peft.set_peft_model_state_dict(self.network, adapter)
        else:
            self.network = self._load(path / "model")
        counters = state["counters"]
        self.completed = counters["completed"]
        self._enter(counters["stage"], counters["first_step"], demonstrations)
        self.optimizer.load_state(state["optimizer"])
        if self.reference:
            self.reference.frozen = load_file(path / "trainer" / "reference.safetensors", device=self.device)
        torch.set_rng_state(state["rng"].cpu())
        return json.loads((path / "driver.json").read_text())
