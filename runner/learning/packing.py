"""Several sequences in one row [1, T]: position ids restart, attention stays inside each, nothing is padded."""

from dataclasses import dataclass
from typing import Sequence

import numpy as np
import torch
from torch import Tensor

from runner.models.loading import backbone


@dataclass(frozen=True)
class PackedRow:
    """Sequences `members`, end to end. input_ids and position_ids int64[1, T]; offsets int32[n + 1], from 0 to T."""

    members: list[int]
    input_ids: Tensor
    position_ids: Tensor
    offsets: Tensor


def plan_rows(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Share sequences out to rows of at most `max_tokens`, longest first into the first row with room.

    A sequence longer than the limit gets a row of its own. The plan depends on `lengths` alone.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        slot = next((row for row, free in enumerate(room) if free >= lengths[index]), None)
        if slot is None:
            rows.append([])
            room.append(max(max_tokens, lengths[index]))
            slot = len(rows) - 1
        rows[slot].append(index)
        room[slot] -= lengths[index]
    return rows


def pack(sequences: Sequence[np.ndarray], members: list[int], device: torch.device | str) -> PackedRow:
    """The row holding `sequences[i]` for each i of `members`, in that order."""
    chosen = [np.asarray(sequences[index]) for index in members]
    offsets = np.cumsum([0] + [len(tokens) for tokens in chosen])
    positions = np.concatenate([np.arange(len(tokens)) for tokens in chosen])
    return PackedRow(
        members,
        torch.as_tensor(np.concatenate(chosen), dtype=torch.long, device=device)[None],
        torch.as_tensor(positions, dtype=torch.long, device=device)[None],
        torch.as_tensor(offsets, dtype=torch.int32, device=device),
    )


def hidden_states(network: torch.nn.Module, row: PackedRow, cache=None) -> Tensor:
    """Last hidden states [T, H] of a packed row; with a `cache` its keys and values are kept there, end to end."""
    output = backbone(network)(
        input_ids=row.input_ids,
        position_ids=row.position_ids,
        cu_seq_lens_q=row.offsets,
        past_key_values=cache,
        use_cache=cache is not None,
    )
    return output.last_hidden_state[0]
