"""EvaluationConfig: the only description of an evaluation in containers, as RunConfig is of a training run.

An evaluation is a run like any other (queued, granted, claimed, stopped, resumed) whose driver trains nothing. `agent` says who acts: two
agents that need no model, both of them to prove a bank's anchors, nop to warm a node, or the model through the environment's agent.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from runner.contract.canonical import Document
from runner.contract.parse import InvalidDocument, field_errors, parse
from runner.contract.run_config import (
    SCHEMA_VERSION,
    SLUG,
    BuiltinModel,
    CheckpointModel,
    HarborEnvironment,
    HubModel,
    LocalModel,
    NoAdapter,
    RunConfig,
    Tag,
    setting,
)
from runner.contract.warming import CONCURRENCY

KIND = "evaluation"
ANCHORS, REGRADE, WARMING = "anchors", "regrade", "warming"


class ServedModel(Document):
    """A model behind an OpenAI-compatible address that the nodes reach."""

    type: Literal["served"] = "served"
    name: str = setting(..., "Name that the server knows the model by.", min_length=1, max_length=200)
    url: str = setting(..., "Address ending in /v1.", pattern=r"^https?://[^\s/]+(/\S*)?$", max_length=1000)


class EndpointModel(Document):
    """The same, acted with token by token: prompts are made here, by the model's own tokenizer, as in training."""

    type: Literal["endpoint"] = "endpoint"
    name: str = setting(..., "Name that the server knows the model by.", min_length=1, max_length=200)
    url: str = setting(..., "Address ending in /v1.", pattern=r"^https?://[^\s/]+(/\S*)?$", max_length=1000)
    tokenizer: str = setting(..., "Absolute path, on the nodes, of a folder with the model's tokenizer.", pattern=r"^/", max_length=1000)


SERVED = ("served", "endpoint")
"""Sources whose weights are a server's own: nothing here can pin them."""

EvaluatedSource = Annotated[
    BuiltinModel | LocalModel | HubModel | CheckpointModel | ServedModel | EndpointModel, Field(discriminator="type")
]


class EvaluatedModel(Document):
    """Whose replies are scored. A checkpoint names its step; every other source is the base model, and is called so."""

    source: EvaluatedSource = setting(..., "Where the weights come from.")
    dtype: Literal["float32", "bfloat16"] = setting("float32", "Precision of weights and activations.")
    max_length: int = setting(2048, "Prompt plus response.", ge=16, le=1_048_576, unit="tokens")

    @property
    def adapter(self) -> NoAdapter:
        """A checkpoint's adapter is merged into its weights before they are loaded."""
        return NoAdapter()


class EvaluationSampling(Document):
    """How the model generates. A served model's server decides how long a reply may be."""

    temperature: float = setting(1.0, "0 is greedy.", ge=0, le=5)
    max_new_tokens: int = setting(256, "Response cap.", ge=1, le=131_072, unit="tokens")


class Selection(Document):
    """Which tasks, in this order: splits, categories, families, pattern; by name, the first n of each stratum, the first n of all."""

    splits: list[str] = setting([], "Keep only these splits; empty keeps every task that can run.")
    categories: list[str] = setting([], "Keep only these categories; empty keeps all.")
    task_glob: str | None = setting(None, "Keep the names that match this pattern.", min_length=1, max_length=200)
    per_family: int | None = setting(None, "The first n by name of each (category, family, tree).", ge=1, le=2**31)
    limit: int | None = setting(None, "The first n of what is left; families are uneven, prefer per_family.", ge=1, le=2**31)
    samples: int = setting(1, "Episodes of each task.", ge=1, le=1000)
    gpu_tasks: bool = setting(False, "Also tasks that need a GPU.")


class SavedEpisode(Document):
    """An episode whose deliveries were kept, to be graded once more."""

    episode: str = setting(..., "Identifier of the episode.", min_length=1, max_length=80)
    task: str = setting(..., "Key of its task.", min_length=1, max_length=200)
    artifacts: str = setting(..., "Folder of what it delivered, as the nodes see it.", pattern=r"^/", max_length=2000)


class EvaluationResources(Document):
    """What the evaluation asks of one node; its containers take what each task sets, and count against the node's slots."""

    cpus: float = setting(1.0, "Processor share of the driver, which also runs the model.", gt=0, le=1024)
    threads: int = setting(1, "Torch threads of the model.", ge=1, le=256)
    node: str | None = setting(None, "The node that it runs on; any that has room when left out.", min_length=1, max_length=120)


