"""RunConfig: the only description of a run.

The browser form is generated from this module's JSON schema, REST and the command line parse it, the
database stores its resolved copy, and the runner executes it. Optional features are unions with a `none`
variant; an absent key means its default. Presentation hints for the form travel in the schema's extras:
`group` (section heading), `level` (basic or advanced) and `unit`.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_serializer, model_validator

from runner.contract.canonical import Document, without_defaults

# Every part of a run's document is imported from here, wherever it is written down.
from runner.contract.environment_config import (  # noqa: F401
    ClippedFailure,
    Environment,
    FixedFailure,
    HarborEnvironment,
    MenuAgent,
    QuizEnvironment,
    RawFailure,
    ScienceWorldEnvironment,
    SciKnowEvalEnvironment,
    TerminalAgent,
)
from runner.contract.resources import Engine, Resources, TransformersEngine, VllmEngine
from runner.contract.setting import SLUG, at_field, setting

SCHEMA_VERSION = 1
Tag = Annotated[str, Field(min_length=1, max_length=60)]


# ---------------------------------------------------------------- model
class BuiltinModel(Document):
    """A model every installation has: built on the spot, or bundled in a package."""

    type: Literal["builtin"] = "builtin"
    name: Literal["assay-tiny", "assay-tiny-3", "smollm2-135m-instruct"] = setting(
        "assay-tiny", "Which built-in model to start from; assay-tiny-3 reads numbered lists."
    )
    revision: str | None = setting(None, "Pinned when the run is queued.", level="advanced")


class LocalModel(Document):
    """A Hugging Face model folder on the nodes."""

    type: Literal["path"] = "path"
    path: str = setting(
        ..., "Absolute path of a folder with config.json, tokenizer and safetensors weights.", min_length=1, max_length=1000
    )
    revision: str | None = setting(None, "Content hash, pinned when the run is queued.", level="advanced")

    @field_validator("path")
    @classmethod
    def _absolute(cls, path: str) -> str:
        if not path.startswith("/"):
            raise ValueError(f"must be an absolute path, got {path!r}; nodes do not share a working directory")
        return path


class HubModel(Document):
    """A model of the Hugging Face hub."""

    type: Literal["hub"] = "hub"
    repo_id: str = setting(..., "owner/name of the model.", pattern=r"^[\w.-]+/[\w.-]+$", max_length=180)
    revision: str | None = setting(None, "Branch, tag or commit; pinned to a commit when the run is queued.")


class CheckpointModel(Document):
    """Weights of an earlier run's complete checkpoint."""

    type: Literal["checkpoint"] = "checkpoint"
    checkpoint: str = setting(..., "Identifier of a complete checkpoint.", min_length=1, max_length=80)
    revision: str | None = setting(None, "Manifest hash, pinned when the run is queued.", level="advanced")


ModelSource = Annotated[BuiltinModel | LocalModel | HubModel | CheckpointModel, Field(discriminator="type")]


class NoAdapter(Document):
    """Train every weight."""

    type: Literal["none"] = "none"


class LoraAdapter(Document):
    """Train a low-rank adapter (peft); the base stays frozen."""

    type: Literal["lora"] = "lora"
    rank: int = setting(16, "Rank of the update.", ge=1, le=1024)
    alpha: int = setting(32, "Scale numerator; the update is scaled by alpha / rank.", ge=1)
    dropout: float = setting(0.0, "Dropout on the adapter's input; must be 0 for exact log-probs.", ge=0, le=0.5)
    target_modules: list[str] = setting(["all-linear"], "Module names to adapt, or all-linear.", level="advanced", min_length=1)


Adapter = Annotated[NoAdapter | LoraAdapter, Field(discriminator="type")]


class Model(Document):
    """The policy that is trained."""

    source: ModelSource = setting(BuiltinModel(), "Where the weights come from.")
    adapter: Adapter = setting(NoAdapter(), "What is trained.")
    dtype: Literal["float32", "bfloat16"] = setting("float32", "Precision of weights and activations.")
    max_length: int = setting(512, "Prompt plus response; longer samples are refused.", ge=16, le=1_048_576, unit="tokens")


