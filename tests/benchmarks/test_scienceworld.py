"""What the proof of the laboratory calls broken."""

from collections import Counter
from types import SimpleNamespace

import pytest

from benchmarks.prove.scienceworld import _judge, parse
from runner.contract.termination import Termination

FLAT, HURT = [100 << 20] * 4, SimpleNamespace(hurt=Counter({"SIGKILL java": 2}))


def outcome(termination=Termination.FINISHED, error="", reward=1.0):
    return SimpleNamespace(termination=termination, error=error, sample=SimpleNamespace(reward=reward))


SOUND = [outcome(), outcome(Termination.ENV_CRASH, "gone", None)]


def test_a_sound_run_breaks_no_promise():
    found, broken = _judge(SOUND, FLAT, HURT, 0)
    assert not broken and found["ends"] == {"finished": 1, "env_crash": 1} and found["rewards_invented"] == 0


@pytest.mark.parametrize(
    ("outcomes", "resident", "killer", "left", "told"),
    [
        ([*SOUND, outcome(Termination.ENV_CRASH, "gone", 0.0)], FLAT, HURT, 0, "a failed episode has a reward"),
        (
            [*SOUND, outcome(Termination.POLICY_ERROR, "boom", None)],
            FLAT,
            HURT,
            0,
            "an episode failed for another reason than its simulator",
        ),
        (SOUND, FLAT, HURT, 1, "processes were left"),
        (SOUND, [1 << 20, 1 << 20, 1 << 20, 2 << 20], HURT, 0, "memory grew by 100%"),
        (SOUND, FLAT, SimpleNamespace(hurt=Counter()), 0, "nothing was ever hurt"),
    ],
)
def test_each_broken_promise_is_told(outcomes, resident, killer, left, told):
    assert _judge(outcomes, resident, killer, left)[1] == [told]


def test_an_unknown_section_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        parse(["silver"])
    assert "silver: choose from gold, traces, kills" in capsys.readouterr().err
