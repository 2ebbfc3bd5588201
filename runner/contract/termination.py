"""Why an episode ended: one enum for all environments.

Frozen: metric paths contain the names (`termination/<name>/fraction`).
"""

from dataclasses import dataclass
from enum import StrEnum


class Termination(StrEnum):
    FINISHED = "finished"
    MAX_TURNS_EXCEEDED = "max_turns_exceeded"
    MAX_RESPONSE_LENGTH_EXCEEDED = "max_response_length_exceeded"
    AGENT_TIMEOUT = "agent_timeout"
    PARSE_FAILED = "parse_failed"
    VERIFIER_ERROR = "verifier_error"
    VERIFIER_TIMEOUT = "verifier_timeout"
    ENV_CRASH = "env_crash"
    ENV_TIMEOUT = "env_timeout"
    ENV_OOM = "env_oom"
    ENV_BAD_TASK = "env_bad_task"
    REPLAY_MISMATCH = "replay_mismatch"
    ROLLOUT_ERROR = "rollout_error"
    POLICY_ERROR = "policy_error"
    CANCELLED = "cancelled"
    INFRA_LOST = "infra_lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Handling:
    """What follows from a termination.

    reward: "trusted" · "if_graded" (the score stands when there is one) · "null" (never a reward).
    train: "yes" · "by_option" · "masked" (in the group, not in the loss) · "dropped".
    refill: a dropped episode is replaced by a new one.
    """

    reward: str
    train: str
    eval_error: bool
    refill: bool = False
    retry: str | None = None


_ENVIRONMENT = Handling("null", "dropped", True, retry="episode_once")
_INFRASTRUCTURE = Handling("null", "dropped", True, refill=True, retry="worker")

HANDLING: dict[Termination, Handling] = {
    Termination.FINISHED: Handling("trusted", "yes", False),
    Termination.MAX_TURNS_EXCEEDED: Handling("if_graded", "by_option", False),
    Termination.MAX_RESPONSE_LENGTH_EXCEEDED: Handling("if_graded", "by_option", False),
    Termination.AGENT_TIMEOUT: Handling("if_graded", "by_option", False),
    Termination.PARSE_FAILED: Handling("if_graded", "yes", False),
    Termination.VERIFIER_ERROR: Handling("null", "masked", True, retry="regrade"),
    Termination.VERIFIER_TIMEOUT: Handling("null", "masked", True, retry="regrade"),
    Termination.ENV_CRASH: _ENVIRONMENT,
    Termination.ENV_TIMEOUT: _ENVIRONMENT,
    Termination.ENV_OOM: _ENVIRONMENT,
    Termination.ENV_BAD_TASK: _ENVIRONMENT,
    Termination.REPLAY_MISMATCH: _ENVIRONMENT,
    Termination.ROLLOUT_ERROR: _INFRASTRUCTURE,
    Termination.POLICY_ERROR: _INFRASTRUCTURE,
    Termination.CANCELLED: Handling("null", "dropped", False),
    Termination.INFRA_LOST: _INFRASTRUCTURE,
    Termination.UNKNOWN: _INFRASTRUCTURE,
}

ALIASES: dict[str, Termination] = {
    "done": Termination.FINISHED,
    "tool_stopped": Termination.FINISHED,
    "max_turns": Termination.MAX_TURNS_EXCEEDED,
    "max_tokens": Termination.MAX_RESPONSE_LENGTH_EXCEEDED,
    "context_overflow": Termination.MAX_RESPONSE_LENGTH_EXCEEDED,
    "prompt_truncated": Termination.MAX_RESPONSE_LENGTH_EXCEEDED,
    "overflow": Termination.MAX_RESPONSE_LENGTH_EXCEEDED,
    "agent_exhausted_budget": Termination.AGENT_TIMEOUT,
    "parse_error": Termination.PARSE_FAILED,
    "verifier_missing_reward": Termination.VERIFIER_ERROR,
    "verifier_oom": Termination.VERIFIER_ERROR,
    "grader_error": Termination.VERIFIER_ERROR,
    "env_error": Termination.ENV_CRASH,
    "sandbox_failed": Termination.ROLLOUT_ERROR,
    "model_provider_failed": Termination.POLICY_ERROR,
    "trajectory_timeout": Termination.POLICY_ERROR,
    "aborted": Termination.CANCELLED,
    "unclassified": Termination.UNKNOWN,
}


def trusted_reward(termination: Termination, score: float | None) -> float | None:
    """The reward that may be used: None whenever the termination forbids trusting a score."""
    return None if HANDLING[termination].reward == "null" else score
