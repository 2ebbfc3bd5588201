"""The updates of one step over packed sequences, whatever the method.

1. Plan rows of at most `micro_batch_tokens` packed tokens; what sequences share before their first loss token is
   computed once.
2. Per row: hidden states, then log-probs of the loss tokens only, then Σ weight · loss, backward.
   The weights sum to 1 over the whole batch, so rows (and ranks) simply add up.
3. Clip, step, or skip when the gradient is not finite.

A plan may ask for several updates, each of its share of the sequences, whose weights then sum to 1 within the share.
Several ranks compute rows of their own, equally many; each then knows the results of all.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from runner.learning.logprobs import chunk_rows, logprobs_of
from runner.learning.optimizer import MasterAdamW
from runner.learning.packing import Bundle, PackedRow, alone, hidden_states, pack, share_prefixes
from runner.learning.ranks import ALONE, Alone
from runner.methods.base import Method, SequenceResult, TrainingSequence
from runner.models.loading import head


@dataclass
class Update:
    """Outcome of a step. `grad_norm` is the largest of its updates'; `skipped` says why one of them did not move the weights."""

    results: list[SequenceResult]
    grad_norm: float | None
    skipped: str | None


@dataclass(frozen=True)
class _LossTokens:
    """Loss tokens of a packed row: `before` is the position whose hidden state predicts each."""

    before: Tensor
    targets: Tensor
    temperature: Tensor
    weight: Tensor
    columns: dict[str, Tensor]
    counts: list[int]


def update(
    network: torch.nn.Module,
    optimizer: MasterAdamW,
    sequences: Sequence[TrainingSequence],
    method: Method,
    rate: float,
    max_tokens: int,
    batches: Sequence[Sequence[int]] | None = None,
    ranks: Alone = ALONE,
) -> Update:
    """Learn from `sequences`, each with at least one loss token; with none, nothing happens and it says so."""
    if not sequences:
        return Update([], None, "no loss token in the batch")
    results: dict[int, SequenceResult] = {}
    norms, skipped = [], None
    for chosen in batches or [range(len(sequences))]:
        share = [sequences[index] for index in chosen]
        share = share if batches is None else _whole(share)
        found = ranks.merge(gradients(network, optimizer, share, method, plan(share, max_tokens, ranks)))
        results |= {chosen[index]: result for index, result in found.items()}
        norm, applied = optimizer.step(rate)
        norms.append(norm)
        skipped = skipped if applied else f"gradient norm is {norm}"
    return Update([results[index] for index in range(len(sequences))], float(np.max(norms)), skipped)


def _whole(share: Sequence[TrainingSequence]) -> list[TrainingSequence]:
    """The sequences with weights that sum to 1."""
    total = sum(float(item.weight.sum()) for item in share)
    return [replace(item, weight=item.weight / total) for item in share]


def plan(sequences: Sequence[TrainingSequence], max_tokens: int, ranks: Alone = ALONE) -> list[list[Bundle]]:
    """Rows of bundles covering every sequence, or those of them that are this rank's."""
    tokens, prefixes = [item.token_ids for item in sequences], [int(item.mask.argmax()) for item in sequences]
    return ranks.rows(share_prefixes(tokens, prefixes, max_tokens), [len(item) for item in tokens], max_tokens)


def gradients(
    network: torch.nn.Module, optimizer: MasterAdamW, sequences: Sequence[TrainingSequence], method: Method, rows: list[list[Bundle]]
) -> dict[int, SequenceResult]:
    """Add the gradients of `rows` to the optimizer's; results by sequence index. An empty row adds nothing."""
    device = next(network.parameters()).device
    found = []
    for bundles in rows:
        if not bundles:
            _pass_of_nothing(network, device).backward()
            optimizer.collect()
            continue
        row = pack([item.token_ids for item in sequences], bundles, device)
        tokens = _loss_tokens([sequences[index] for index in row.members], row)
        found.append((row.members, tokens.counts, _backward(network, row, tokens, method)))
        optimizer.collect()
    # Read when all rows are under way: a GPU would stand still at each look.
    return {index: result for members, counts, table in found for index, result in _results(members, counts, table)}


def _backward(network: torch.nn.Module, row: PackedRow, tokens: _LossTokens, method: Method) -> dict[str, Tensor]:
    """Add the gradients of Σ weight · loss; what is reported of each loss token, [N] each."""
    hidden = _before_targets(network, row, tokens)
    size = _piece_rows(network, hidden)
    if len(hidden) <= size:
        total, table = _weighted_loss(network, hidden, tokens, slice(None), method)
        total.backward()
        return table
    # Each piece goes through the output layer and back at once, so that its logits need not be made a second time.
    leaves, tables = [piece.detach().requires_grad_() for piece in hidden.split(size)], []
    for number, leaf in enumerate(leaves):
        total, table = _weighted_loss(network, leaf, tokens, slice(number * size, (number + 1) * size), method)
        total.backward()
        tables.append(table)
    hidden.backward(torch.cat([leaf.grad for leaf in leaves]))
    return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}


def _pass_of_nothing(network: torch.nn.Module, device: torch.device) -> Tensor:
    """0, from every weight: a rank without a row gives the others its part of each layer, and they theirs."""
    row = pack([[0, 0]], alone([[0, 0]]), device)
    logprob, _ = logprobs_of(hidden_states(network, row)[:1], head(network), row.input_ids[0, 1:], torch.ones(1, device=device))
    return 0.0 * logprob.sum()


