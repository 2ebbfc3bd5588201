"""The held-out split: the published vectors, and what must hold for any bank."""

from hypothesis import given
from hypothesis import strategies as st

from runner.repair.split import split

ALPHABET = st.sampled_from("abcdef")


def bank(**sizes):
    return [(f"{family}-{number}", ("repair", family, "")) for family, size in sizes.items() for number in range(size)]


def test_ten_tasks_hold_out_two_of_the_smallest_strata():
    found = split(bank(bounds=2, coef=3, sign2d=4, sign3d=1))
    assert found.val == ("bounds-0", "sign3d-0")
    assert found.untrained == (("repair", "sign3d", ""),)


def test_twelve_tasks_with_singletons_hold_out_exactly_those():
    found = split(bank(bounds=2, coef=3, sign2d=4, sign3d=1, norm2d=1, norm3d=1))
    assert found.val == ("norm2d-0", "norm3d-0", "sign3d-0")
    assert len(found.untrained) == 3


def test_one_task_is_held_out_and_none_gives_none():
    assert split(bank(sign=1)).val == ("sign-0",)
    assert split([]).val == ()


def test_of_equally_large_strata_the_first_by_key_gives_back():
    assert split(bank(a=1, b=1)).val == ("b-0",)


@given(st.lists(st.tuples(ALPHABET, ALPHABET, ALPHABET), max_size=60), st.integers(1, 3), st.randoms())
def test_any_bank(strata, per_group, random):
    tasks = [(f"task-{number:03}", stratum) for number, stratum in enumerate(strata)]
    found = split(tasks, per_group)
    budget = max(1, int(0.25 * len(tasks)))
    assert len(found.val) == len(set(found.val)) <= budget or not tasks
    assert set(found.val) <= {name for name, _ in tasks}
    shuffled = random.sample(tasks, len(tasks))
    assert split(shuffled, per_group) == found