# ---------------------------------------------------------------- sampling
class Sampling(Document):
    """How the student generates."""

    temperature: float = setting(1.0, "Divides the logits; 0 is greedy and only allowed in evaluation.", gt=0, le=5)
    top_p: float = setting(1.0, "Keep the smallest set of tokens with this probability.", gt=0, le=1, level="advanced")
    max_new_tokens: int = setting(16, "Response cap.", ge=1, le=131_072, unit="tokens")


# ---------------------------------------------------------------- optimisation
class Optimizer(Document):
    """AdamW with global-norm clipping."""

    learning_rate: float = setting(1e-5, "Peak learning rate.", gt=0, le=1)
    weight_decay: float = setting(0.0, "Decoupled weight decay.", ge=0, le=1, level="advanced")
    beta1: float = setting(0.9, "First-moment decay.", ge=0, lt=1, level="advanced")
    beta2: float = setting(0.999, "Second-moment decay.", ge=0, lt=1, level="advanced")
    epsilon: float = setting(1e-8, "Denominator floor.", gt=0, level="advanced")
    max_grad_norm: float = setting(1.0, "Gradients are scaled down to this global norm.", gt=0)
    schedule: Literal["constant", "linear", "cosine"] = setting("constant", "Shape after the warm-up; linear and cosine end at 0.")
    warmup_steps: int = setting(0, "Linear rise from 0.", ge=0, le=10_000_000, unit="steps")


class SftStage(Document):
    """Supervised warm start: cross-entropy on the bank's demonstrations."""

    type: Literal["sft"] = "sft"
    steps: int = setting(100, "Optimizer steps.", ge=1, le=10_000_000, unit="steps")
    batch_size: int = setting(64, "Demonstrations per optimizer step.", ge=1, le=1_000_000)
    micro_batch_tokens: int = setting(
        8192, "Packed tokens per forward pass; bounds memory.", ge=64, le=2**26, level="advanced", unit="tokens"
    )
    kinds: list[str] = setting([], "Kinds of demonstrations to use; empty uses all.", level="advanced")
    gate: Literal["off", "warn", "stop"] = setting(
        "warn", "When held-out success after this stage is 0 and another stage follows: go on, say so, or stop until the run is resumed."
    )
    optimizer: Optimizer = setting(Optimizer(learning_rate=1e-3), "How the weights move.")


class ClippedLoss(Document):
    """Clipped policy gradient (PPO), optionally with the dual clip."""

    type: Literal["clipped"] = "clipped"
    clip_low: float = setting(0.2, "Lower bound is 1 − this.", gt=0, lt=1)
    clip_high: float = setting(0.2, "Upper bound is 1 + this.", gt=0, le=10)
    dual_clip: float | None = setting(3.0, "Bound for negative advantages; null turns it off.", gt=1, level="advanced")
    importance_cap: float | None = setting(
        2.0, "Truncates the learner/sampler importance weight; null applies none.", gt=0, level="advanced"
    )


class MaskedLoss(Document):
    """Masked importance-weighted loss with a drift penalty, as in prime-rl."""

    type: Literal["masked"] = "masked"
    mask_low: float = setting(0.2, "A negative-advantage token is dropped when its probability fell by more.", gt=0, le=1)
    mask_high: float = setting(0.2, "A positive-advantage token is dropped when its probability rose by more.", gt=0, le=1)
    advantage_tau: float = setting(1.0, "Weight of the policy-gradient term.", ge=0)
    drift_tau: float = setting(1e-3, "Weight of the squared log-ratio to the sampling policy.", ge=0)


Loss = Annotated[ClippedLoss | MaskedLoss, Field(discriminator="type")]


