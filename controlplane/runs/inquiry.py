"""Whether an attempt has ended, and how: one pure judgement over everything that can be known of it.

Silence is no verdict. An attempt ends by its exit record, or because Ray and its processes leave no other reading.
"""

from dataclasses import dataclass

from runner.contract.states import AttemptState

CONTACT_S = 30.0
HEARD_S = 15.0
GIVE_UP_S = 60.0
OUTCOMES = {
    "succeeded": AttemptState.SUCCEEDED,
    "failed": AttemptState.FAILED,
    "stopped": AttemptState.STOPPED,
    "lost": AttemptState.LOST,
}


@dataclass(frozen=True)
class Facts:
    """What was observed.

    job: Ray's status, "unknown" when Ray has never heard of the job, None when Ray did not answer.
    driver: True or False when this host can see the driver's process, None when it cannot.
    silence: seconds without a heartbeat that count against the runner.
    killed: the driver was ended by a signal, as Ray tells.
    """

    claimed: bool
    stopping: bool
    job: str | None
    driver: bool | None
    silence: float
    message: str = ""
    killed: bool = False


@dataclass(frozen=True)
class Verdict:
    state: AttemptState
    reason: str


def by_record(record: dict) -> Verdict:
    """The runner's own word, which wins over Ray's. Raises ValueError on a record that names no outcome."""
    outcome = record.get("outcome")
    if outcome not in OUTCOMES:
        raise ValueError(f"exit record: outcome must be one of {', '.join(OUTCOMES)}, got {outcome!r}")
    error = record.get("error") or {}
    told = record.get("reason") or (f"{error.get('type')}: {error.get('message')}" if error else "")
    return Verdict(OUTCOMES[outcome], str(told)[:2000])


def judge(facts: Facts) -> Verdict | None:
    """The end of an attempt that left no exit record, or None while it may still be running."""
    if facts.job in ("PENDING", "RUNNING"):
        return _ray_says_running(facts)
    if facts.job is None:
        return _ray_is_silent(facts)
    if facts.claimed and (facts.driver or (facts.driver is None and facts.silence < HEARD_S)):
        # Ray may be wrong: a replaced head calls living jobs failed, or does not know them.
        return None
    if facts.stopping:
        return Verdict(AttemptState.STOPPED, f"ended by force on request; steps since the last checkpoint are lost (Ray: {facts.job})")
    if facts.job == "unknown":
        return _ray_forgot(facts)
    if not facts.claimed:
        # What ends by itself would end so again; what was killed may well begin.
        state = AttemptState.LOST if facts.killed else AttemptState.FAILED
        return Verdict(state, f"the driver ended before it claimed its attempt: {facts.message or facts.job}")
    return Verdict(AttemptState.LOST, f"the driver ended without an exit record (Ray: {facts.job}{': ' if facts.message else ''}{facts.message})")


def _ray_says_running(facts: Facts) -> Verdict | None:
    if facts.claimed and facts.driver is False and facts.silence > CONTACT_S:
        return Verdict(AttemptState.LOST, f"the driver's process is gone, although Ray calls the job {facts.job}")
    return None


def _ray_is_silent(facts: Facts) -> Verdict | None:
    if not facts.claimed:
        return None
    if facts.driver is False:
        return Verdict(AttemptState.LOST, "the driver's process is gone and Ray does not answer")
    if facts.driver is None and facts.silence > GIVE_UP_S:
        return Verdict(AttemptState.LOST, f"neither the runner nor Ray has answered for {facts.silence:.0f} s")
    return None


def _ray_forgot(facts: Facts) -> Verdict | None:
    if not facts.claimed:
        return Verdict(AttemptState.LOST, "Ray does not know the job any more; its head was replaced before the driver began")
    return Verdict(AttemptState.LOST, "the driver is gone and Ray does not know the job; its head was replaced")
