"""How a score was made. Scores whose protocols differ are never mixed."""

from typing import Any, Sequence

from runner.contract.bank import Task
from runner.contract.canonical import canonical_bytes, digest
from runner.contract.run_config import HeldOutEvaluation, RunConfig


def protocol_document(config: RunConfig, evaluation: HeldOutEvaluation, tasks: Sequence[Task], bank_digest: str) -> dict[str, Any]:
    """Everything that decides a held-out score but the weights and the draws. `tasks` names the set, whatever its order."""
    return {
        **_containers(config),
        **_simulator(config),
        "environment": config.environment.type,
        "bank": config.environment.bank,
        "bank_digest": bank_digest,
        "split": config.environment.eval_split,
        "tasks": digest(canonical_bytes(sorted(task.key for task in tasks))),
        "task_count": len(tasks),
        "samples_per_task": 1,
        "temperature": evaluation.temperature,
        "top_p": 1.0,
        "max_new_tokens": config.sampling.max_new_tokens,
        "forced_choice": evaluation.forced_choice,
    }


# What decides a score in a simulator beside tasks and sampling: what is simplified, when it ends, and what the prompt tells.
SIMULATOR = {"simplification", "max_actions", "history_length", "context", "hints", "ambiguity", "failure_reward"}


def _simulator(config: RunConfig) -> dict[str, Any]:
    if config.environment.type != "scienceworld":
        return {}
    return {**config.environment.model_dump(mode="json", include=SIMULATOR), "max_length": config.model.max_length}


def _containers(config: RunConfig) -> dict[str, Any]:
    """What else decides a score that was made in containers: hinted and unhinted ones, say, never share an axis."""
    environment = config.environment
    if environment.type != "harbor":
        return {}
    limits = {"task_timeout_sec": environment.task_timeout_sec, "verifier_timeout_sec": environment.verifier_timeout_sec}
    return {
        "hint_level": environment.hint_level,
        "agent": environment.agent.model_dump(mode="json"),
        "backend": environment.backend,
        "network": environment.network,
        "max_length": config.model.max_length,
        **limits,
    }