class NoReferenceKl(Document):
    """No penalty against a reference model."""

    type: Literal["none"] = "none"


class ReferenceKl(Document):
    """Penalty β · k3(policy ‖ stage's initial weights)."""

    type: Literal["k3"] = "k3"
    beta: float = setting(1e-3, "Weight of the penalty.", gt=0)


ReferencePenalty = Annotated[NoReferenceKl | ReferenceKl, Field(discriminator="type")]
FilterMode = Literal["off", "monitor", "enforce"]


class Filters(Document):
    """Which finished episodes are kept out of the loss; a monitored match is only counted."""

    gibberish: FilterMode = setting("monitor", "Rare tokens sampled at less than chance probability.")
    gibberish_token_id: int = setting(100_000, "Token ids above this count as rare.", ge=0, level="advanced")
    gibberish_offset: float = setting(2.0, "Fires below −ln(vocabulary) − this.", level="advanced", unit="nats")
    repetition: FilterMode = setting("monitor", "A long streak of near-certain tokens.")
    repetition_window: int = setting(3000, "Length of the streak.", ge=2, level="advanced", unit="tokens")
    repetition_probability: float = setting(0.99, "Probability above which a token counts.", gt=0, lt=1, level="advanced")
    zero_advantage: FilterMode = setting("enforce", "Every advantage of the episode is exactly 0.")


class RolloutStage(Document):
    """What every method has that learns from groups of its own episodes."""

    type: str
    steps: int = setting(50, "Optimizer steps.", ge=1, le=10_000_000, unit="steps")
    batch_size: int = setting(64, "Episodes per optimizer step; a multiple of the group size.", ge=1, le=1_000_000)
    group_size: int = setting(8, "Episodes per task; at least 2, or every advantage is 0.", ge=2, le=65_536)
    max_staleness: int = setting(0, "Policy versions an episode may lag behind; 0 is strictly on-policy.", ge=0, le=1024, level="advanced")
    advantage: Literal["mean", "mean_std"] = setting(
        "mean", "Reward minus group mean, optionally divided by the group's standard deviation."
    )
    aggregation: Literal["token", "sequence"] = setting("token", "Average over all loss tokens, or over sequences of token means.")
    train_truncated: bool = setting(True, "Whether episodes cut at the response cap or the turn limit are trained on.", level="advanced")
    train_timed_out: bool = setting(True, "Whether episodes that ran out of the agent's wall clock are trained on.", level="advanced")
    loss: Loss = setting(ClippedLoss(), "What is minimised.")
    reference_kl: ReferencePenalty = setting(NoReferenceKl(), "Optional penalty against the stage's first weights.")
    filters: Filters = setting(Filters(), "Which episodes are left out.")
    micro_batch_tokens: int = setting(
        8192, "Packed tokens per forward pass; bounds memory.", ge=64, le=2**26, level="advanced", unit="tokens"
    )
    optimizer: Optimizer = setting(Optimizer(), "How the weights move.")

    @field_validator("group_size")
    @classmethod
    def _divides_batch(cls, group_size: int, info: ValidationInfo) -> int:
        batch = info.data.get("batch_size")
        if batch is not None and batch % group_size:
            near = max(group_size, batch - batch % group_size)
            raise ValueError(f"batch_size {batch} is not a multiple of group_size {group_size}; try batch_size {near}")
        return group_size


class GrpoStage(RolloutStage):
    """Group-relative policy optimisation: groups of episodes of one task, reward minus group mean."""

    type: Literal["grpo"] = "grpo"
    ungraded_in_baseline: Literal["exclude", "zero"] = setting(
        "exclude", "How a missing reward enters the group baseline.", level="advanced"
    )
    reward_control: Literal["none", "shuffled"] = setting(
        "none", "Shuffled permutes rewards within the batch: a control that must not learn.", level="advanced"
    )


class ExactAnchors(Document):
    """Two turns are in one step-level group when their states are equal."""

    type: Literal["exact"] = "exact"


