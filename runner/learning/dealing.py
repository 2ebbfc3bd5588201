"""Which rank computes which row: equally many rows each, of about equally many tokens.

Ranks wait for each other at every layer of every row, so the rows of one turn should be as long as each other, and a rank that has
none makes an empty pass. The deal depends on lengths and order alone: every rank makes it for itself and comes to the same.
"""

from collections.abc import Sequence
from heapq import heapreplace

import numpy as np

from runner.learning.packing import Bundle, plan_rows

Row = list[Bundle]


def deal(bundles: Sequence[Bundle], lengths: Sequence[int], max_tokens: int, ranks: int) -> list[list[Row]]:
    """Rows for each rank, covering `bundles`; an empty row where there are too few. `lengths` are those of the sequences.

    A beginning that many sequences share is computed on several ranks where that is sooner done than all of them on one.
    """
    cut = [part for bundle in bundles for part in _parts(bundle, lengths, ranks)]
    return min((_deal_rows(choice, max_tokens, ranks) for choice in (bundles, cut)), key=longest_tokens)


def longest_tokens(dealt: Sequence[Sequence[Row]]) -> int:
    """Tokens that the slowest rank of each turn computes, over all turns."""
    return sum(max(map(_tokens, turn)) for turn in zip(*dealt, strict=True))


def _parts(bundle: Bundle, lengths: Sequence[int], count: int) -> list[Bundle]:
    pieces = np.array_split(bundle.members, min(count, len(bundle.members)))
    return [_bundle(piece.tolist(), bundle.shared, lengths) for piece in pieces]


def _bundle(members: list[int], shared: int, lengths: Sequence[int]) -> Bundle:
    return Bundle(members, shared, shared + sum(lengths[index] - shared for index in members))


def _deal_rows(bundles: Sequence[Bundle], max_tokens: int, ranks: int) -> list[list[Row]]:
    turns = -(-len(plan_rows(bundles, max_tokens)) // ranks)
    while (rows := _spread(bundles, max_tokens, turns * ranks)) is None:
        turns += 1
    rows.sort(key=_tokens, reverse=True)
    dealt: list[list[Row]] = [[] for _ in range(ranks)]
    for turn in range(turns):
        # The longest of a turn to the rank that has had the least.
        behind = sorted(dealt, key=lambda own: sum(map(_tokens, own)))
        for own, row in zip(behind, rows[turn * ranks : (turn + 1) * ranks], strict=True):
            own.append(row)
    return dealt


def _spread(bundles: Sequence[Bundle], max_tokens: int, count: int) -> list[Row] | None:
    """`count` rows, the longest bundle first into the emptiest; None when one would hold more than `max_tokens` in several bundles."""
    rows: list[Row] = [[] for _ in range(count)]
    emptiest = [(0, index) for index in range(count)]
    for bundle in sorted(bundles, key=lambda item: (-item.tokens, item.members[0])):
        tokens, index = emptiest[0]
        if tokens and tokens + bundle.tokens > max_tokens:
            return None
        rows[index].append(bundle)
        heapreplace(emptiest, (tokens + bundle.tokens, index))
    return rows


def _tokens(row: Row) -> int:
    return sum(bundle.tokens for bundle in row)
