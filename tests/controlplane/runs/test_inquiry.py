"""The judgement over an attempt, fact by fact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.runs.inquiry import CONTACT_S, GIVE_UP_S, HEARD_S, Facts, by_record, judge

LONG = GIVE_UP_S + 1


def facts(**changes):
    return Facts(**{"claimed": True, "stopping": False, "job": "RUNNING", "driver": None, "silence": 0.0, **changes})


@pytest.mark.parametrize(
    "changes, state",
    [
        # Ray says it runs.
        ({}, None),
        ({"silence": 1e9}, None),
        ({"driver": True, "silence": 1e9}, None),
        ({"driver": False, "silence": 1.0}, None),
        ({"driver": False, "silence": CONTACT_S + 1}, "lost"),
        ({"claimed": False, "job": "PENDING"}, None),
        # Ray does not answer.
        ({"job": None}, None),
        ({"job": None, "silence": LONG}, "lost"),
        ({"job": None, "driver": True, "silence": LONG}, None),
        ({"job": None, "driver": False}, "lost"),
        ({"job": None, "claimed": False, "silence": LONG}, None),
        # Ray has never heard of it.
        ({"job": "unknown"}, None),
        ({"job": "unknown", "silence": HEARD_S}, "lost"),
        ({"job": "unknown", "driver": True, "silence": LONG}, None),
        ({"job": "unknown", "driver": False}, "lost"),
        ({"job": "unknown", "claimed": False}, "lost"),
        # Ray says it is over, and no exit record was found.
        ({"job": "FAILED"}, None),
        ({"job": "FAILED", "driver": True, "silence": LONG}, None),
        ({"job": "FAILED", "driver": False}, "lost"),
        ({"job": "SUCCEEDED", "silence": HEARD_S}, "lost"),
        ({"job": "FAILED", "claimed": False}, "failed"),
        ({"job": "FAILED", "claimed": False, "killed": True}, "lost"),
        ({"job": "STOPPED", "silence": HEARD_S, "stopping": True}, "stopped"),
        ({"job": "unknown", "silence": HEARD_S, "stopping": True}, "stopped"),
        ({"job": "STOPPED", "claimed": False, "stopping": True}, "stopped"),
    ],
)
def test_each_reading(changes, state):
    verdict = judge(facts(**changes))
    assert (verdict and verdict.state) == state
    assert verdict is None or verdict.reason


@given(st.builds(Facts, claimed=st.just(True), stopping=st.booleans(), job=st.sampled_from([None, "unknown", "RUNNING", "FAILED"]),
                 driver=st.just(True), silence=st.floats(0, 1e6)))
def test_a_driver_that_is_seen_alive_is_never_declared_dead(observed):
    assert judge(observed) is None


@given(st.booleans(), st.floats(0, 1e6), st.booleans())
def test_silence_alone_is_no_verdict(stopping, silence, claimed):
    assert judge(facts(stopping=stopping, silence=silence, claimed=claimed, job="RUNNING")) is None


def test_the_exit_record_names_its_outcome_and_reason():
    assert by_record({"outcome": "failed", "error": {"type": "OSError", "message": "disk full"}}).reason == "OSError: disk full"
    assert by_record({"outcome": "stopped", "reason": "as asked"}).state == "stopped"
    with pytest.raises(ValueError, match="outcome must be one of"):
        by_record({"outcome": "fine"})
