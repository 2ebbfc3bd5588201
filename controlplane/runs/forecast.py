"""What a run will cost, before it is launched: sizes by formula, time from earlier runs, each figure with its sentence."""

import math
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from django.conf import settings

from controlplane.cluster import selectors as cluster
from controlplane.cluster.allocator import Bundle, gang
from controlplane.runs import pace
from controlplane.runs.model_folder import ModelFacts
from controlplane.runs.models import Run
from runner.contract.metrics import TRACKED
from runner.contract.run_config import LoraAdapter, Resources, RunConfig
from runner.contract.states import RunState

BYTES = {"float32": 4, "bfloat16": 2}
ADAM_BYTES = 8
PROCESS_BYTES = 400 << 20
LORA_PROJECTIONS = 7
DISK_LIMIT = 0.9
# A tenth of a large disk is more than anything else here needs.
DISK_SPARE = 10 << 30
NEWEST_KEPT = 2


@dataclass(frozen=True)
class Disk:
    """Bytes. `after` is the used fraction of the storage once every kept checkpoint is written."""

    checkpoint: int
    kept: int
    needed: int
    free: int
    total: int
    after: float
    sentence: str

    @property
    def is_too_small(self) -> bool:
        return self.after > DISK_LIMIT and self.free - self.needed < DISK_SPARE


def bundles(resources: Resources) -> tuple[Bundle, ...]:
    """The gang that `resources` asks for."""
    shares = resources.worker_cpus, resources.learner_cpus, resources.driver_cpus
    return gang(resources.rollout_workers, *shares, resources.gpus, resources.learner_processes)


def trainable_parameters(config: RunConfig, facts: ModelFacts) -> int | None:
    """All weights, or for LoRA rank · (in + out) over the adapted layers; without their shapes, seven of each block, in = out = hidden."""
    adapter = config.model.adapter
    if not isinstance(adapter, LoraAdapter):
        return facts.parameters
    if facts.linears:
        chosen = facts.linears if adapter.target_modules == ["all-linear"] else adapter.target_modules
        return adapter.rank * sum(facts.linears.get(module, 0) for module in chosen)
    if facts.hidden is None or facts.layers is None:
        return facts.parameters and facts.parameters // 50
    return adapter.rank * 2 * facts.hidden * LORA_PROJECTIONS * facts.layers


def checkpoint_bytes(config: RunConfig, facts: ModelFacts) -> int | None:
    """Weights of what is trained at the run's precision, and two float32 Adam moments for each."""
    trained = trainable_parameters(config, facts)
    return trained and trained * (BYTES[config.model.dtype] + ADAM_BYTES)