class SimilarAnchors(Document):
    """A turn joins the first group whose first state resembles its own; slow, and it depends on the order of turns."""

    type: Literal["similar"] = "similar"
    threshold: float = setting(0.95, "Least difflib ratio of two states in one group.", gt=0, lt=1)


class KeepEqualGroups(Document):
    """Groups whose episodes all earned the same stay in the batch; their episode-level advantages are 0."""

    type: Literal["none"] = "none"


class ResampleEqualGroups(Document):
    """Groups whose episodes all earned the same are replaced by fresh ones; the last try keeps everything."""

    type: Literal["resample"] = "resample"
    max_batches: int = setting(10, "Batches drawn at most for one step.", ge=2, le=1000, unit="batches")


class GigpoStage(RolloutStage):
    """Group-in-group policy optimisation: the episode's advantage in its group, plus that of each turn among turns in the same state."""

    type: Literal["gigpo"] = "gigpo"
    allow_group_of_one: bool = setting(False, "Allow group_size 1: step-level credit within one episode alone.", level="advanced")
    group_size: int = setting(8, "Episodes per task variation.", ge=1, le=65_536)
    advantage: Literal["mean", "mean_std"] = setting(
        "mean_std", "Score minus mean, optionally divided by the standard deviation; at both levels."
    )
    min_std: float = setting(
        1e-3, "Standard deviations below count as this, so that tiny differences stay tiny.", ge=0, le=1e6, level="advanced"
    )
    gamma: float = setting(0.95, "Discount of a turn's return.", ge=0, le=1)
    omega: float = setting(1.0, "Weight of the step-level advantage.", ge=0, le=1e6)
    invalid_action_penalty: float = setting(0.1, "Taken from score and return of a turn whose action meant nothing.", ge=0, le=1e6)
    episode_stat_scope: Literal["rows", "trajectories"] = setting(
        "rows",
        "Episode-level mean and deviation over all turns, so that long episodes weigh more, or over one value an episode.",
        level="advanced",
    )
    anchor: Literal["observation", "look_inv", "look_inv_score"] = setting(
        "look_inv_score",
        "What makes two turns the same state: the last reply (as published), or room and inventory, or these and the score.",
    )
    grouping: Annotated[ExactAnchors | SimilarAnchors, Field(discriminator="type")] = setting(
        ExactAnchors(), "How states are matched.", level="advanced"
    )
    equal_groups: Annotated[KeepEqualGroups | ResampleEqualGroups, Field(discriminator="type")] = setting(
        KeepEqualGroups(), "What becomes of groups without signal (dynamic sampling).", level="advanced"
    )
    mini_batch_rows: int | None = setting(
        None,
        "Turns per update of the weights; null makes one update of the whole batch.",
        ge=1,
        le=10_000_000,
        level="advanced",
        unit="turns",
    )
    loss: Loss = setting(ClippedLoss(importance_cap=None), "What is minimised.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.group_size == 1 and not self.allow_group_of_one:
            raise at_field(["group_size"], 1, "1 leaves nothing to compare an episode with; use at least 2, or set allow_group_of_one")
        if self.equal_groups.type == "resample" and self.max_staleness:
            ahead = f"{self.max_staleness} orders ahead, and equal_groups resample waits for each batch; set it to 0"
            raise at_field(["max_staleness"], self.max_staleness, ahead)
        return self


TELL_THE_STATE = ("scienceworld",)
"""Environments that tell room, inventory and score before each action."""

Stage = Annotated[SftStage | GrpoStage | GigpoStage, Field(discriminator="type")]


# ---------------------------------------------------------------- around training
class NoEvaluation(Document):
    """Never evaluate."""

    type: Literal["none"] = "none"


class HeldOutEvaluation(Document):
    """Evaluate on the environment's held-out split: before, during and after training."""

    type: Literal["held_out"] = "held_out"
    before_stages: bool = setting(True, "Score the model before each stage, so that gains have a beginning.")
    every_steps: int | None = setting(None, "Also every n steps; null only at stage ends.", ge=1, le=10_000_000, unit="steps")
    limit: int | None = setting(None, "Use only the first n held-out tasks of the seeded order.", ge=1, le=2**31, unit="tasks")
    temperature: float = setting(1.0, "0 is greedy.", ge=0, le=5)
    forced_choice: bool = setting(True, "Also score the letter with the highest log-prob.")
    without_question: bool = setting(
        False, "Also force a choice among the options without the question: a control that must stay near chance.", level="advanced"
    )


Evaluation = Annotated[NoEvaluation | HeldOutEvaluation, Field(discriminator="type")]


class PruneByKind(Document):
    """Adapters: all until the run ends, then what a rule pins and the best three by each metric. Full weights: what a rule pins."""

    type: Literal["auto"] = "auto"


class PruneNothing(Document):
    """Keep every checkpoint."""

    type: Literal["all"] = "all"


class PruneUnpinned(Document):
    """Keep what a rule pins: the newest, the final one, the best by each metric, and what people pinned."""

    type: Literal["pinned"] = "pinned"


class PruneBetween(Document):
    """Keep what a rule pins, and one every so many steps."""

    type: Literal["every"] = "every"
    steps: int = setting(100, "Keep checkpoints whose step is a multiple of this.", ge=1, le=10_000_000, unit="steps")


class PruneBelowTop(Document):
    """Keep what a rule pins, and the best few by each tracked metric."""

    type: Literal["top"] = "top"
    n: int = setting(3, "Checkpoints to keep by each metric.", ge=1, le=1000)


Prune = Annotated[PruneByKind | PruneNothing | PruneUnpinned | PruneBetween | PruneBelowTop, Field(discriminator="type")]


class Checkpoints(Document):
    """When weights and optimizer state are written, and which are kept."""

    every_steps: int | None = setting(
        None, "Every n steps; null only at stage ends, on stop, and with each evaluation.", ge=1, le=10_000_000, unit="steps"
    )
    in_background: bool = setting(False, "Write while training goes on, from a copy in the memory of the learner's node.", level="advanced")
    keep_last: int = setting(2, "Newest complete ones to keep.", ge=1, le=100_000)
    keep_best: bool = setting(True, "Keep the best by every tracked metric.")
    prune: Prune = setting(PruneByKind(), "Which others are deleted.", level="advanced")

    @model_serializer(mode="wrap")
    def _written(self, write) -> dict[str, Any]:
        return without_defaults(self, write(self), "in_background")


class LearnerSettings(Document):
    """How the learner computes an update, which is the same update either way."""

    checkpoint_activations: bool = setting(
        False, "Keep one activation per layer and compute the others again: much less memory, about a third more time."
    )
    compile: bool = setting(False, "Compile the model's layers when the run starts, about a minute: faster updates on a GPU.")


class RunConfig(Document):
    """One run, complete."""

    schema_version: Literal[1] = setting(SCHEMA_VERSION, "Version of this document's shape.", level="advanced")
    name: str = setting(..., "What the team calls the run.", min_length=1, max_length=120, group="Run")
    project: str = setting("default", "Project the run belongs to.", pattern=SLUG, group="Run")
    experiment: str | None = setting(None, "Groups runs that answer one question.", max_length=120, group="Run")
    tags: list[Tag] = setting([], "Free labels.", group="Run", level="advanced", max_length=20)
    preset: str | None = setting(None, "Preset the document started from, with its version.", group="Run", level="advanced")
    seed: int = setting(0, "Seeds task order, sampling and initialisation.", ge=0, lt=2**31, group="Run")
    model: Model = setting(Model(), "The policy that is trained.", group="Model")
    environment: Environment = setting(QuizEnvironment(), "What the policy acts in.", group="Tasks")
    sampling: Sampling = setting(Sampling(), "How the student generates.", group="Rollouts")
    stages: list[Stage] = setting(..., "Methods applied one after the other.", min_length=1, max_length=16, group="Method")
    evaluation: Evaluation = setting(HeldOutEvaluation(), "Held-out scores.", group="Evaluation")
    checkpoints: Checkpoints = setting(Checkpoints(), "What is kept.", group="Checkpoints")
    resources: Resources = setting(Resources(), "What the run asks of the cluster.", group="Resources")
    engine: Engine = setting(TransformersEngine(), "What generates the episodes.", group="Rollouts")
    learner: LearnerSettings = setting(LearnerSettings(), "How updates are computed.", group="Resources", level="advanced")
    priority: int = setting(0, "Higher starts first.", ge=-1000, le=1000, group="Resources")
    max_attempts: int = setting(3, "Attempts before a lost run stays lost.", ge=1, le=100, group="Resources", level="advanced")

    @field_validator("sampling")
    @classmethod
    def _fits_context(cls, sampling: Sampling, info: ValidationInfo) -> Sampling:
        model = info.data.get("model")
        if model and sampling.max_new_tokens >= model.max_length:
            room = f"{sampling.max_new_tokens} leaves no room for a prompt in model.max_length {model.max_length}; lower it"
            raise at_field(["max_new_tokens"], sampling.max_new_tokens, room)
        return sampling

    @field_validator("stages")
    @classmethod
    def _anchors_are_told(cls, stages: list, info: ValidationInfo) -> list:
        environment = info.data.get("environment")
        for index, stage in enumerate(stages):
            if environment and stage.type == "gigpo" and stage.anchor != "observation" and environment.type not in TELL_THE_STATE:
                told = f"{stage.anchor!r} needs room and inventory, which environment {environment.type!r} does not tell; use observation"
                raise at_field([index, "anchor"], stage.anchor, told)
        return stages

    @field_validator("engine")
    @classmethod
    def _engine_fits(cls, engine: Engine, info: ValidationInfo) -> Engine:
        if engine.type == "vllm":
            _check_vllm(engine, info.data)
        return engine

    @field_validator("learner")
    @classmethod
    def _compiles_for_a_gpu(cls, learner: LearnerSettings, info: ValidationInfo) -> LearnerSettings:
        resources = info.data.get("resources")
        if learner.compile and resources and not resources.gpus:
            raise at_field(["compile"], True, "pays on a GPU, and resources.gpus is 0; turn it off")
        return learner

    @model_serializer(mode="wrap")
    def _written(self, write) -> dict[str, Any]:
        return without_defaults(self, write(self), "engine", "learner")

    @property
    def total_steps(self) -> int:
        """Optimizer steps over all stages."""
        return sum(stage.steps for stage in self.stages)


def _check_vllm(engine: VllmEngine, others: dict[str, Any]) -> None:
    """`others` are the valid ones among the run's other settings."""
    model, resources = others.get("model"), others.get("resources")
    if model and model.adapter.type != "none":
        served = f"'vllm' serves no {model.adapter.type} adapter here; train every weight (model.adapter none), or use engine transformers"
        raise at_field(["type"], "vllm", served)
    if engine.max_batched_tokens is not None and engine.max_batched_tokens < engine.max_sequences:
        told = f"{engine.max_batched_tokens} is less than one token for each of max_sequences {engine.max_sequences}; raise it to that"
        raise at_field(["max_batched_tokens"], engine.max_batched_tokens, told)
    if not engine.sleep_while_learning:
        return
    if resources and not resources.gpus:
        raise at_field(["sleep_while_learning"], True, "frees memory of a GPU, and resources.gpus is 0; turn it off")
    for index, stage in enumerate(others.get("stages") or ()):
        if getattr(stage, "max_staleness", 0):
            ahead = f"stages.{index}.max_staleness {stage.max_staleness} generates while the learner learns; set it to 0, or turn this off"
            raise at_field(["sleep_while_learning"], True, ahead)
