"""GiGPO's credit over one group of episodes of one task: pure functions of its turns.

    R_t = r_t + gamma · R_{t+1}                            return of a turn, on the environment's own rewards
    S   = Σ r_t                                            score of an episode, carried by each of its turns
    an action that meant nothing takes c from its own turn's S and R; it is not discounted back
    A_E = S − mean(S) over the group's turns,  A_S = R − mean(R) over turns in the same state,  each / std where so set
    A   = A_E + omega · A_S

Formulas: Feng et al., Group-in-Group Policy Optimization (2025), with the statistics of its reference trainer.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

import numpy as np

from runner.contract.run_config import GigpoStage
from runner.contract.termination import HANDLING
from runner.environments.base import Situation
from runner.environments.canonical_text import canonical
from runner.learning.advantages import STD_FLOOR
from runner.rollouts.types import Sample

_canonical = lru_cache(maxsize=8192)(canonical)


@dataclass(frozen=True)
class GroupRows:
    """The N turns of one group, episode by episode in turn order.

    episode int[N]: number of the episode within the group; reward float[N]; valid bool[N]; anchor: state before each turn, or None.
    """

    episode: np.ndarray
    reward: np.ndarray
    valid: np.ndarray
    anchor: list[str | None]


@dataclass(frozen=True)
class GroupCredit:
    """What the turns of a group are worth; arrays float64[N] follow its rows.

    `score` is S and `returns` R, both after the penalty; `step_group` int[N] numbers the step-level groups. `floored` counts standard
    deviations that min_std replaced.
    """

    score: np.ndarray
    returns: np.ndarray
    episode_advantage: np.ndarray
    step_advantage: np.ndarray
    advantage: np.ndarray
    step_group: np.ndarray
    floored: int


def credit_group(rows: GroupRows, stage: GigpoStage) -> GroupCredit:
    """Both advantages of every turn. Step-level groups never leave the group: pass one group at a time."""
    penalty = np.where(rows.valid, 0.0, stage.invalid_action_penalty)
    score = _episode_sums(rows) - penalty
    returns = discounted_returns(rows, stage.gamma) - penalty
    first = np.unique(rows.episode, return_index=True)[1]
    statistic = score if stage.episode_stat_scope == "rows" else score[first]
    episode_advantage, floored = relative(score, statistic, stage)
    step_group = step_groups(rows.anchor, stage)
    step_advantage = np.zeros(len(score))
    for number in range(step_group.max(initial=-1) + 1):
        members = step_group == number
        step_advantage[members], below = relative(returns[members], returns[members], stage)
        floored += below
    advantage = episode_advantage + stage.omega * step_advantage
    return GroupCredit(score, returns, episode_advantage, step_advantage, advantage, step_group, floored)


def _episode_sums(rows: GroupRows) -> np.ndarray:
    sums = np.bincount(rows.episode, rows.reward, minlength=rows.episode.max(initial=-1) + 1)
    return sums[rows.episode]


def discounted_returns(rows: GroupRows, gamma: float) -> np.ndarray:
    """R float64[N] of each turn within its episode."""
    returns = rows.reward.astype(np.float64)
    for index in range(len(returns) - 2, -1, -1):
        if rows.episode[index] == rows.episode[index + 1]:
            returns[index] += gamma * returns[index + 1]
    return returns


def relative(values: np.ndarray, statistic: np.ndarray, stage: GigpoStage) -> tuple[np.ndarray, bool]:
    """`values` less the mean of `statistic`, over its standard deviation (n − 1) where so set; all 0 when it has fewer than two values.

    The second result says whether a deviation above 0 was so small that min_std stood in for it.
    """
    if len(statistic) < 2:
        return np.zeros(len(values)), False
    centred = values - statistic.mean()
    if stage.advantage == "mean":
        return centred, False
    deviation = statistic.std(ddof=1)
    return centred / (max(deviation, stage.min_std) + STD_FLOOR), bool(0 < deviation < stage.min_std)


# ---------------------------------------------------------------- episodes
def step_rewards(sample: Sample) -> list[float] | None:
    """Rewards of the sample's turns; None when it takes no part.

    Where the environment rewards whole episodes only, the grade is the last turn's.
    """
    if HANDLING[sample.termination].train in ("dropped", "masked") or not sample.rows:
        return None
    if all(row.reward is None for row in sample.rows):
        return None if sample.reward is None else [0.0] * (len(sample.rows) - 1) + [sample.reward]
    return [row.reward or 0.0 for row in sample.rows]


def without_signal(samples: Sequence[Sample]) -> set[int]:
    """Groups whose episodes all earned the same, or of which fewer than two can be compared: what dynamic sampling replaces."""
    sums: dict[int, set[float]] = {sample.group: set() for sample in samples}
    for sample in samples:
        if step_rewards(sample) is not None:
            sums[sample.group].add(earned(sample))
    return {group for group, found in sums.items() if len(found) < 2}


def earned(sample: Sample) -> float:
    """S, on the environment's own rewards, of a sample that takes part."""
    # Rounded, because equal rewards in another order add up to another last bit.
    return round(float(np.sum(step_rewards(sample))), 9)


