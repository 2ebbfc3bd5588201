"""What a run's episodes act in: one document a kind of environment, a union on `type`."""

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from runner.contract.canonical import Document
from runner.contract.scienceworld import check_simplification, kind_of
from runner.contract.setting import SLUG, setting


class BankEnvironment(Document):
    """Which tasks of which bank: shared by all environments."""

    bank: str = setting(..., "Task bank to draw from.", pattern=SLUG)
    version: str | None = setting(None, "Digest of the bank version; the newest one is pinned when the run is queued.", level="advanced")
    train_split: str = setting("train", "Split that episodes are trained on.", level="advanced")
    eval_split: str = setting("eval", "Held-out split; its answers are never trained on.", level="advanced")
    domains: list[str] = setting([], "Keep only these domains; empty keeps all.")
    levels: list[str] = setting([], "Keep only these levels; empty keeps all.", level="advanced")
    train_limit: int | None = setting(None, "Use only the first n training tasks of the seeded order.", level="advanced", ge=1, le=2**31)


class QuizEnvironment(BankEnvironment):
    """Bundled science quiz: four domains, questions generated from facts and formulas."""

    type: Literal["quiz"] = "quiz"
    bank: str = setting("quiz", "Task bank to draw from.", pattern=SLUG)


class SciKnowEvalEnvironment(BankEnvironment):
    """SciKnowEval multiple-choice questions, imported by the user."""

    type: Literal["sciknoweval"] = "sciknoweval"
    bank: str = setting("sciknoweval", "Task bank to draw from.", pattern=SLUG)


class MenuAgent(Document):
    """Chooses a file, then one of its edits, sees build and checks, keeps or revises: numbered options, shuffled anew each episode."""

    type: Literal["menu"] = "menu"
    max_turns: int = setting(4, "Replies at most; the edit of the last one is kept.", ge=2, le=4, unit="turns")
    max_edits: int = setting(4, "Edits offered of each file; the one that repairs it is always among them.", ge=2, le=50, level="advanced")
    max_observation_bytes: int = setting(
        600, "Bytes of build and check output that are shown; head and tail are kept.", ge=100, le=100_000, level="advanced", unit="bytes"
    )


class TerminalAgent(Document):
    """Types keystrokes into a terminal in the container, one JSON object a turn."""

    type: Literal["terminal"] = "terminal"
    max_turns: int = setting(50, "Replies at most; turns and context are spent together.", ge=1, le=1000, unit="turns")
    max_observation_bytes: int = setting(
        4096, "Bytes of terminal output that are shown a turn; head and tail are kept.", ge=256, le=1_000_000, unit="bytes"
    )
    context_margin: int = setting(
        8192,
        "Tokens kept free: prompts may use model.max_length less this, and at least 1,024.",
        ge=0,
        le=1_048_576,
        level="advanced",
        unit="tokens",
    )
    length_retries: int = setting(
        3, "How often in a row a reply may be cut at the response cap before the episode ends.", ge=0, le=20, level="advanced"
    )
    thinking: Literal["multi_thinking", "disable_thinking"] = setting(
        "multi_thinking",
        "Keep thinking in the history (needs a template that accumulates), or ask the template for none.",
        level="advanced",
    )
    summarise: bool = setting(
        False,
        "When the context is nearly full, go on from a summary instead of ending; it rewrites history, so the sequence forks.",
        level="advanced",
    )


RepairAgent = Annotated[MenuAgent | TerminalAgent, Field(discriminator="type")]


class HarborEnvironment(BankEnvironment):
    """Repair of scientific code in containers: an agent's container, and a separate verifier without network."""

    type: Literal["harbor"] = "harbor"
    bank: str = setting("repair", "Task bank to draw from; its domains are codes, its levels are tiers.", pattern=SLUG)
    families: list[str] = setting([], "Keep only these defect families; empty keeps all.", level="advanced")
    hint_level: Literal["L1", "L2", "L3"] = setting("L1", "L1 names file and line of the defect, L2 the file, L3 nothing.")
    agent: RepairAgent = setting(MenuAgent(), "Who acts inside the container.")
    backend: Literal["docker", "process"] = setting(
        "docker", "Containers, or plain processes on a laptop without Docker: weaker isolation, marked wherever it was used."
    )
    max_concurrent_episodes: int = setting(4, "Episodes under way at once, on each rollout worker.", ge=1, le=64)
    task_timeout_sec: int | None = setting(2700, "Wall seconds of the agent; null takes the task's own.", ge=1, le=86_400, unit="s")
    verifier_timeout_sec: int = setting(900, "Wall seconds of the verifier; not below the task's own.", ge=1, le=86_400, unit="s")
    build_timeout_multiplier: float = setting(2.0, "Times each task's own limit for building its images.", gt=0, le=100, level="advanced")
    memory_mb_override: int | None = setting(
        None, "Memory of the agent's container; null takes the task's.", ge=64, le=1_048_576, level="advanced", unit="MB"
    )
    verifier_memory_mb_override: int | None = setting(
        None, "Memory of the verifier's container; null takes the task's.", ge=64, le=1_048_576, level="advanced", unit="MB"
    )
    network: Literal["closed", "public"] = setting(
        "closed",
        "Closed also where a task allows some hosts; public lets the agent fetch the answer, and is shown in red.",
        level="advanced",
    )
    regrade: bool = setting(True, "Verify once more, from the saved files, when the verifier gave no reward.", level="advanced")
    unproven_reason: str | None = setting(
        None,
        "Why this run may use a bank whose anchors are not proven; stays visible on the run.",
        min_length=1,
        max_length=400,
        level="advanced",
    )
    unmasked_reason: str | None = setting(
        None,
        "Why this run may train on episodes that were cut off as if they had failed; stays visible on the run.",
        min_length=1,
        max_length=400,
        level="advanced",
    )
    verifier_fault_rate: float = setting(
        0.0, "Share of episodes whose verifier is made to fail: a drill for the handling of missing rewards.", ge=0, le=1, level="advanced"
    )


