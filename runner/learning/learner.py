"""The learner of a run: model, optimizer and method of the current stage, step by step, saved and restored.

A stopped and resumed learner goes on bit for bit (same machine, threads and dtype): every draw is a function of
(seed, step), and weights, moments, counters and RNG state travel in the checkpoint.

Several processes are one learner: each is a Learner of its own rank, and all are asked the same in the same order.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from safetensors.torch import load_file

from runner.contract.bank import Demonstration
from runner.contract.canonical import canonical_bytes, digest
from runner.contract.run_config import RunConfig, SftStage, Stage
from runner.learning import checkpoints
from runner.learning.acceleration import accelerate
from runner.learning.channel import Channel, Header
from runner.learning.health import rollout_metrics
from runner.learning.logprobs import score_sequences
from runner.learning.optimizer import MasterAdamW, learning_rate
from runner.learning.ranks import ALONE, Alone
from runner.learning.trainer import Reference, ShardedReference, update
from runner.learning.trainer_state import TrainerState, read_counters, read_state, write_state
from runner.learning.utilisation import Work, peak_flops
from runner.learning.weights import export_weights, gather, trainable, whole
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


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint is made of. `weights` are whole and in host memory; None are the network's own."""

    manifest: checkpoints.Manifest
    extra: dict[str, Any]
    weights: dict[str, torch.Tensor] | None
    trainer: TrainerState


