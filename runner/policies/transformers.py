"""Generation over a transformers model: prompts packed, prefixes shared, rows batched over one key/value cache.

1. Equal prompts are computed once, all of them packed end to end without padding.
2. Their keys and values are copied to one row per sample. Rows differ in prompt length, so each has a gap
   between its prompt and its first new token; a mask hides the gap, position ids count past it.
3. Each step samples one token per row from the row's own uniform number and appends to the cache in place.
4. Finished rows are taken out once they are a quarter of the batch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from runner.contract.run_config import Model
from runner.learning.logprobs import score_sequences
from runner.learning.packing import alone, hidden_states, pack, plan_rows
from runner.learning.weights import import_tensors, import_weights
from runner.models.loading import backbone, head, load_model, stop_token_ids
from runner.policies.base import Generation, SamplingParams, Seed, Weights, uniforms

PREFILL_TOKENS = 8192
CACHE_BLOCK = 64


class _InPlaceLayer(DynamicLayer):
    """One layer's keys and values [B, H, S, D] in a buffer with room: appending copies no past token."""

    def __init__(self, keys: Tensor, values: Tensor, room: int):
        super().__init__()
        self.lazy_initialization(keys, values)
        self._length = keys.shape[-2]
        self._buffers = [_with_room(keys, room), _with_room(values, room)]
        self._expose()

    def _expose(self) -> None:
        self.keys, self.values = (buffer[..., : self._length, :] for buffer in self._buffers)

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        end = self._length + key_states.shape[-2]
        if end > self._buffers[0].shape[-2]:
            self._buffers = [_with_room(self.keys, CACHE_BLOCK), _with_room(self.values, CACHE_BLOCK)]
        for buffer, states in zip(self._buffers, (key_states, value_states)):
            buffer[..., self._length : end, :] = states
        self._length = end
        self._expose()
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        self._buffers = [buffer[indices] for buffer in self._buffers]
        self._expose()


def _with_room(states: Tensor, room: int) -> Tensor:
    return torch.cat([states, states.new_empty(*states.shape[:-2], room, states.shape[-1])], -2)


@dataclass
class _Rows:
    """Rows still generating. `rows` maps them to positions in the request."""

    rows: np.ndarray
    cache: Cache
    lengths: Tensor
    visible: Tensor

    def select(self, keep: np.ndarray) -> None:
        """Drop every row but those of `keep`."""
        indices = torch.as_tensor(keep, device=self.lengths.device)
        self.rows = self.rows[keep]
        self.lengths, self.visible = self.lengths[indices], self.visible[indices]
        self.cache.batch_select_indices(indices)


class _Responses:
    """What has been sampled so far, per position of the request."""

    def __init__(self, limits: np.ndarray, stop_tokens: np.ndarray):
        self.limits, self.stop_tokens = limits, stop_tokens
        self.tokens = np.zeros((len(limits), limits.max()), np.int32)
        self.logprobs = np.zeros((len(limits), limits.max()), np.float32)
        self.counts = np.zeros(len(limits), np.int64)
        self.stopped = np.zeros(len(limits), bool)

    def record(self, rows: np.ndarray, position: int, tokens: np.ndarray, logprobs: np.ndarray) -> np.ndarray:
        """Append to the rows that still go on; bool per row: whether it goes on after this token."""
        open_rows = self._going(rows)
        writing = rows[open_rows]
        self.tokens[writing, position], self.logprobs[writing, position] = tokens[open_rows], logprobs[open_rows]
        self.counts[writing] += 1
        self.stopped[writing] = np.isin(tokens[open_rows], self.stop_tokens)
        return self._going(rows)

    def _going(self, rows: np.ndarray) -> np.ndarray:
        return ~self.stopped[rows] & (self.counts[rows] < self.limits[rows])

    def generations(self, version: int) -> list[Generation]:
        """The finished responses, in request order."""
        return [
            Generation(
                self.tokens[row, :count].copy(), self.logprobs[row, :count].copy(), "stop" if self.stopped[row] else "length", version
            )
            for row, count in enumerate(self.counts)
        ]


