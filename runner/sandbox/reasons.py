"""Why a container episode went wrong, by name, and what each name means for the episode.

A termination says how an episode counts (`runner.contract.termination`); a reason says what happened. Several reasons share a termination.
"""

from enum import StrEnum

from runner.contract.termination import Termination


class Reason(StrEnum):
    DAEMON_UNREACHABLE = "daemon_unreachable"
    DAEMON_RESTARTED = "daemon_restarted"
    DAEMON_WEDGED = "daemon_wedged"
    ADDRESS_POOL_EXHAUSTED = "address_pool_exhausted"
    NODE_STORAGE_FAILED = "node_storage_failed"
    ADMIT_TIMEOUT = "admit_timeout"
    ISOLATION_UNAVAILABLE = "isolation_unavailable"

    CONTEXT_UNSAFE = "build_context_unsafe"
    CONTEXT_TOO_LARGE = "build_context_too_large"
    CONTEXT_MISSING = "build_context_missing"
    BUILD_FAILED = "build_failed"
    BUILD_TIMEOUT = "build_timeout"
    IMAGE_MISSING = "image_missing"
    START_FAILED = "container_start_failed"
    HEALTHCHECK_FAILED = "healthcheck_failed"

    AGENT_SETUP_FAILED = "agent_setup_failed"
    AGENT_SETUP_TIMEOUT = "agent_setup_timeout"
    AGENT_TIMEOUT = "agent_timeout"
    EXEC_FAILED = "exec_failed"
    CONTAINER_DIED = "container_died"
    OUT_OF_MEMORY = "out_of_memory"
    DISK_LIMIT_EXCEEDED = "disk_limit_exceeded"

    PATH_MISSING = "path_missing"
    ARCHIVE_UNSAFE_PATH = "archive_unsafe_path"
    ARCHIVE_SPECIAL_FILE = "archive_special_file"
    ARCHIVE_TOO_LARGE = "archive_too_large"
    ARCHIVE_TOO_MANY_FILES = "archive_too_many_files"
    COLLECT_TIMEOUT = "collect_timeout"
    ARCHIVE_DAMAGED = "archive_damaged"

    VERIFIER_BUILD_FAILED = "verifier_build_failed"
    VERIFIER_START_FAILED = "verifier_start_failed"
    VERIFIER_TIMEOUT = "verifier_timeout"
    VERIFIER_OUT_OF_MEMORY = "verifier_out_of_memory"
    VERIFIER_OUTPUT_FLOOD = "verifier_output_flood"
    VERIFIER_DIED = "verifier_died"
    REWARD_MISSING = "reward_missing"
    REWARD_EMPTY = "reward_empty"
    REWARD_TOO_LARGE = "reward_too_large"
    REWARD_UNPARSABLE = "reward_unparsable"
    REWARD_NOT_NUMERIC = "reward_not_numeric"
    REWARD_NOT_FINITE = "reward_not_finite"
    REWARD_KEY_MISSING = "reward_key_missing"
    GRADER_ERROR = "grader_error"

    BACKSTOP = "episode_backstop"
    CANCELLED = "cancelled"
    UNCLASSIFIED = "unclassified"


_SETUP = {
    Reason.ADDRESS_POOL_EXHAUSTED,
    Reason.ADMIT_TIMEOUT,
    Reason.ISOLATION_UNAVAILABLE,
    Reason.BUILD_FAILED,
    Reason.BUILD_TIMEOUT,
    Reason.IMAGE_MISSING,
    Reason.START_FAILED,
    Reason.HEALTHCHECK_FAILED,
    Reason.AGENT_SETUP_FAILED,
    Reason.AGENT_SETUP_TIMEOUT,
}
_OTHER = {
    Reason.DAEMON_UNREACHABLE: Termination.INFRA_LOST,
    Reason.DAEMON_RESTARTED: Termination.INFRA_LOST,
    Reason.DAEMON_WEDGED: Termination.INFRA_LOST,
    Reason.NODE_STORAGE_FAILED: Termination.INFRA_LOST,
    Reason.CONTEXT_UNSAFE: Termination.ENV_BAD_TASK,
    Reason.CONTEXT_TOO_LARGE: Termination.ENV_BAD_TASK,
    Reason.CONTEXT_MISSING: Termination.ENV_BAD_TASK,
    Reason.AGENT_TIMEOUT: Termination.AGENT_TIMEOUT,
    Reason.EXEC_FAILED: Termination.ENV_CRASH,
    Reason.CONTAINER_DIED: Termination.ENV_CRASH,
    Reason.DISK_LIMIT_EXCEEDED: Termination.ENV_CRASH,
    Reason.OUT_OF_MEMORY: Termination.ENV_OOM,
    Reason.VERIFIER_TIMEOUT: Termination.VERIFIER_TIMEOUT,
    Reason.BACKSTOP: Termination.POLICY_ERROR,
    Reason.CANCELLED: Termination.CANCELLED,
    Reason.UNCLASSIFIED: Termination.UNKNOWN,
}

# What is not listed went wrong while delivering or grading: the agent's turns stand, the episode has no score.
TERMINATION: dict[Reason, Termination] = {
    reason: Termination.ROLLOUT_ERROR if reason in _SETUP else _OTHER.get(reason, Termination.VERIFIER_ERROR) for reason in Reason
}


class SandboxFailure(Exception):
    """Something about a container failed for a named reason. The message names what, its value and the remedy."""

    def __init__(self, reason: Reason, message: str):
        self.reason = reason
        super().__init__(message)

    @property
    def termination(self) -> Termination:
        return TERMINATION[self.reason]
