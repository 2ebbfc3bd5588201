"""GiGPO: groups within groups. An episode is compared with its group, and each turn with the group's turns in the same state.

1. Episodes whose environment failed, or that have no reward, take no part; a group with fewer than two left takes none either.
2. Each group's turns get both advantages (methods.gigpo_credit); a turn's sum goes to every token of its reply.
3. Filters, masks, weights and the loss are those of GRPO, over turns instead of episodes.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from runner.contract.run_config import GigpoStage
from runner.learning.filters import enforced_filter, matched_filters
from runner.learning.health import Metrics, spread
from runner.methods.base import SequenceResult
from runner.methods.gigpo_credit import (
    GroupCredit,
    GroupRows,
    anchor_hash,
    anchor_of,
    credit_group,
    describe,
    earned,
    step_group_metrics,
    step_rewards,
)
from runner.methods.grpo import Credited, Grpo, GrpoPlan, mask_reason
from runner.rollouts.types import Sample, TrainedSample, TurnRow
from runner.rollouts.workflow import STREAM_MINI_BATCHES

TOO_SMALL = "group_too_small"


@dataclass
class Group:
    """The episodes of one task that take part, their turns end to end, and what these are worth."""

    members: list[Sample]
    rows: GroupRows
    credit: GroupCredit

    def of(self, number: int) -> np.ndarray:
        """Indices of the turns of member `number`."""
        return np.flatnonzero(self.rows.episode == number)


@dataclass
class GigpoPlan(GrpoPlan):
    """Also the groups, for what is said of the batch; `dropped` counts groups that were too small."""

    groups: list[Group] = field(default_factory=list)
    dropped: int = 0


class Gigpo(Grpo):
    """The method over one stage. `vocabulary` is the model's size of the output layer."""

    stage: GigpoStage

    def plan(self, step: int, samples: Sequence[Sample]) -> GigpoPlan:
        able: dict[int, list[Sample]] = defaultdict(list)
        for sample in samples:
            if step_rewards(sample) is not None:
                able[sample.group].append(sample)
        least = min(2, self.stage.group_size)
        groups = [group_of(members, self.stage) for members in able.values() if len(members) >= least]
        places = {member.episode: (group, number) for group in groups for number, member in enumerate(group.members)}
        credited = [self._credit_one(sample, *places.get(sample.episode, (None, 0))) for sample in samples]
        dropped = len({sample.group for sample in samples}) - len(groups)
        plan = GigpoPlan(**vars(self.assemble(step, credited)), groups=groups, dropped=dropped)
        if self.stage.mini_batch_rows:
            plan.batches = mini_batches(len(plan.sequences), self._rows_of(plan), self.stage.mini_batch_rows, self.seed, step)
        return plan

    @staticmethod
    def _rows_of(plan: GigpoPlan) -> list[int]:
        """Turns of each sequence: one, unless the episode is a single growing sequence."""
        sequences = Counter(plan.trained)
        return [max(1, round(len(plan.credited[index].turns) / sequences[index])) for index in plan.trained]

    def _credit_one(self, sample: Sample, group: Group | None, number: int) -> Credited:
        nothing = np.full(sample.total_length, np.nan, np.float32)
        if group is None:
            reason = mask_reason(sample, sample.reward, self.stage) or TOO_SMALL
            return Credited(sample, None, [], reason, sample.loss_mask & False, nothing)
        turns = group.of(number)
        advantages = token_advantages(sample, group.credit.advantage[turns])
        signal = float(np.abs(group.credit.advantage[turns]).max())
        filters = matched_filters(sample, signal, self.vocabulary, self.stage.filters)
        reason = mask_reason(sample, signal, self.stage) or enforced_filter(filters, self.stage.filters)
        mask = sample.loss_mask & ~np.isnan(advantages) & (reason is None)
        told = [turn_credit(group, row, sample.rows[position]) for position, row in enumerate(turns)]
        return Credited(sample, float(group.credit.advantage[turns].mean()), filters, reason, mask, advantages, told)

    def report(self, plan: GigpoPlan, results: Sequence[SequenceResult]) -> tuple[Metrics, list[TrainedSample]]:
        metrics, trained = super().report(plan, results)
        return metrics | batch_metrics(plan, self.stage), trained