def kept_checkpoints(config: RunConfig) -> int:
    """How many lie on disk at once at most: those retention keeps, and the one being written."""
    asked, adapter = config.checkpoints, isinstance(config.model.adapter, LoraAdapter)
    cadences = {asked.every_steps, getattr(config.evaluation, "every_steps", None)} - {None}
    written = len(config.stages) + sum(stage.steps // every for stage in config.stages for every in cadences)
    if asked.prune.type == "all" or (asked.prune.type == "auto" and adapter):
        return written
    rules = max(asked.keep_last, NEWEST_KEPT) + (len(TRACKED) if asked.keep_best else 0) * getattr(asked.prune, "n", 1)
    spared = config.total_steps // asked.prune.steps if asked.prune.type == "every" else 0
    return min(written, rules + spared + 1)


def disk(config: RunConfig, facts: ModelFacts) -> Disk | None:
    """The storage after the run; None when the model's size is unknown."""
    one = checkpoint_bytes(config, facts)
    if one is None:
        return None
    usage = shutil.disk_usage(existing(Path(settings.ASSAY_STORAGE)))
    kept = kept_checkpoints(config)
    needed = one * kept
    after = (usage.total - usage.free + needed) / usage.total
    sentence = f"{kept} checkpoints of {size(one)} need {size(needed)}; {size(usage.free)} of {size(usage.total)} are free"
    return Disk(one, kept, needed, usage.free, usage.total, after, sentence)


def existing(path: Path) -> Path:
    return next(folder for folder in [path, *path.parents] if folder.exists())


def memory(config: RunConfig, facts: ModelFacts) -> dict | None:
    """Bytes of weights, gradients, Adam moments and processes; activations come on top and depend on micro_batch_tokens.

    Of several learner processes each loads all weights and keeps its part of the rest.
    """
    if facts.parameters is None:
        return None
    width, trained = BYTES[config.model.dtype], trainable_parameters(config, facts)
    workers, learners = config.resources.rollout_workers, config.resources.learner_processes
    learner = facts.parameters * width + trained * (width + ADAM_BYTES) // learners + PROCESS_BYTES
    worker = facts.parameters * width + PROCESS_BYTES
    copied = checkpoint_bytes(config, facts) if config.checkpoints.in_background else 0
    total = learners * learner + workers * worker + copied + PROCESS_BYTES
    available = cluster.total_memory()
    first = f"learner {size(learner)}" if learners == 1 else f"{learners} learner processes of {size(learner)}"
    if copied:
        first += f", a checkpoint being written {size(copied)}"
    sentence = f"{first}, {workers} worker{'s' * (workers != 1)} of {size(worker)}, driver {size(PROCESS_BYTES)}: {size(total)} without activations"
    if available:
        sentence += f"; the cluster has {size(available)}"
    return {"learner": learner, "worker": worker, "total": total, "available": available, "sentence": sentence}


def work(config: RunConfig) -> dict:
    """Optimizer steps, episodes and the most tokens they can hold."""
    episodes = sum(stage.steps * stage.batch_size for stage in config.stages if stage.type != "sft")
    tokens = episodes * config.model.max_length
    stages = f" over {len(config.stages)} stages" if len(config.stages) > 1 else ""
    sentence = f"{config.total_steps} steps{stages}, {episodes:,} episodes, at most {tokens:,} tokens"
    return {"steps": config.total_steps, "episodes": episodes, "tokens_at_most": tokens, "sentence": sentence}


def duration(config: RunConfig, team) -> dict | None:
    """Seconds at the pace of the team's newest finished runs of the same stages, model and environment; None without any."""
    alike = {"method": method_of(config), "model": model_of(config), "environment": config.environment.type}
    paces = pace.expected(config, Run.objects.filter(project__team=team, **alike))
    if not paces:
        return None
    median = paces[len(paces) // 2]
    steps = " and ".join(f"{stage.steps} {stage.type} steps of {spoken_seconds(stage.step_seconds)}" for stage in median.stages)
    sentence = (
        f"about {spoken_time(median.seconds)}: {spoken_time(median.around)} to start, evaluate and save, {steps}; "
        f"the median of {len(paces)} earlier run{'s' * (len(paces) > 1)} like it"
    )
    gpu_hours = median.seconds * config.resources.gpus / 3600
    return {"seconds": median.seconds, "gpu_hours": gpu_hours, "runs": len(paces), "sentence": sentence}


def queue(config: RunConfig, team) -> dict:
    """Where the run would stand, and what it would wait for."""
    ahead = Run.objects.filter(state=RunState.QUEUED, priority__gte=config.priority).count()
    why = cluster.why_would_wait(bundles(config.resources), team.pk)
    if not ahead and why is None:
        return {"position": 1, "ahead": 0, "sentence": "starts at once"}
    return {"position": ahead + 1, "ahead": ahead, "sentence": f"{ahead} ahead in the queue; {why or 'capacity is free'}"}


def method_of(config: RunConfig) -> str:
    return " + ".join(stage.type for stage in config.stages)


def model_of(config: RunConfig) -> str:
    source = config.model.source
    names = {"builtin": "name", "path": "path", "hub": "repo_id", "checkpoint": "checkpoint"}
    return getattr(source, names[source.type])


def forecast(config: RunConfig, team, facts: ModelFacts) -> dict:
    """Everything the launch page's rail shows. Figures that cannot be known are None."""
    found = disk(config, facts)
    asked = bundles(config.resources)
    return {
        "work": work(config),
        "parameters": {"all": facts.parameters, "trained": trainable_parameters(config, facts)},
        "memory": memory(config, facts),
        "disk": found and {**asdict(found), "limit": DISK_LIMIT},
        "gang": [{"bundle": bundle.name, "cpus": float(bundle.cpus), "gpus": bundle.gpus} for bundle in asked],
        "queue": queue(config, team),
        "duration": duration(config, team),
    }


def size(count: int) -> str:
    """Bytes as people say them."""
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    power = min(int(math.log(value, 1024)), len(units) - 1) if value >= 1 else 0
    return f"{value / 1024**power:.{0 if power == 0 else 1}f} {units[power]}"


def spoken_time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def spoken_seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