# ---------------------------------------------------------------- states
def anchor_of(situation: Situation | None, kind: str) -> str | None:
    """The text that stands for a state; None where the environment did not tell enough.

    `observation` is the last reply alone, as published; look and inventory are compared without regard to the order of objects.
    """
    if situation is None:
        return None
    if kind == "observation":
        return situation.observation
    told = [situation.look, situation.inventory, *([situation.score] if kind == "look_inv_score" else [])]
    if any(part is None for part in told):
        return None
    return "\n\n".join([place_of(situation), *(f"{part:g}" for part in told[2:])])


def place_of(situation: Situation) -> str | None:
    """Room and inventory, whatever the anchor: what a step-level group should not mix."""
    if situation.look is None or situation.inventory is None:
        return None
    return _canonical(situation.look) + "\n\n" + _canonical(situation.inventory)


def anchor_hash(anchor: str) -> str:
    """A short name of a state, for people."""
    return hashlib.sha256(anchor.encode()).hexdigest()[:16]


def step_groups(anchors: Sequence[str | None], stage: GigpoStage) -> np.ndarray:
    """int[N]: number of each turn's step-level group, from 0 in order of appearance. A turn without an anchor is alone.

    Raises TypeError for an anchor that is no text.
    """
    for anchor in anchors:
        if anchor is not None and not isinstance(anchor, str):
            raise TypeError(f"anchor: {anchor!r:.60} is {type(anchor).__name__}; give the state as text")
    names = _similar(anchors, stage.grouping.threshold) if stage.grouping.type == "similar" else anchors
    numbers: dict = {}
    keys = [("alone", row) if name is None else ("state", name) for row, name in enumerate(names)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)


def _similar(anchors: Sequence[str | None], threshold: float) -> list[str | None]:
    """Each text's first predecessor that it resembles, greedily in order; itself when there is none."""
    known: dict[str, str] = {}
    leaders: list[str] = []
    for anchor in anchors:
        if anchor is not None and anchor not in known:
            known[anchor] = next((leader for leader in leaders if resembles(anchor, leader, threshold)), anchor)
            if known[anchor] is anchor:
                leaders.append(anchor)
    return [None if anchor is None else known[anchor] for anchor in anchors]


def resembles(text: str, leader: str, threshold: float) -> bool:
    """difflib ratio ≥ threshold; its cheap upper bounds, lengths first, come before the millisecond it costs."""
    matcher = SequenceMatcher(None, text, leader)
    return all(bound() >= threshold for bound in (matcher.real_quick_ratio, matcher.quick_ratio, matcher.ratio))


# ---------------------------------------------------------------- what to say of a batch
@dataclass(frozen=True)
class StepGroup:
    """One step-level group, as its statistics see it."""

    size: int
    episodes: int
    places: int
    scores: int


def describe(
    groups: Sequence[np.ndarray], episodes: Sequence[np.ndarray], situations: Sequence[Sequence[Situation | None]]
) -> list[StepGroup]:
    """The step-level groups of a batch; each argument has one entry a group of episodes, with a value a turn."""
    found = []
    for numbers, episode, told in zip(groups, episodes, situations, strict=True):
        members: dict[int, list[int]] = defaultdict(list)
        for row, number in enumerate(numbers):
            members[number].append(row)
        found += [_step_group(rows, episode, told) for rows in members.values()]
    return found


def _step_group(rows: list[int], episode: np.ndarray, told: Sequence[Situation | None]) -> StepGroup:
    known = [told[row] for row in rows if told[row] is not None]
    places, scores = {place_of(situation) for situation in known}, {situation.score for situation in known}
    return StepGroup(len(rows), len({int(episode[row]) for row in rows}), len(places), len(scores))


def step_group_metrics(groups: Sequence[StepGroup]) -> dict[str, float]:
    """Sizes, and shares of turns: alone, in a group of several episodes, in one that mixes places, in one that mixes scores."""
    total = sum(group.size for group in groups)
    if not total:
        return {}

    def share(matches) -> float:
        return sum(group.size for group in groups if matches(group)) / total

    return {
        "gigpo/group_size_mean": total / len(groups),
        "gigpo/singleton_share": share(lambda group: group.size == 1),
        "gigpo/cross_episode_share": share(lambda group: group.episodes > 1),
        "gigpo/mixed_places_share": share(lambda group: group.places > 1),
        "gigpo/mixed_scores_share": share(lambda group: group.scores > 1),
    }
