"""Rows dealt to ranks: nothing is lost, nobody has a row too many, and the turns are as long as each other."""

from hypothesis import given
from hypothesis import strategies as st

from runner.learning.dealing import deal, longest_tokens
from runner.learning.packing import Bundle, alone


def shared(prefix, rests):
    """One bundle of sequences that begin alike, and the sequences' lengths."""
    return Bundle(list(range(len(rests))), prefix, prefix + sum(rests)), [prefix + rest for rest in rests]


def tokens(row):
    return sum(bundle.tokens for bundle in row)


@given(lengths=st.lists(st.integers(2, 120), min_size=1, max_size=30), ranks=st.integers(1, 5), limit=st.integers(40, 200))
def test_every_sequence_is_dealt_once_in_rows_within_the_limit(lengths, ranks, limit):
    dealt = deal(alone([[0] * length for length in lengths]), lengths, limit, ranks)
    assert len(dealt) == ranks and len({len(rows) for rows in dealt}) == 1
    rows = [row for own in dealt for row in own]
    assert sorted(index for row in rows for bundle in row for index in bundle.members) == list(range(len(lengths)))
    assert all(tokens(row) <= limit or len(row) == 1 for row in rows)
    assert deal(alone([[0] * length for length in lengths]), lengths, limit, ranks) == dealt


def test_tokens_decide_not_sequences():
    lengths = [90, 30, 30, 30]
    dealt = deal(alone([[0] * length for length in lengths]), lengths, 1000, 2)
    assert [[tokens(row) for row in own] for own in dealt] == [[90], [90]]


def test_the_rows_of_a_turn_are_as_long_as_each_other():
    lengths = [100, 100, 60, 60, 20, 20]
    dealt = deal(alone([[0] * length for length in lengths]), lengths, 100, 2)
    assert all(abs(tokens(ours) - tokens(theirs)) == 0 for ours, theirs in zip(*dealt, strict=True))
    assert longest_tokens(dealt) == 180


def test_fewer_sequences_than_ranks_leave_empty_rows():
    dealt = deal(alone([[0] * 8, [0] * 5]), [8, 5], 100, 4)
    assert sorted(tokens(row) for own in dealt for row in own) == [0, 0, 5, 8]


def test_a_shared_beginning_is_computed_on_two_ranks_where_that_is_sooner_done():
    bundle, lengths = shared(20, [100] * 4)
    assert [[tokens(row) for row in own] for own in deal([bundle], lengths, 1000, 2)] == [[220], [220]]
    other = Bundle([4, 5], 400, 420)
    dealt = deal([Bundle([0, 1], 400, 420), Bundle([2, 3], 400, 420), other], [410] * 6, 1000, 3)
    assert [[tokens(row) for row in own] for own in dealt] == [[420]] * 3, "cut in two they would be 820 each"
