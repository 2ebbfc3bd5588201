"""Several sequences in one row [1, T]: position ids restart, attention stays inside each, nothing is padded.

Sequences that begin alike, such as the episodes of one group before the student speaks, share the beginning: it
is computed once and each continuation attends to it and to itself.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from runner.models.attention import Block, Layout
from runner.models.loading import decoder

# Below this many tokens, sharing saves less than the extra attention call costs.
MIN_SHARED = 16


@dataclass(frozen=True)
class Bundle:
    """Sequences `members` whose first `shared` tokens are equal; `tokens` is what they take in a row."""

    members: list[int]
    shared: int
    tokens: int


@dataclass(frozen=True)
class PackedRow:
    """Bundles end to end. input_ids and position_ids int64[1, T]; `places[k]` int64[T_k] says where in the row
    each token of sequence `members[k]` lies (shared ones lie in several sequences)."""

    members: list[int]
    places: list[np.ndarray]
    input_ids: Tensor
    position_ids: Tensor
    layout: Layout


def alone(sequences: Sequence[Sequence[int]]) -> list[Bundle]:
    """Every sequence as a bundle of its own."""
    return [Bundle([index], len(tokens), len(tokens)) for index, tokens in enumerate(sequences)]


def share_prefixes(sequences: Sequence[np.ndarray], prefixes: Sequence[int], max_tokens: int) -> list[Bundle]:
    """Bundle sequences whose first `prefixes[i]` tokens are equal, in bundles of at most `max_tokens` where possible."""
    groups: dict[bytes, list[int]] = defaultdict(list)
    for index, (tokens, prefix) in enumerate(zip(sequences, prefixes, strict=True)):
        key = tokens[:prefix].tobytes() if MIN_SHARED <= prefix < len(tokens) else index.to_bytes(8)
        groups[key].append(index)
    bundles = []
    for members in groups.values():
        shared = prefixes[members[0]] if len(members) > 1 else len(sequences[members[0]])
        bundles += _cut([(index, len(sequences[index]) - shared) for index in members], shared, max_tokens)
    return bundles


def _cut(rests: list[tuple[int, int]], shared: int, max_tokens: int) -> list[Bundle]:
    bundles: list[Bundle] = []
    members, tokens = [], shared
    for index, rest in rests:
        if members and tokens + rest > max_tokens:
            bundles.append(Bundle(members, shared, tokens))
            members, tokens = [], shared
        members, tokens = [*members, index], tokens + rest
    return [*bundles, Bundle(members, shared, tokens)]


def plan_rows(bundles: Sequence[Bundle], max_tokens: int) -> list[list[Bundle]]:
    """Share bundles out to rows of at most `max_tokens`, longest first into the first row with room.

    A bundle over the limit gets a row of its own. The plan depends on lengths and order alone.
    """
    rows: list[list[Bundle]] = []
    room: list[int] = []
    for bundle in sorted(bundles, key=lambda item: (-item.tokens, item.members[0])):
        slot = next((row for row, free in enumerate(room) if free >= bundle.tokens), None)
        if slot is None:
            rows.append([])
            room.append(max(max_tokens, bundle.tokens))
            slot = len(rows) - 1
        rows[slot].append(bundle)
        room[slot] -= bundle.tokens
    return rows


def pack(sequences: Sequence[Sequence[int]], bundles: Sequence[Bundle], device: torch.device | str) -> PackedRow:
    """The row holding `bundles`, in that order."""
    members, places, tokens, positions, blocks, end = [], [], [], [], [], 0
    for bundle in bundles:
        begin, first = end, np.asarray(sequences[bundle.members[0]])
        tokens.append(first[: bundle.shared])
        positions.append(np.arange(bundle.shared))
        end += bundle.shared
        rests = []
        for index in bundle.members:
            rest = np.asarray(sequences[index])[bundle.shared :]
            members.append(index)
            places.append(np.concatenate([np.arange(begin, begin + bundle.shared), np.arange(end, end + len(rest))]))
            tokens.append(rest)
            positions.append(np.arange(bundle.shared, bundle.shared + len(rest)))
            rests.append(len(rest))
            end += len(rest)
        blocks.append(Block(bundle.shared, [length for length in rests if length]))
    row = [torch.as_tensor(np.concatenate(parts), dtype=torch.long, device=device)[None] for parts in (tokens, positions)]
    return PackedRow(members, places, *row, Layout(blocks))


def hidden_states(network: torch.nn.Module, row: PackedRow, cache=None) -> Tensor:
    """Last hidden states [T, H] of a packed row; with a `cache` its keys and values are kept there, end to end."""
    output = decoder(network)(
        input_ids=row.input_ids,
        position_ids=row.position_ids,
        layout=row.layout,
        past_key_values=cache,
        use_cache=cache is not None,
    )
    return output.last_hidden_state[0]
