"""What differs between configs."""

import pytest
from hypothesis import given, settings

from controlplane.runs.forms import ABSENT, Change, diff, differing_keys, flatten
from runner.contract.parse import parse
from tests.controlplane.runs.forms.browser import documents


def test_flatten_names_leaves_by_pointer_and_keeps_plain_lists_whole():
    assert flatten({"a": {"b/c": 1}, "tags": ["x", "y"], "stages": [{"n": None}], "empty": {}, "none": []}) == {
        "/a/b~1c": 1,
        "/tags": ["x", "y"],
        "/stages/0/n": None,
        "/empty": {},
        "/none": [],
    }


def test_a_diff_has_only_what_differs():
    before = {"seed": 1, "loss": {"type": "clipped", "low": 0.2}, "same": "x"}
    after = {"seed": 2, "loss": {"type": "masked", "tau": 1}, "same": "x"}
    assert diff(before, after) == [
        Change("/seed", 1, 2),
        Change("/loss/type", "clipped", "masked"),
        Change("/loss/low", 0.2, ABSENT),
        Change("/loss/tau", ABSENT, 1),
    ]


def test_one_and_one_point_zero_are_the_same_but_true_is_not():
    assert diff({"a": 1, "b": 1}, {"a": 1.0, "b": True}) == [Change("/b", 1, True)]


def test_runs_are_compared_by_their_differing_keys_only():
    configs = [{"seed": seed, "rate": 0.1, "n": 3} for seed in (1, 2, 3)]
    assert differing_keys(configs) == {"/seed": [1, 2, 3]}


@pytest.mark.parametrize("count", [0, 1, 11])
def test_two_to_ten_are_compared(count):
    with pytest.raises(ValueError, match=str(count)):
        differing_keys([{}] * count)


@given(documents(), documents())
@settings(max_examples=25, deadline=None)
def test_applying_a_diff_turns_one_config_into_the_other(first, second):
    a, b = (parse(document).model_dump(mode="json") for document in (first, second))
    flat = flatten(a)
    for change in diff(a, b):
        flat[change.pointer] = change.after
    assert {pointer: value for pointer, value in flat.items() if value is not ABSENT} == flatten(b)
    assert diff(a, a) == []