class EvaluationConfig(Document):
    """One evaluation, complete."""

    kind: Literal["evaluation"] = "evaluation"
    schema_version: Literal[1] = SCHEMA_VERSION
    name: str = setting(..., "What the team calls it.", min_length=1, max_length=120)
    project: str = setting("default", "Project it belongs to.", pattern=SLUG)
    experiment: str | None = setting(None, "Groups runs that answer one question.", max_length=120)
    tags: list[Tag] = setting([], "Free labels.", max_length=20)
    seed: int = setting(0, "Seeds sampling and what each episode is shown.", ge=0, lt=2**31)
    agent: Literal["anchors", "oracle", "nop", "model", "regrade", "warming"] = setting(
        ...,
        "Who acts; `model` acts through environment.agent, `regrade` nobody: saved deliveries are graded once more. `warming` is nop on "
        "one node, and once more where set-up was slow.",
    )
    model: EvaluatedModel | None = setting(None, "Whose replies are scored; needed by agent `model` alone.")
    sampling: EvaluationSampling = EvaluationSampling()
    environment: HarborEnvironment = HarborEnvironment()
    selection: Selection = Selection()
    saved: list[SavedEpisode] = setting([], "What agent `regrade` grades.", max_length=1000)
    resources: EvaluationResources = EvaluationResources()
    priority: int = setting(0, "Higher starts first.", ge=-1000, le=1000)
    max_attempts: int = setting(3, "Attempts before a lost one stays lost.", ge=1, le=100)

    @field_validator("environment")
    @classmethod
    def _no_drill(cls, environment: HarborEnvironment) -> HarborEnvironment:
        if environment.verifier_fault_rate:
            raise ValueError("verifier_fault_rate is a drill of training; an evaluation's verifiers are never made to fail")
        return environment

    @model_validator(mode="after")
    def _model_where_needed(self) -> "EvaluationConfig":
        if self.agent == "model" and self.model is None:
            raise _at("model", "agent 'model' needs one: say which model or checkpoint is evaluated")
        if self.agent != "model" and self.model is not None:
            raise _at("model", f"agent {self.agent!r} needs no model; leave it out")
        if (self.agent == REGRADE) != bool(self.saved):
            raise _at("saved", "names the episodes that agent 'regrade' grades, and goes with no other agent")
        return self

    @model_validator(mode="after")
    def _warming_is_of_one_node(self) -> "EvaluationConfig":
        if self.agent != WARMING:
            return self
        if self.resources.node is None:
            raise _at("resources/node", "agent 'warming' warms one node: say which")
        if self.environment.max_concurrent_episodes > CONCURRENCY:
            raise _at("environment/max_concurrent_episodes", f"more than {CONCURRENCY} at once while warming look like broken tasks")
        if self.selection.samples != 1:
            raise _at("selection/samples", "agent 'warming' runs each task once, and once more where it was slow")
        return self

    @property
    def agent_name(self) -> str:
        """The agent as results name it."""
        return self.environment.agent.type if self.agent == "model" else self.agent

    @property
    def agents(self) -> tuple[str, ...]:
        """Who acts on each task, one after the other."""
        return {ANCHORS: ("oracle", "nop"), WARMING: ("nop",)}.get(self.agent, (self.agent_name,))


_SOURCE_KEYS = {"checkpoint": "checkpoint", "path": "path", "hub": "repo_id", "builtin": "name"}


def source_of(model: str, url: str = "", tokenizer: str = "") -> dict[str, str]:
    """The model source that a person means by `checkpoint:ID`, `path:/folder`, `hub:owner/name`, `builtin:NAME`, or a name at `url`.

    With the folder of its `tokenizer` the server is sent tokens, else messages. Raises ValueError: nothing is guessed, so that no base model
    ever stands for a checkpoint.
    """
    if url and tokenizer:
        return {"type": "endpoint", "name": model, "url": url, "tokenizer": tokenizer}
    if url:
        return {"type": "served", "name": model, "url": url}
    kind, _, rest = model.partition(":")
    if kind not in _SOURCE_KEYS or not rest:
        raise ValueError("say checkpoint:ID, path:/folder, hub:owner/name or builtin:NAME; a served model needs its address as well")
    return {"type": kind, _SOURCE_KEYS[kind]: rest}


def source_text(source: dict[str, Any]) -> str:
    """What `source_of` reads as this source."""
    kind = source["type"]
    return source["name"] if kind in SERVED else f"{kind}:{source[_SOURCE_KEYS[kind]]}"


def _at(field: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("cross_field", "{message}", {"message": message, "at": field.split("/"), "value": None})


def parse_evaluation(document: dict[str, Any]) -> EvaluationConfig:
    """Validate `document` strictly. Raises InvalidDocument naming each field, its value and what is wrong."""
    try:
        return EvaluationConfig.model_validate(document)
    except ValidationError as error:
        raise InvalidDocument(field_errors(error, document)) from None


def parse_any(document: dict[str, Any]) -> RunConfig | EvaluationConfig:
    """The config of a run of either kind. Raises InvalidDocument."""
    return parse_evaluation(document) if document.get("kind") == KIND else parse(document)
