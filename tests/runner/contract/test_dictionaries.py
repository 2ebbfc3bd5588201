"""States, terminations, metrics and bank files: the tables hang together."""

import itertools

import pytest
import zstandard

from runner.contract import metrics
from runner.contract.bank import Demonstration, InvalidBank, Task, read_bank, write_bank
from runner.contract.states import TRANSITIONS, AttemptState, RunState, is_allowed, is_final
from runner.contract.termination import ALIASES, HANDLING, Termination, trusted_reward


def test_every_state_has_its_row():
    for kind, table in TRANSITIONS.items():
        assert set(table) == set(kind)


def test_an_attempt_never_leaves_an_end():
    ends = [state for state in AttemptState if is_final(state)]
    assert len(ends) == 4
    assert not any(is_allowed(end, state) for end, state in itertools.product(ends, AttemptState))


def test_a_finished_run_can_only_be_queued_again():
    for state in RunState:
        assert is_allowed(RunState.SUCCEEDED, state) == (state is RunState.QUEUED)


def test_every_termination_is_handled_and_no_alias_shadows_a_name():
    assert set(HANDLING) == set(Termination)
    assert not set(ALIASES) & {member.value for member in Termination}


@pytest.mark.parametrize("termination", list(Termination))
def test_a_reward_is_never_invented(termination):
    assert trusted_reward(termination, None) is None
    assert (trusted_reward(termination, 1.0) is None) == (HANDLING[termination].reward == "null")


def test_metric_names_and_aliases_are_unique():
    names = [metric.name for metric in metrics.METRICS]
    aliases = [alias for metric in metrics.METRICS for alias in metric.aliases]
    assert len(set(names + aliases)) == len(names) + len(aliases)


def test_every_dashboard_and_tracked_metric_is_in_the_dictionary():
    shown = [name for _, names in metrics.DASHBOARD for name in names]
    assert len(metrics.DASHBOARD) == 12
    assert all(metrics.lookup(name) for name in [*shown, *metrics.TRACKED])


def test_a_hole_is_filled_in_the_title():
    assert metrics.lookup("termination/parse_failed/fraction").title == "Ended parse failed"
    assert metrics.lookup("termination/a/b/fraction") is None
    assert metrics.canonical_name("grad_norm") == "actor/grad_norm"


TASK = Task(key="t1", split="train", payload={"question": "?"})


def test_a_bank_file_keeps_its_digest_whatever_the_order():
    other = Task(key="t0", split="eval", payload={})
    shown = Demonstration(key="d", kind="statement", completion="Water boils.")
    data, name = write_bank([TASK, other, shown])
    assert write_bank([shown, other, TASK]) == (data, name)
    tasks, demonstrations, read = read_bank(data)
    assert [task.key for task in tasks] == ["t0", "t1"] and len(demonstrations) == 1 and read == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "no task"),
        (b"{}\n", "record must be"),
        (b'{"record":"task","key":"a","split":"train"}\n', "payload"),
        (b"not json\n", "line 1"),
        (b'{"record":"task","key":"a","split":"train","payload":{}}\n' * 2, "duplicate"),
    ],
)
def test_a_broken_bank_names_the_line(text, words):
    with pytest.raises(InvalidBank, match=words):
        read_bank(zstandard.compress(text))


def test_bytes_that_are_no_bank_are_refused():
    with pytest.raises(InvalidBank, match="zstd"):
        read_bank(b"PAR1")