def _piece_rows(network: torch.nn.Module, hidden: Tensor) -> int:
    # Each piece's gradient of the output layer is rounded to the layer's precision: on a CPU one piece, and the bits stay.
    return chunk_rows(head(network).weight.shape[0], hidden.device.type) if hidden.is_cuda else len(hidden)


def _weighted_loss(
    network: torch.nn.Module, hidden: Tensor, tokens: _LossTokens, span: slice, method: Method
) -> tuple[Tensor, dict[str, Tensor]]:
    logprob, entropy = logprobs_of(hidden, head(network), tokens.targets[span], tokens.temperature[span])
    loss, values = method.loss(logprob, {name: column[span] for name, column in tokens.columns.items()})
    table = {"logprob": logprob, "entropy": entropy, **values, "loss": loss}
    return (tokens.weight[span] * loss).sum(), {name: tensor.detach() for name, tensor in table.items()}


def _before_targets(network: torch.nn.Module, row: PackedRow, tokens: _LossTokens) -> Tensor:
    # index_select, because the gradient of [] sums shared positions in an order that threads decide.
    return hidden_states(network, row).index_select(0, tokens.before)


def _loss_tokens(chosen: list[TrainingSequence], row: PackedRow) -> _LossTokens:
    device = row.input_ids.device
    masks = [item.mask for item in chosen]
    if any(mask[0] for mask in masks):
        raise ValueError("mask: a sequence's first token cannot be trained, nothing predicts it; clear its mask")
    before = np.concatenate([place[:-1][mask[1:]] for place, mask in zip(row.places, masks)])
    targets = np.concatenate([item.token_ids[item.mask] for item in chosen])

    def column(values: list[np.ndarray]) -> Tensor:
        return torch.as_tensor(np.concatenate([value[mask] for value, mask in zip(values, masks)]), dtype=torch.float32, device=device)

    return _LossTokens(
        before=torch.as_tensor(before, device=device),
        targets=torch.as_tensor(targets, dtype=torch.long, device=device),
        temperature=column([np.full(len(item.token_ids), item.temperature) for item in chosen]),
        weight=column([item.weight for item in chosen]),
        columns={name: column([item.columns[name] for item in chosen]) for name in chosen[0].columns},
        counts=[int(mask.sum()) for mask in masks],
    )


def _results(members: list[int], counts: list[int], table: dict[str, Tensor]) -> Iterator[tuple[int, SequenceResult]]:
    arrays = {name: tensor.float().cpu().numpy() for name, tensor in table.items()}
    edges = np.cumsum([0, *counts])
    for index, start, stop in zip(members, edges, edges[1:]):
        piece = {name: array[start:stop] for name, array in arrays.items()}
        yield index, SequenceResult(piece.pop("logprob"), piece.pop("entropy"), piece)


class Reference:
    """The stage's first weights, frozen. With an adapter the base is shared and only the adapter is kept."""

    def __init__(self, network: torch.nn.Module, trainable: dict[str, torch.nn.Parameter], ranks: Alone = ALONE):
        self.network, self.ranks = network, ranks
        self.current = trainable
        self.frozen = {name: parameter.detach().clone() for name, parameter in trainable.items()}

    @contextmanager
    def _swapped_in(self) -> Iterator[None]:
        # Swapping storage keeps one model in memory beside the copy, and shares every kernel with the policy.
        live = {name: parameter.data for name, parameter in self.current.items()}
        try:
            for name, parameter in self.current.items():
                parameter.data = self.frozen[name]
            yield
        finally:
            for name, parameter in self.current.items():
                parameter.data = live[name]

    @torch.no_grad()
    def add_logprobs(self, sequences: Sequence[TrainingSequence], max_tokens: int) -> None:
        """Give each sequence the column `reference_logprob` float32[T], NaN off its mask."""
        with self._swapped_in():
            found = self.ranks.merge(self._logprobs(sequences, plan(sequences, max_tokens, self.ranks)))
        for index, values in found.items():
            column = np.full(len(sequences[index].token_ids), np.nan, np.float32)
            column[sequences[index].mask] = values
            sequences[index].columns["reference_logprob"] = column

    def _logprobs(self, sequences: Sequence[TrainingSequence], rows: list[list[Bundle]]) -> dict[int, np.ndarray]:
        device, found = next(self.network.parameters()).device, {}
        for bundles in rows:
            if not bundles:
                _pass_of_nothing(self.network, device)
                continue
            row = pack([item.token_ids for item in sequences], bundles, device)
            tokens = _loss_tokens([sequences[index] for index in row.members], row)
            hidden = _before_targets(self.network, row, tokens)
            logprob, _ = logprobs_of(hidden, head(self.network), tokens.targets, tokens.temperature)
            found |= {index: values.cpu().numpy() for index, values in zip(row.members, logprob.split(tokens.counts))}
        return found


class ShardedReference(Reference):
    """The same where each rank holds a part of every weight: the parts are gathered from where they lie, so values move, not storage."""

    @contextmanager
    def _swapped_in(self) -> Iterator[None]:
        live = {name: parameter.detach().clone() for name, parameter in self.current.items()}
        try:
            self._take(self.frozen)
            yield
        finally:
            self._take(live)

    def _take(self, values: dict[str, Tensor]) -> None:
        self.ranks.settle(self.network)
        for name, parameter in self.current.items():
            parameter.copy_(values[name])
