"""A bank file is read whole or refused."""

import pytest
import zstandard

from runner.contract.bank import InvalidBank, Task, read_bank, write_bank

DATA, _ = write_bank([Task(key=str(number), split="train", payload={"x": number}) for number in range(3000)])


@pytest.mark.parametrize("cut", [1, 5, 100, len(DATA) // 2])
def test_a_file_that_was_cut_short_is_refused(cut):
    with pytest.raises(InvalidBank, match="cut short"):
        read_bank(DATA[:-cut])


@pytest.mark.parametrize("data", [DATA + b"x", DATA + DATA, b"", b"x"])
def test_what_is_not_one_frame_is_refused(data):
    with pytest.raises(InvalidBank):
        read_bank(data)


def test_a_deeply_nested_line_is_a_problem_of_its_line():
    with pytest.raises(InvalidBank) as caught:
        read_bank(zstandard.compress(b"[" * 100_000))
    assert caught.value.problems[0][0] == 1


def test_a_check_refuses_lines_with_its_reason():
    def check(record):
        if record.key == "7":
            raise ValueError("seven is not wanted")

    with pytest.raises(InvalidBank) as caught:
        read_bank(DATA, check)
    ((line, reason),) = caught.value.problems
    assert reason == "seven is not wanted"
    assert zstandard.decompress(DATA).splitlines()[line - 1].startswith(b'{"domain":"","family":"","flags":[],"key":"7",')