class TransformersPolicy:
    """The student as a transformers model in this process. See `Policy` for the methods."""

    def __init__(self, folder: Path, model: Model, *, seed: int, device: str = "cpu", max_rows: int = 256):
        self.network = load_model(folder, model, seed=seed, device=device).requires_grad_(False)
        self.stop_tokens = np.array(sorted(stop_token_ids(folder)))
        self.max_length = model.max_length
        self.max_rows = max_rows
        self.device = torch.device(device)
        self.version = 0

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Sequence[int]], sampling: SamplingParams, seeds: Sequence[Seed]) -> list[Generation]:
        if len(prompts) != len(seeds):
            raise ValueError(f"seeds: {len(seeds)} for {len(prompts)} prompts; pass one per prompt")
        for prompt in prompts:
            if not 0 < len(prompt) < self.max_length:
                raise ValueError(
                    f"model.max_length: a prompt of {len(prompt)} tokens leaves no room in {self.max_length}; raise it or shorten the prompt"
                )
        generations = []
        for start in range(0, len(prompts), self.max_rows):
            stop = start + self.max_rows
            generations += self._generate_batch([tuple(prompt) for prompt in prompts[start:stop]], sampling, seeds[start:stop])
        return generations

    def _generate_batch(self, prompts: list[tuple[int, ...]], sampling: SamplingParams, seeds: Sequence[Seed]) -> list[Generation]:
        limits = np.array([min(sampling.max_new_tokens, self.max_length - len(prompt)) for prompt in prompts])
        responses = _Responses(limits, self.stop_tokens)
        chance = torch.as_tensor(np.stack([uniforms(seed, limits.max()) for seed in seeds]), device=self.device)
        active, logits = self._prefill(prompts, int(limits.max()))
        for position in range(limits.max()):
            chosen, logprobs = sample_tokens(logits, sampling, chance[active.rows, position])
            going = responses.record(active.rows, position, chosen.cpu().numpy(), logprobs.cpu().numpy())
            if not going.any():
                break
            if going.mean() <= 0.75:
                keep = np.flatnonzero(going)
                active.select(keep)
                chosen = chosen[keep]
            logits = self._decode(active, chosen, position)
        return responses.generations(self.version)

    def _prefill(self, prompts: list[tuple[int, ...]], longest: int) -> tuple[_Rows, Tensor]:
        unique = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
        sequences = [np.array(prompt) for prompt in unique]
        last = [None] * len(sequences)
        states: list[list] = [[None] * len(sequences) for _ in range(2 * self._layers)]
        for bundles in plan_rows(alone(sequences), PREFILL_TOKENS):
            row, cache = pack(sequences, bundles, self.device), DynamicCache(config=backbone(self.network).config)
            hidden = hidden_states(self.network, row, cache)
            for number, place in zip(row.members, row.places):
                last[number] = hidden[place[-1]]
            for kind, packed in enumerate(part for layer in cache.layers for part in (layer.keys, layer.values)):
                for number, piece in zip(row.members, packed[0].split([len(place) for place in row.places], 1)):
                    states[kind][number] = piece.transpose(0, 1)
        expand = torch.tensor([unique[prompt] for prompt in prompts], device=self.device)
        padded = [pad_sequence(pieces, batch_first=True).transpose(1, 2)[expand] for pieces in states]
        room = min(longest, CACHE_BLOCK)
        cache = Cache(layers=[_InPlaceLayer(keys, values, room) for keys, values in zip(padded[::2], padded[1::2])])
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        columns = torch.arange(int(lengths.max()) + longest, device=self.device)
        visible = (columns < lengths[:, None]) | (columns >= lengths.max())
        logits = head(self.network)(torch.stack(last))[expand].float()
        return _Rows(np.arange(len(prompts)), cache, lengths, visible), logits

    @property
    def _layers(self) -> int:
        return backbone(self.network).config.num_hidden_layers

    def _decode(self, active: _Rows, chosen: Tensor, position: int) -> Tensor:
        seen = active.cache.get_seq_length() + 1
        output = backbone(self.network)(
            input_ids=chosen[:, None],
            position_ids=(active.lengths + position)[:, None],
            attention_mask=active.visible[:, None, None, :seen],
            past_key_values=active.cache,
            use_cache=True,
        )
        return head(self.network)(output.last_hidden_state[:, 0]).float()

    @torch.inference_mode()
    def score(self, sequences: Sequence[Sequence[int]], temperature: float = 1.0) -> list[np.ndarray]:
        return score_sequences(self.network, sequences, temperature)

    @torch.inference_mode()
    def choice_logprobs(self, prompts: Sequence[Sequence[int]], candidates: Sequence[Sequence[Sequence[int]]]) -> list[np.ndarray]:
        # Candidates that differ in their last token only share one forward pass: for single letters, the prompt's own.
        contexts = {}
        for prompt, group in zip(prompts, candidates, strict=True):
            for candidate in group:
                if not len(candidate):
                    raise ValueError("candidates: an empty continuation has no log-prob; pass at least one token")
                contexts.setdefault((*prompt, *candidate[:-1]), len(contexts))
        wanted = [
            [(contexts[(*prompt, *choice[:-1])], len(prompt), choice) for choice in group] for prompt, group in zip(prompts, candidates)
        ]
        return self._gather_choices(list(contexts), wanted)

    def _gather_choices(self, contexts: list[tuple[int, ...]], wanted: list[list[tuple[int, int, Sequence[int]]]]) -> list[np.ndarray]:
        hidden: list = [None] * len(contexts)
        for bundles in plan_rows(alone(contexts), PREFILL_TOKENS):
            row = pack(contexts, bundles, self.device)
            for number, piece in zip(row.members, hidden_states(self.network, row).split([len(place) for place in row.places])):
                hidden[number] = piece
        result = []
        for group in wanted:
            states = torch.cat([hidden[number][start - 1 :] for number, start, _ in group])
            targets = torch.tensor([token for *_, choice in group for token in choice], device=self.device)
            logprobs = torch.log_softmax(head(self.network)(states).float(), -1).gather(-1, targets[:, None])[:, 0]
            result.append(np.array([part.sum().item() for part in logprobs.split([len(choice) for *_, choice in group])], np.float32))
        return result

    def load_weights(self, weights: Weights) -> None:
        import_weights(self.network, weights)
        self.version = weights.version

    def load_tensors(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        import_tensors(self.network, tensors)
        self.version = version

    def health(self) -> dict:
        return {
            "policy_version": self.version,
            "device": str(self.device),
            "dtype": str(backbone(self.network).dtype).removeprefix("torch."),
            "parameters": sum(parameter.numel() for parameter in self.network.parameters()),
            "threads": torch.get_num_threads(),
        }


def sample_tokens(logits: Tensor, sampling: SamplingParams, chance: Tensor) -> tuple[Tensor, Tensor]:
    """(token ids int64[B], log-probs float32[B]) by inverting each row's cumulative distribution at `chance`.

    logits float32[B, V]; chance float64[B] in [0, 1). Greedy at temperature 0, with untempered log-probs.
    """
    if sampling.temperature == 0:
        chosen = logits.argmax(-1)
        return chosen, torch.log_softmax(logits, -1).gather(-1, chosen[:, None])[:, 0]
    log_probs = torch.log_softmax(logits / sampling.temperature, -1)
    if sampling.top_p < 1:
        return _sample_nucleus(log_probs, sampling.top_p, chance)
    chosen = _invert(log_probs.double().exp(), chance)
    return chosen, log_probs.gather(-1, chosen[:, None])[:, 0]


def _sample_nucleus(log_probs: Tensor, top_p: float, chance: Tensor) -> tuple[Tensor, Tensor]:
    ordered, tokens = torch.sort(log_probs, dim=-1, descending=True, stable=True)
    probs = ordered.double().exp()
    kept = torch.where(probs.cumsum(-1) - probs < top_p, probs, 0.0)
    place = _invert(kept, chance)[:, None]
    logprobs = ordered.gather(-1, place)[:, 0] - kept.sum(-1).log()
    return tokens.gather(-1, place)[:, 0], logprobs.float()


def _invert(probs: Tensor, chance: Tensor) -> Tensor:
    # Double precision: summed in single, a large vocabulary's tail would be off by more than its probability.
    cumulative = probs.cumsum(-1)
    total = cumulative[:, -1]
    target = torch.minimum(chance * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
