"""Failures by name and wording, in their order; episodes by precedence."""

import pytest

from runner.contract.taxonomy import classify, episode_termination, is_overflow
from runner.contract.termination import ALIASES, HANDLING, Termination

T = Termination


@pytest.mark.parametrize(
    ("exception", "message", "expected"),
    [
        ("AgentSetupTimeoutError", "", T.ROLLOUT_ERROR),
        ("harbor.trial.errors.AgentTimeoutError", "", T.AGENT_TIMEOUT),
        ("EnvironmentStartTimeoutError", "", T.ROLLOUT_ERROR),
        ("SandboxBuildFailedError", "", T.ROLLOUT_ERROR),
        ("VerifierTimeoutError", "", T.VERIFIER_TIMEOUT),
        ("RewardFileNotFoundError", "", T.VERIFIER_ERROR),
        ("RewardFileEmptyError", "", T.VERIFIER_ERROR),
        ("VerifierOutputParseError", "", T.VERIFIER_ERROR),
        ("ContextLengthExceededError", "", T.MAX_RESPONSE_LENGTH_EXCEEDED),
        ("OutputLengthExceededError", "", T.MAX_RESPONSE_LENGTH_EXCEEDED),
        ("CancelledError", "", T.CANCELLED),
        ("APIConnectionError", "refused", T.POLICY_ERROR),
        ("RuntimeError", "Agent execution timed out after 2700 s", T.AGENT_TIMEOUT),
        ("RuntimeError", "Command timed out after 360 seconds", T.ROLLOUT_ERROR),
        ("RuntimeError", "no_trials", T.ROLLOUT_ERROR),
        ("RuntimeError", "missing task_path", T.ROLLOUT_ERROR),
        (
            "BadRequestError",
            "The DECODER PROMPT (length 40999) is longer than the maximum model length of 40960",
            T.MAX_RESPONSE_LENGTH_EXCEEDED,
        ),
        ("BadRequestError", "This model's maximum context length is 8192 tokens", T.MAX_RESPONSE_LENGTH_EXCEEDED),
        ("AgentTimeoutError", "Request aborted by PS Manager", T.CANCELLED),
        ("ZeroDivisionError", "division by zero", None),
    ],
)
def test_a_failure_is_recognised_by_name_then_by_wording(exception, message, expected):
    assert classify(exception, message) is expected


def test_only_the_wording_of_a_full_context_is_an_overflow():
    assert is_overflow("context length exceeded") and is_overflow("Prompt is too long: 9 > 8") and not is_overflow("rate limit exceeded")


def ended(failure=None, **changes):
    return episode_termination(
        failure, **{"exception": failure is not None, "turns": 3, "at_length": False, "at_max_turns": False, "graded": True, **changes}
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (ended(T.CANCELLED, turns=0, at_length=True), T.CANCELLED),
        (ended(turns=0), T.ROLLOUT_ERROR),
        (ended(T.POLICY_ERROR, turns=0), T.POLICY_ERROR),
        (ended(T.AGENT_TIMEOUT, turns=0), T.ROLLOUT_ERROR),
        (ended(at_length=True, at_max_turns=True), T.MAX_RESPONSE_LENGTH_EXCEEDED),
        (ended(at_max_turns=True, graded=False), T.MAX_TURNS_EXCEEDED),
        (ended(T.AGENT_TIMEOUT), T.AGENT_TIMEOUT),
        (ended(T.VERIFIER_TIMEOUT, graded=False), T.VERIFIER_TIMEOUT),
        (ended(exception=True), T.UNKNOWN),
        (ended(graded=False), T.VERIFIER_ERROR),
        (ended(), T.FINISHED),
    ],
)
def test_an_episode_ends_by_the_first_reason_in_order(given, expected):
    assert given is expected


# ---------------------------------------------------------------- section 5, row by row
PUBLISHED = {
    "finished": ("yes", "trusted", False),
    "max_response_length_exceeded": ("by_option", "if_graded", False),
    "max_turns_exceeded": ("by_option", "if_graded", False),
    "verifier_error": ("masked", "null", False),
    "agent_timeout": ("by_option", "if_graded", False),
    "trajectory_timeout": ("dropped", "null", True),
    "rollout_error": ("dropped", "null", True),
    "aborted": ("dropped", "null", False),
    "unknown": ("dropped", "null", True),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_table_says_what_the_published_one_does(name):
    handling = HANDLING[ALIASES.get(name) or Termination(name)]
    assert (handling.train, handling.reward, handling.refill) == PUBLISHED[name]


def test_every_reason_without_data_is_refilled_but_a_cancellation():
    """12.9: a broken environment's episode is run once more instead, whole."""
    for termination, handling in HANDLING.items():
        if handling.train == "dropped" and termination is not T.CANCELLED:
            assert handling.refill or handling.retry == "episode_once", termination
    assert not HANDLING[T.CANCELLED].refill and HANDLING[T.CANCELLED].retry is None