class RawFailure(Document):
    """A failed task costs what the simulator takes: its score falls to -100, so the step's reward is -10 less what was earned."""

    type: Literal["raw"] = "raw"


class ClippedFailure(Document):
    """The failing step earns 0."""

    type: Literal["clip0"] = "clip0"


class FixedFailure(Document):
    """The failing step costs a fixed amount."""

    type: Literal["fixed"] = "fixed"
    penalty: float = setting(1.0, "Taken off at the failing step; a solved episode earns at most 10.", ge=0, le=100)


FailureReward = Annotated[RawFailure | ClippedFailure | FixedFailure, Field(discriminator="type")]


class ScienceWorldEnvironment(BankEnvironment):
    """A text laboratory of thirty elementary science tasks; each episode acts in a simulator of its own (Java)."""

    type: Literal["scienceworld"] = "scienceworld"
    bank: str = setting(
        "scienceworld", "Task bank to draw from; its domains are topics, its levels are task ids such as 4-2.", pattern=SLUG
    )
    eval_split: str = setting("dev", "Held-out split; its gold is never trained on.", level="advanced")
    eval_tasks: Literal["all", "dev140"] = setting("all", "Evaluate on the whole split, or on the 140 fixed episodes of the dev split.")
    simplification: str = setting(
        "easy", "easy, or some of the five names with commas and no blanks; it changes text, actions and scores.", max_length=120
    )
    max_actions: int = setting(100, "Actions an episode may take; every reply counts as one.", ge=1, le=10_000, unit="actions")
    context: Literal["turn", "episode"] = setting(
        "turn", "turn: every prompt stands alone and tells the last actions; episode: one conversation that grows."
    )
    history_length: int = setting(2, "Past observations and actions that a turn's prompt tells.", ge=0, le=100, level="advanced")
    hints: Literal["full", "objects", "none"] = setting(
        "full", "What a prompt lists: action patterns and objects in sight, the objects, or nothing."
    )
    ambiguity: Literal["model", "auto_first"] = setting(
        "model", "Who answers when a name fits several objects: the model, with a number, or the first reading is taken.", level="advanced"
    )
    failure_reward: FailureReward = setting(RawFailure(), "What a failed task costs; it changes every curve.", level="advanced")
    check_listed: bool = setting(
        False,
        "Also tell whether each action was in the simulator's list of valid ones; a step takes several times as long.",
        level="advanced",
    )
    max_concurrent_episodes: int = setting(4, "Simulators of each rollout worker, 0.46 GB each; fewer where memory is short.", ge=1, le=256)
    heap_mb: int = setting(256, "Java heap of a simulator; 128 is too little for task 3-3.", ge=64, le=65_536, level="advanced", unit="MB")
    recycle_episodes: int = setting(
        500, "Episodes after which a simulator is replaced by a fresh one.", ge=1, le=1_000_000, level="advanced"
    )
    boot_timeout_sec: float = setting(120.0, "Until a simulator must have started.", gt=0, le=3600, level="advanced", unit="s")
    load_timeout_sec: float = setting(60.0, "Until a task must have been loaded.", gt=0, le=3600, level="advanced", unit="s")
    step_timeout_sec: float = setting(
        30.0, "Until an action must have been answered; the simulator is ended then.", gt=0, le=3600, level="advanced", unit="s"
    )
    gold_timeout_sec: float = setting(120.0, "Until the oracle's path must have been made.", gt=0, le=3600, level="advanced", unit="s")

    @field_validator("eval_tasks")
    @classmethod
    def _of_the_split(cls, eval_tasks: str, info: ValidationInfo) -> str:
        split = info.data.get("eval_split")
        if eval_tasks != "all" and split != "dev":
            raise ValueError(f"{eval_tasks} is a list of the dev split, not of {split}; choose all")
        return eval_tasks

    @field_validator("simplification")
    @classmethod
    def _understood(cls, text: str) -> str:
        return check_simplification(text)

    @field_validator("levels")
    @classmethod
    def _known_tasks(cls, levels: list[str]) -> list[str]:
        return [kind_of(level).id for level in levels]


Environment = Annotated[QuizEnvironment | SciKnowEvalEnvironment | HarborEnvironment | ScienceWorldEnvironment, Field(discriminator="type")]
