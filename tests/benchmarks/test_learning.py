"""The claim about learning is broken by what breaks it, in words."""

import pytest

from benchmarks.prove.learning import faults, summary


def one(**changes) -> dict:
    held = {"control": False, "seed": 1, "parsed_before_grpo": 0.99, "gain": [0.4, 0.3, 0.5], "options_alone": {"after stage 1": 0.26}}
    return {**held, **changes}


def test_an_outcome_that_holds_has_no_fault():
    assert faults(one()) == [] and faults(one(control=True, gain=[0.01, -0.05, 0.07])) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"parsed_before_grpo": 0.9}, "seed 1: 0.900 of the answers parse"),
        ({"gain": [0.14, 0.05, 0.2]}, "seed 1: gains 0.140"),
        ({"gain": [0.2, -0.01, 0.4]}, "lower bound of -0.010"),
        ({"control": True, "gain": [0.06, 0.01, 0.1]}, "control: shuffled rewards gain 0.060"),
        ({"options_alone": {"before stage 0": None, "after stage 1": 0.31}}, "options alone are worth 0.310"),
    ],
)
def test_a_fault_names_the_run_and_the_figure(changes, told):
    (fault,) = faults(one(**changes))
    assert told in fault


def test_the_record_bounds_the_worst_seed_and_sets_the_control_beside_it():
    found = summary([one(seed=0), one(seed=1, gain=[0.2, 0.1, 0.3]), one(control=True, gain=[0.01, -0.05, 0.07])])
    assert (found["ours"], found["peer"], found["also"]["broken"]) == (0.2, 0.01, [])
