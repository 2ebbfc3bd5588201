"""From facts to questions: which siblings stand beside the answer, and under which letter.

The siblings of a family are cut into blocks of four; each block is asked four times with the same four options, once for each of
its facts, and the four keys take the four letters once each. So whatever can be said about the options without reading
the question (their text, length, order, letter) is right for exactly one question in four.
"""
import random
from collections.abc import Iterator

from runner.importers.quiz.family import CHOICES, Family

LETTERS = "ABCD"
Block = tuple[int, ...]


def blocks(family: Family, rng: random.Random, taken: set[frozenset[int]]) -> list[Block]:
    """Cut the family's fact numbers into random blocks of four, none of which is in `taken`; adds them to it."""
    while True:
        order = rng.sample(range(len(family.facts)), len(family.facts))
        cut = [tuple(order[i:i + CHOICES]) for i in range(0, len(order), CHOICES)]
        if taken.isdisjoint(map(frozenset, cut)):
            taken.update(map(frozenset, cut))
            return cut


def arranged(block: Block, rng: random.Random) -> Iterator[tuple[int, list[int]]]:
    """Yield (asked fact, facts in the order of the letters) for each fact of a block; the keys take each letter once."""
    for position, asked in zip(rng.sample(range(CHOICES), CHOICES), block):
        options = rng.sample([fact for fact in block if fact != asked], CHOICES - 1)
        options.insert(position, asked)
        yield asked, options
