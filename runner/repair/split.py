"""Which tasks are held out: a function of the tasks' names and strata alone, with no seed, and so the same at every hint level."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

VAL_SHARE = 0.25
GROUP_KEY = ("category", "family", "tree")
Stratum = tuple[str, str, str]


@dataclass(frozen=True)
class Split:
    """`val` is sorted. `untrained` are strata that were held out whole, so that no task of theirs is ever trained on."""

    val: tuple[str, ...]
    untrained: tuple[Stratum, ...]


def split(tasks: Iterable[tuple[str, Stratum]], val_per_group: int = 1) -> Split:
    """Hold out the first `val_per_group` names of each stratum, within a quarter of all tasks and at least one.

    While the picks exceed that budget, those of the largest stratum are given back first; of equally large ones, the first by key.
    """
    strata = defaultdict(list)
    for name, stratum in tasks:
        strata[stratum].append(name)
    total = sum(map(len, strata.values()))
    budget = max(1, int(VAL_SHARE * total))
    picks = {stratum: sorted(names)[:val_per_group] for stratum, names in strata.items()}
    for stratum in sorted(strata, key=lambda key: (-len(strata[key]), key)):
        if sum(map(len, picks.values())) <= budget:
            break
        picks[stratum] = []
    untrained = sorted(stratum for stratum, names in strata.items() if len(picks[stratum]) == len(names))
    return Split(tuple(sorted(name for names in picks.values() for name in names)), tuple(untrained))
