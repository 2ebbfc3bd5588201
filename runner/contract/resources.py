"""What a run asks of the cluster, and what generates its episodes there."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_serializer, model_validator

from runner.contract.canonical import Document, without_defaults
from runner.contract.setting import at_field, setting


class TransformersEngine(Document):
    """The model as transformers runs it: each response repeats bit for bit, whatever shares its batch."""

    type: Literal["transformers"] = "transformers"


class VllmEngine(Document):
    """vLLM inside each rollout worker, for GPUs: continuous batching; a batch repeats as a whole, its responses not one by one."""

    type: Literal["vllm"] = "vllm"
    memory_fraction: float = setting(
        0.4, "Share of the GPU's memory for weights and cached tokens; without GPUs, of the node's, for each worker.", gt=0, le=0.98
    )
    max_sequences: int = setting(256, "Responses under way at once in each worker.", ge=1, le=65_536)
    max_batched_tokens: int | None = setting(
        None,
        "Tokens of one forward pass, at least max_sequences; null leaves it to vLLM.",
        ge=16,
        le=2**20,
        level="advanced",
        unit="tokens",
    )
    sleep_while_learning: bool = setting(False, "Give the engine's memory to a learner on the same GPU while it learns.", level="advanced")
    cache_gib: float | None = setting(
        None,
        "Memory for cached tokens; null takes what memory_fraction leaves, measured at the start, which others on the same GPU disturb.",
        gt=0,
        le=100_000,
        level="advanced",
        unit="GiB",
    )

    @model_serializer(mode="wrap")
    def _written(self, write) -> dict[str, Any]:
        return without_defaults(self, write(self), "cache_gib")


Engine = Annotated[TransformersEngine | VllmEngine, Field(discriminator="type")]


class Resources(Document):
    """What the run asks of the cluster; all of it or nothing is granted."""

    rollout_workers: int = setting(2, "Processes that generate episodes.", ge=1, le=1024)
    worker_cpus: float = setting(0.5, "Processor share of each rollout worker.", gt=0, le=1024)
    learner_cpus: float = setting(0.8, "Processor share of each learner process.", gt=0, le=1024)
    learner_processes: int = setting(
        1,
        "Processes that share the learner's weights and work; on GPUs one each.",
        ge=1,
        le=1024,
        level="advanced",
    )
    weight_transfer: Literal["auto", "collective", "object_store"] = setting(
        "auto",
        "How the learner's weights reach the workers; auto broadcasts where every process has a GPU of its own.",
        level="advanced",
    )
    driver_cpus: float = setting(0.2, "Processor share of the driver.", gt=0, le=64, level="advanced")
    gpus: int = setting(0, "GPUs for the whole run.", ge=0, le=4096)
    share_gpus: bool = setting(
        False,
        "Start although others use the GPUs, such as a display or further small runs; off refuses where more than 2 GiB are taken.",
        level="advanced",
    )
    worker_threads: int = setting(
        1, "Torch threads of each rollout worker; part of what makes a run repeatable.", ge=1, le=256, level="advanced"
    )
    learner_threads: int = setting(2, "Torch threads of each learner process.", ge=1, le=256, level="advanced")

    @model_validator(mode="after")
    def _a_gpu_each(self) -> Self:
        least = self.learner_processes + self.rollout_workers
        if self.learner_processes > 1 and 0 < self.gpus < least:
            asked = f"{self.learner_processes} learner processes and {self.rollout_workers} rollout workers"
            raise at_field(["gpus"], self.gpus, f"{self.gpus} leaves one of {asked} without a GPU; ask for {least}, or for fewer of them")
        return self

    @model_validator(mode="after")
    def _a_broadcast_needs_a_gpu_each(self) -> Self:
        least = self.learner_processes + self.rollout_workers
        if self.weight_transfer == "collective" and 0 < self.gpus < least:
            told = f"'collective' cannot connect {least} processes on {self.gpus} GPUs, NCCL wants one each"
            raise at_field(["weight_transfer"], "collective", f"{told}; ask for {least} GPUs, or take auto")
        return self

    @model_serializer(mode="wrap")
    def _written(self, write) -> dict[str, Any]:
        return without_defaults(self, write(self), "learner_processes", "weight_transfer", "share_gpus")

    @property
    def learners(self) -> list[str]:
        """Names of the learner's processes; the first speaks for all."""
        return ["learner", *(f"learner-{rank}" for rank in range(1, self.learner_processes))]

    @property
    def cpus(self) -> float:
        """Processor shares of the whole gang."""
        return round(self.rollout_workers * self.worker_cpus + self.learner_processes * self.learner_cpus + self.driver_cpus, 3)