def mini_batches(count: int, rows: Sequence[int], size: int, seed: int, step: int) -> list[list[int]]:
    """`count` sequences in seeded order, cut where `size` turns are reached."""
    order = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, STREAM_MINI_BATCHES, step]))).permutation(count)
    batches, room = [], 0
    for index in order.tolist():
        if room <= 0:
            batches.append([])
            room = size
        batches[-1].append(index)
        room -= rows[index]
    return batches


def group_of(members: list[Sample], stage: GigpoStage) -> Group:
    """The turns of a group's episodes, end to end, with their credit."""
    rows = GroupRows(
        episode=np.repeat(np.arange(len(members)), [len(member.rows) for member in members]),
        reward=np.array([reward for member in members for reward in step_rewards(member)], np.float64),
        valid=np.array([row.valid for member in members for row in member.rows], np.bool_),
        anchor=[anchor_of(row.situation, stage.anchor) for member in members for row in member.rows],
    )
    return Group(members, rows, credit_group(rows, stage))


def token_advantages(sample: Sample, advantages: np.ndarray) -> np.ndarray:
    """float32[T]: each turn's advantage on every token of its reply, NaN elsewhere."""
    column = np.full(sample.total_length, np.nan, np.float32)
    for row, advantage in zip(sample.rows, advantages, strict=True):
        column[row.start : row.stop] = advantage
    return np.where(sample.loss_mask, column, np.nan).astype(np.float32)


def turn_credit(group: Group, row: int, turn: TurnRow) -> dict[str, Any]:
    """What the episode page shows of a turn: both parts of its advantage, and the step-level group it belonged to."""
    credit, anchor = group.credit, group.rows.anchor[row]
    same = credit.step_group == credit.step_group[row]
    return {
        "turn": turn.turn,
        "index": turn.index,
        "return": float(credit.returns[row]),
        "episode_advantage": float(credit.episode_advantage[row]),
        "step_advantage": float(credit.step_advantage[row]),
        "advantage": float(credit.advantage[row]),
        "anchor": None if anchor is None else anchor_hash(anchor),
        "group_size": int(same.sum()),
        "group_episodes": len(np.unique(group.rows.episode[same])),
        "valid": bool(group.rows.valid[row]),
    }


# ---------------------------------------------------------------- what to say of a batch
def batch_metrics(plan: GigpoPlan, stage: GigpoStage) -> Metrics:
    """Over the turns and episodes that took part; nothing but the counts when there is none."""
    groups = plan.groups
    counts = {
        "gigpo/dropped_groups": plan.dropped,
        "gigpo/singleton_groups": sum(len(group.rows.reward) == 1 for group in groups),
        "gigpo/zero_variance_groups": sum(equal_scores(group) for group in groups),
        "gigpo/floored_deviations": sum(group.credit.floored for group in groups),
        "gigpo/missing_anchors": sum(anchor is None for group in groups for anchor in group.rows.anchor),
    }
    metrics = {name: float(count) for name, count in counts.items()}
    if not groups:
        return metrics
    scores = np.array([group.rows.reward[group.of(number)].sum() for group in groups for number in range(len(group.members))])
    lengths = np.array([len(member.rows) for group in groups for member in group.members])
    return {
        **metrics,
        "gigpo/ae_std": float(np.concatenate([group.credit.episode_advantage for group in groups]).std()),
        "gigpo/as_std": float(np.concatenate([group.credit.step_advantage for group in groups]).std()),
        **step_group_metrics(describe(*zip(*map(_states, groups), strict=True))),
        **spread("episode/reward/", scores, "mean", "max", "min"),
        **spread("episode/length/", lengths, "mean", "max", "min"),
        "episode/valid_action_ratio": float(np.concatenate([group.rows.valid for group in groups]).mean()),
    }


def _states(group: Group) -> tuple:
    situations = [row.situation for member in group.members for row in member.rows]
    return group.credit.step_group, group.rows.episode, situations


def equal_scores(group: Group) -> bool:
    """Whether all its episodes, two at least, earned the same."""
    return len(group.members) > 1 and len({earned(member) for member in group.members}) == 1
