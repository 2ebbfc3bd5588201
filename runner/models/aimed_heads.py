"""Where assay-tiny's attention looks at the start, by choice of its weights alone.

Every pretrained language model has heads that look at the token before, and heads that look at tokens like the current one; together they
read a list. Random weights form them only after some ten times the training that a run of minutes has time for. So they are built in.

`aim_sight`, of every assay-tiny; what a head does with what it looks at is left to learn:
  layer 0, head 0   attends one token back. It needs queries and keys that say where, not what: one embedding feature is the
                    same for every token, both read it alone, and the fastest rotary pairs turn it into a position.
  every other head  has equal query and key projections on the slow rotary pairs, so like attends to like at any distance.

`aim_reading`, of assay-tiny-3, for numbered lists. Features of the residual stream that no embedding uses carry what these heads find:
  layer 0, head 0   also carries the token that it looks at.
  layer 0, head 1   attends to the number of the line that a token stands in, and carries it.
  layer 1, heads 0–1
                    attend to tokens like the one before the current one, and say the number of their line.
  layer 1, head 2   attends to tokens like the current one, and marks it when one stands outside every list.
  layer 2, heads 0–1
                    attend from everywhere to what is marked inside a list, and say its line's number; those of layer 3 say it of
                    whatever they attend to.
When to answer, with what, and which of several marks to follow is left to learn. Without the heads of layer 2 the lessons led
to reading too, but at a step that was luck: after 120 with one seed, not after 200 with another. Such heads are known from large models as
previous-token, duplicate-token, induction and name-mover heads (Olsson et al. 2022, Wang et al. 2023).
"""

from collections.abc import Sequence

import torch
from transformers import Qwen3ForCausalLM

SCALE = 0.02
ROTARY_BASE = 10_000.0
# Rotary pairs that turn fast enough to tell neighbours apart, and those too fast to be the same at any distance.
POSITION_PAIRS = 3
FAST_PAIRS = 6
# How sharply an aimed layer attends at the start: the gain of both query and key norm.
SHARPNESS = 2.2


@torch.no_grad()
def aim_sight(network: Qwen3ForCausalLM) -> None:
    """Give every head its first direction of sight."""
    width, size = network.config.hidden_size, network.config.head_dim
    network.model.embed_tokens.weight[:, 0] = 0.5 * SCALE * width**0.5
    for number, layer in enumerate(network.model.layers):
        attention = layer.self_attn
        queries, keys = (projection.weight.view(-1, size, width) for projection in (attention.q_proj, attention.k_proj))
        for head in range(len(queries)):
            if number == head == 0:
                _look_back(queries[head], keys[head])
            else:
                _look_for_likes(queries[head], keys[head])
    first = network.model.layers[0].self_attn
    first.q_norm.weight.fill_(SHARPNESS)
    first.k_norm.weight.fill_(SHARPNESS)


def _look_back(query: torch.Tensor, key: torch.Tensor) -> None:
    """query and key [size, width]: score(distance) = Σ cos(fᵢ·(distance − 1)) over the fast rotary pairs, greatest at distance 1."""
    half = len(query) // 2
    speeds = ROTARY_BASE ** (-torch.arange(POSITION_PAIRS) / half)
    for projection in (query, key):
        projection *= 0.1
    query[:POSITION_PAIRS, 0] += 0.3
    key[:POSITION_PAIRS, 0] += 0.3 * speeds.cos()
    key[half : half + POSITION_PAIRS, 0] += 0.3 * speeds.sin()


