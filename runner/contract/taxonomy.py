"""From what went wrong to a termination: for errors of model servers, and for trials that other tools recorded.

Order: the wording of a cancellation, names of exception classes, wording of messages, the wording of a prompt that does not fit. Names
are ordered too: what a setup ran out of is looked for before what an agent ran out of. What nothing recognises is None: it is surfaced
as unknown, never guessed.
"""

from runner.contract.termination import Termination

_BY_NAME: tuple[tuple[str, Termination], ...] = (
    ("agentsetuptimeout", Termination.ROLLOUT_ERROR),
    ("environmentstarttimeout", Termination.ROLLOUT_ERROR),
    ("environmentbuild", Termination.ROLLOUT_ERROR),
    ("sandboxbuild", Termination.ROLLOUT_ERROR),
    ("sandboxfailed", Termination.ROLLOUT_ERROR),
    ("agenttimeout", Termination.AGENT_TIMEOUT),
    ("contextlengthexceeded", Termination.MAX_RESPONSE_LENGTH_EXCEEDED),
    ("outputlengthexceeded", Termination.MAX_RESPONSE_LENGTH_EXCEEDED),
    ("contextwindowexceeded", Termination.MAX_RESPONSE_LENGTH_EXCEEDED),
    ("verifiertimeout", Termination.VERIFIER_TIMEOUT),
    ("verifieroutputparse", Termination.VERIFIER_ERROR),
    ("rewardfile", Termination.VERIFIER_ERROR),
    ("verifier", Termination.VERIFIER_ERROR),
    ("downloadverifier", Termination.VERIFIER_ERROR),
    ("cancelled", Termination.CANCELLED),
    ("apiconnection", Termination.POLICY_ERROR),
    ("apistatus", Termination.POLICY_ERROR),
    ("apitimeout", Termination.POLICY_ERROR),
    ("ratelimit", Termination.POLICY_ERROR),
    ("internalserver", Termination.POLICY_ERROR),
    ("modelprovider", Termination.POLICY_ERROR),
)
ABORTED = "request aborted by ps manager"
_BY_WORDING: tuple[tuple[str, Termination], ...] = (
    # Before everything else: a sibling that was cancelled on purpose must not count as an error and take its group along.
    (ABORTED, Termination.CANCELLED),
    ("agent execution timed out", Termination.AGENT_TIMEOUT),
    ("agent setup timed out", Termination.ROLLOUT_ERROR),
    ("command timed out", Termination.ROLLOUT_ERROR),
    ("no_trials", Termination.ROLLOUT_ERROR),
    ("task_path", Termination.ROLLOUT_ERROR),
)
_OVERFLOW = ("maximum model length", "decoder prompt", "context length exceeded", "maximum context length", "prompt is too long")


def is_overflow(message: str) -> bool:
    """Whether a server's words say that the prompt does not fit its context: no repetition will make it fit."""
    said = message.lower()
    return any(words in said for words in _OVERFLOW)


def classify(exception: str, message: str) -> Termination | None:
    """The termination that an exception's class name and message stand for; None when they are not recognised."""
    said = message.lower()
    if ABORTED in said:
        return Termination.CANCELLED
    name = exception.rpartition(".")[2].lower()
    for table, text in ((_BY_NAME, name), (_BY_WORDING, said)):
        for part, termination in table:
            if part in text:
                return termination
    return Termination.MAX_RESPONSE_LENGTH_EXCEEDED if is_overflow(message) else None


def episode_termination(
    failure: Termination | None, *, exception: bool, turns: int, at_length: bool, at_max_turns: bool, graded: bool
) -> Termination:
    """Why an episode ended, in order of precedence: cancelled, no turn at all, context, turns, clock, verifier, finished.

    `failure` is what `classify` said of its exception, if it had one. A clock that ran out stays on record although the verifier
    graded what was delivered.
    """
    if failure is Termination.CANCELLED:
        return failure
    if not turns:
        return failure if failure and failure is not Termination.AGENT_TIMEOUT else Termination.ROLLOUT_ERROR
    if at_length or failure is Termination.MAX_RESPONSE_LENGTH_EXCEEDED:
        return Termination.MAX_RESPONSE_LENGTH_EXCEEDED
    if at_max_turns:
        return Termination.MAX_TURNS_EXCEEDED
    if failure:
        return failure
    if exception:
        return Termination.UNKNOWN
    return Termination.FINISHED if graded else Termination.VERIFIER_ERROR