class Learner:
    """`folder` is the checked model folder of `config.model.source`. Steps are numbered from 1 over all stages."""

    def __init__(self, config: RunConfig, folder: Path, *, device: str = "cpu", ranks: Alone = ALONE):
        self.config = config
        self.folder = folder
        self.device = device
        self.ranks = ranks
        self.network = self._load(folder)
        self.peak_flops = peak_flops(torch.device(device), self.network.dtype)
        self.tokenizer = load_tokenizer(folder)
        self.completed = 0
        self.first_step = 1
        self.stage_index: int | None = None
        self.method: Method | None = None
        self.optimizer: MasterAdamW | None = None
        self.reference: Reference | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: Future[CheckpointWritten] | None = None
        torch.manual_seed(config.seed)

    def _load(self, folder: Path, adapter: Path | None = None) -> torch.nn.Module:
        place = self.ranks.place(self.device)
        network = load_model(folder, self.config.model, seed=self.config.seed, device=place)
        if adapter:
            peft.set_peft_model_state_dict(network, load_file(adapter / "adapter_model.safetensors", device=place))
        accelerate(network, self.config.learner)
        self.ranks.shard(network)
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
        reference = Reference if self.ranks.size == 1 else ShardedReference
        self.reference = reference(self.network, parameters, self.ranks) if self.method.needs_reference else None

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
        asked = (plan.sequences, self.method, rate, stage.micro_batch_tokens, plan.batches, self.ranks)
        done = update(self.network, self.optimizer, *asked)
        metrics, trained = self.method.report(plan, done.results)
        self.completed = step
        seconds = time.perf_counter() - started
        metrics |= rollout_metrics(samples, self.config.sampling.max_new_tokens)
        metrics |= {"actor/lr": rate, "actor/skipped_steps": float(done.skipped is not None), "timing_s/learn": seconds}
        if done.grad_norm is not None:
            metrics["actor/grad_norm"] = done.grad_norm
        if self.peak_flops:
            worked = Work.of(self.network).flops([len(item.token_ids) for item in plan.sequences])
            metrics["perf/mfu"] = worked / (seconds * self.peak_flops * self.ranks.size)
        return StepReport(step, metrics, trained, done.skipped, self.completed, seconds)

    def _refuse_long(self, samples: Sequence[Sample]) -> None:
        limit = self.config.model.max_length
        for sample in samples:
            if sample.loss_mask.any() and sample.longest_sequence > limit:
                raise ValueError(
                    f"model.max_length: episode {sample.episode} has {sample.longest_sequence} tokens, the limit is {limit}; raise it or lower max_new_tokens"
                )

    def weights(self) -> Weights | None:
        """What policies must hold after `completed` steps: all weights, or the adapter's. Of several ranks the first has them."""
        return export_weights(self.network, self.completed, keep=self.ranks.first)

    def send_weights(self, channel: Channel | None) -> int | None:
        """The same past host memory, to whoever receives at `channel`; the bytes sent. Of several ranks only the first has one."""
        tensors = trainable(self.network)
        every = (whole(tensor.detach()) for tensor in tensors.values())
        if channel is None:
            for _ in every:
                pass
            return None
        return channel.send(self.completed, [Header.of(name, tensor) for name, tensor in tensors.items()], every)

    def score(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[np.ndarray]:
        """float32[T] per sequence: the learner's log-prob of each token; the first is NaN."""
        scores = score_sequences(self.network, sequences, temperature)
        self.ranks.settle(self.network)
        return scores

    # ------------------------------------------------------------ checkpoints
    def save(self, root: Path, *, extra: dict[str, Any] | None = None) -> CheckpointWritten:
        """Write `root/step_N`. `extra` is the driver's own state, plain JSON, returned by `restore`.

        Every rank writes its part into the folder of the first, which completes the checkpoint when all have.
        """
        return self._write(root, self._snapshot(extra or {}), time.perf_counter())

    def begin_save(self, root: Path, *, extra: dict[str, Any] | None = None) -> None:
        """`save` while steps go on: what is written is copied now. One at a time; `saved` says when it is over."""
        if self._saving:
            raise RuntimeError(f"step {self.completed}: a checkpoint is being written; wait until `saved` returns it")
        started, weights = time.perf_counter(), gather(self.network, keep=self.ranks.first)
        snapshot = self._snapshot(extra or {}, weights)
        self._saving = self._writer.submit(self._write, root, replace(snapshot, trainer=snapshot.trainer.copied()), started)

    def saved(self) -> CheckpointWritten | None:
        """What `begin_save` began to write, once it is written; None until then. Raises what kept it from being written."""
        if not self._saving.done():
            return None
        saving, self._saving = self._saving, None
        return saving.result()

    def _snapshot(self, extra: dict[str, Any], weights: dict[str, torch.Tensor] | None = None) -> Snapshot:
        if weights is None and self.ranks.size > 1:
            weights = gather(self.network, keep=self.ranks.first)
        counters = {"completed": self.completed, "stage": self.stage_index, "first_step": self.first_step}
        return Snapshot(self._manifest(), extra, weights, TrainerState.of(counters, self.optimizer, self.reference, self.ranks))

    def _manifest(self) -> checkpoints.Manifest:
        return checkpoints.Manifest(
            step=self.completed,
            stage=self.stage_index,
            stage_type=self.stage.type,
            policy_version=self.completed,
            adapter=self.adapter,
            config_hash=training_hash(self.config, self.config.resources.gpus),
            topology={
                "learners": self.ranks.size,
                "gpus": self.config.resources.gpus,
                "rollout_workers": self.config.resources.rollout_workers,
                "threads": torch.get_num_threads(),
                "device": self.device,
            },
            versions={"torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__},
            rng={"seed": self.config.seed, "torch": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()},
        )

    def _write(self, root: Path, snapshot: Snapshot, started: float) -> CheckpointWritten:
        if self.ranks.first:
            path = checkpoints.write(root, snapshot.manifest, lambda folder: self._fill(self.ranks.told(folder), snapshot))
        else:
            path = root / f"step_{snapshot.manifest.step}"
            self._fill(self.ranks.told(None), snapshot)
        self.ranks.told(None)
        return CheckpointWritten(path, checkpoints.read_manifest(path), time.perf_counter() - started)

    def _fill(self, folder: Path, snapshot: Snapshot) -> None:
        if self.ranks.first:
            self._export(folder, snapshot.weights)
            (folder / "driver.json").write_text(json.dumps(snapshot.extra, sort_keys=True, allow_nan=False))
        write_state(folder / "trainer", snapshot.trainer, self.ranks)

    def _export(self, folder: Path, weights: dict[str, torch.Tensor] | None) -> None:
        """A folder that transformers or peft reads, of `weights` or the network's own."""
        if self.adapter:
            self.network.save_pretrained(folder / "adapter", save_embedding_layers=False, state_dict=weights)
        else:
            self.network.save_pretrained(folder / "model", state_dict=weights)
            self.tokenizer.save_pretrained(folder / "model")

    def restore(self, path: Path, demonstrations: Sequence[Demonstration] = ()) -> dict[str, Any]:
        """Go on after the verified checkpoint `path`, inside the stage it was written in; returns the driver's `extra`.

        Raises BrokenCheckpoint, or ValueError when it was written under another configuration.
        """
        manifest = checkpoints.verify(path)
        if manifest.config_hash != training_hash(self.config, manifest.topology.get("gpus", self.config.resources.gpus)):
            raise ValueError(
                f"{path.name}: written under another configuration; start a new run with this checkpoint as model.source instead"
            )
        state = read_counters(path / "trainer", self.ranks.place(self.device))
        self.network = self._load(self.folder, path / "adapter") if self.adapter else self._load(path / "model")
        counters = state["counters"]
        self.completed = counters["completed"]
        self._enter(counters["stage"], counters["first_step"], demonstrations)
        read_state(path / "trainer", state, self.optimizer, self.reference, self.ranks.place(self.device))
        torch.set_rng_state(state["rng"].cpu())
        return json.loads((path / "driver.json").read_text())


def training_hash(config: RunConfig, gpus: int) -> str:
    """Of what is trained, on any number of learner processes; `gpus` are the writer's, since theirs may change with it."""
    resources = config.resources.model_copy(update={"learner_processes": 1, "gpus": gpus})
    return digest(canonical_bytes(config.model_copy(update={"resources": resources})))
