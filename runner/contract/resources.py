"""What a run asks of the cluster, and what generates its episodes there."""

from typing import Annotated, Literal

from pydantic import Field

from runner.contract.canonical import Document
from runner.contract.setting import setting


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


Engine = Annotated[TransformersEngine | VllmEngine, Field(discriminator="type")]


class Resources(Document):
    """What the run asks of the cluster; all of it or nothing is granted."""

    rollout_workers: int = setting(2, "Processes that generate episodes.", ge=1, le=1024)
    worker_cpus: float = setting(0.5, "Processor share of each rollout worker.", gt=0, le=1024)
    learner_cpus: float = setting(0.8, "Processor share of the learner.", gt=0, le=1024)
    driver_cpus: float = setting(0.2, "Processor share of the driver.", gt=0, le=64, level="advanced")
    gpus: int = setting(0, "GPUs for the whole run.", ge=0, le=4096)
    worker_threads: int = setting(
        1, "Torch threads of each rollout worker; part of what makes a run repeatable.", ge=1, le=256, level="advanced"
    )
    learner_threads: int = setting(2, "Torch threads of the learner.", ge=1, le=256, level="advanced")

    @property
    def cpus(self) -> float:
        """Processor shares of the whole gang."""
        return round(self.rollout_workers * self.worker_cpus + self.learner_cpus + self.driver_cpus, 3)