def _look_for_likes(query: torch.Tensor, key: torch.Tensor) -> None:
    """query and key [size, width] become the same orthonormal rows, scaled; the constant feature and the fast pairs are left out."""
    size, width = query.shape
    rows = torch.linalg.qr(torch.randn(width, size))[0].T * SCALE * width**0.5
    rows[:, 0] = 0
    for start in (0, size // 2):
        rows[start : start + FAST_PAIRS] = 0
    query.copy_(rows)
    key.copy_(rows)


# ---------------------------------------------------------------- numbered lists
# Features of the residual stream: what a token is, the token before, its line's number; and three of one feature each.
TOKEN, BEFORE, LINE = slice(1, 32), slice(32, 63), slice(63, 94)
IS_NUMBER, IN_LIST, IS_NAMED = 94, 95, 96
# Eight times the usual one step of the optimizer, so that training sharpens what is built in before it could wash it out.
LOUDNESS = 0.08
# What nobody aimed begins quietly: noise in the features above would drown what they carry.
QUIETNESS = 0.1
# Pairs that fall off within the length of a line, and slots of a head on pairs so slow that a list's length does not turn them.
LINE_PAIRS, LINE_SHARPNESS = (3, 4, 5), 3.0
SLOW = (*range(9, 16), *range(25, 32))
SLOWEST, NAMED_SHARPNESS = 15, 2.5


@torch.no_grad()
def aim_reading(network: Qwen3ForCausalLM, numbers: Sequence[tuple[int, int]]) -> None:
    """Let the network read numbered lists. `numbers` are token ids as of ("\\n2.", "2"): a line's number, the answer that names it."""
    embedding = network.model.embed_tokens.weight
    width, size = network.config.hidden_size, network.config.head_dim
    constant = 0.5 * LOUDNESS * width**0.5
    embedding *= LOUDNESS / SCALE
    embedding[:, 0] = constant
    embedding[:, BEFORE.start : IS_NAMED + 1] = 0
    for line, answer in numbers:
        embedding[line, TOKEN] = embedding[answer, TOKEN]
        embedding[line, IS_NUMBER] = constant
    for layer in network.model.layers:
        layer.mlp.down_proj.weight *= QUIETNESS
        layer.self_attn.o_proj.weight *= QUIETNESS
    first, second, *deeper = (_Heads(layer.self_attn, size, width) for layer in network.model.layers)
    first.carry(0, range(*TOKEN.indices(width)), range(*BEFORE.indices(width)))
    _look_at_line_number(first)
    second.sharpen(SHARPNESS)
    for head, start in ((0, 0), (1, len(SLOW))):
        second.match(head, range(BEFORE.start + start, BEFORE.stop), range(TOKEN.start + start, TOKEN.stop))
        second.carry(head, range(*LINE.indices(width)), range(*TOKEN.indices(width)))
    _mark_what_is_named(second)
    _look_at_what_is_named(deeper[0])
    for heads in deeper:
        for head in (0, 1):
            heads.carry(head, range(*LINE.indices(width)), range(*TOKEN.indices(width)))


class _Heads:
    """The heads of a layer as views: query, key, value [heads, size, width], output [width, heads, size]."""

    def __init__(self, attention, size: int, width: int):
        self.attention = attention
        self.query, self.key, self.value = (
            projection.weight.view(-1, size, width) for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        self.output = attention.o_proj.weight.view(width, -1, size)

    def sharpen(self, gain: float) -> None:
        self.attention.q_norm.weight.fill_(gain)
        self.attention.k_norm.weight.fill_(gain)

    def match(self, head: int, queried: Sequence[int], keyed: Sequence[int]) -> None:
        """Attend to where the features `keyed` are what the features `queried` are here."""
        for projection, features in ((self.query[head], queried), (self.key[head], keyed)):
            projection.zero_()
            for slot, feature in zip(SLOW, features):
                projection[slot, feature] = 0.2

    def carry(self, head: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Write the features `sources` of what is attended to into `targets`, as large as they are."""
        self.value[head].zero_()
        self.output[:, head].zero_()
        for slot, (source, target) in enumerate(zip(sources, targets, strict=True)):
            self.value[head, slot, source] = self.output[target, head, slot] = LOUDNESS**0.5


def _look_at_line_number(heads: _Heads) -> None:
    """Head 1 attends to the nearest number of a line before; a token that is none matches no query."""
    query, key, half = heads.query[1], heads.key[1], heads.query.shape[1] // 2
    query.zero_()
    key.zero_()
    query[list(LINE_PAIRS), 0] = key[list(LINE_PAIRS), IS_NUMBER] = 0.3
    # Where a key has nothing else, its norm blows this up instead of noise.
    key[half - FAST_PAIRS, 0] = 0.03
    turned = [*LINE_PAIRS, *(pair + half for pair in LINE_PAIRS)]
    heads.attention.q_norm.weight[turned] = LINE_SHARPNESS
    heads.attention.k_norm.weight[turned] = LINE_SHARPNESS
    heads.carry(1, [*range(TOKEN.start, TOKEN.stop), IS_NUMBER], [*range(LINE.start, LINE.stop), IN_LIST])


def _mark_what_is_named(heads: _Heads) -> None:
    """Head 2 attends to tokens like the current one; what stands outside every list leaves its mark."""
    token = range(TOKEN.start, TOKEN.stop)
    heads.match(2, token, token)
    heads.value[2].zero_()
    heads.output[:, 2].zero_()
    heads.value[2, 0, 0], heads.value[2, 0, IN_LIST] = LOUDNESS**0.5, -(LOUDNESS**0.5)
    # Half of the attention stays on the token itself.
    heads.output[IS_NAMED, 2, 0] = 2 * LOUDNESS**0.5


def _look_at_what_is_named(heads: _Heads) -> None:
    """Heads 0 and 1 attend to marks inside a list, from everywhere: the slowest pair compares nothing but the two features."""
    heads.sharpen(NAMED_SHARPNESS)
    for query, key in zip(heads.query[:2], heads.key[:2]):
        query.zero_()
        key.zero_()
        query[SLOWEST, 0] = key[SLOWEST, IN_LIST] = 0.2
        key[SLOWEST, IS_NAMED] = 0.1
        # What has neither feature keeps its direction apart.
        key[SLOWEST - 1, 0] = 0.3
