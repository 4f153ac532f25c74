"""A model of the bytes and operations of a round: weights, KV, activations and logits by phase.

Every tensor of a layer is counted as written once and read once by each that needs it, weights and
KV as read once a pass. Small activations may live in a cache; then fewer bytes leave the chip.
Attention's partial results and index lists are left out: under one percent at these sizes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aerie.config import SpeculationConfig
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eight_bits import EightBitLinear
from aerie.models.inflate.embed import LargePair

FLOAT = 4  # bytes of a logit: they are float32 whatever the run's dtype


@dataclass(frozen=True)
class Traffic:
    """Bytes and operations of one kind in one phase of a round, all requests together."""

    phase: str
    part: str  # whose time it is, in the words of trace.PARTS
    what: str  # weights, kv, activations or logits
    n_bytes: float
    flops: float = 0.0


@dataclass(frozen=True)
class Block:
    """Sizes of one layer."""

    n_in: int  # a draft head's first layer reads an embedding beside a feature
    hidden: int
    query: int  # width of all queries
    key: int  # width of all keys, and of all values
    mlp: int

    @property
    def weights(self) -> int:
        """Elements of its products."""
        attention = self.n_in * (self.query + 2 * self.key) + self.query * self.hidden
        return attention + 3 * self.hidden * self.mlp


@dataclass(frozen=True)
class Pass:
    """One forward: rows in all, requests, and the positions each of them looks back at."""

    phase: str
    rows: int
    requests: int
    seen: int
    element: int  # bytes
    weight: int  # bytes of one of its elements


@dataclass(frozen=True)
class Load:
    """What a round has to do: requests, their length, and rows as they were padded."""

    batch: int
    context: int
    verify_rows: int  # all requests together


def round_traffic(pair: LargePair, speculation: SpeculationConfig, load: Load) -> list[Traffic]:
    """Everything one round moves; plain decoding is a verification of the roots alone."""
    found = target_traffic(pair.target, "verify", load.verify_rows, load.batch, load.context)
    if speculation.method == "none":
        return found
    limits, head, element = speculation.limits, pair.head, pair.target.embedding.element_size()
    reach, seen = head.reach, load.context
    weight = 1 if isinstance(head.output, EightBitLinear) else element
    if reach.window is not None:
        seen = min(load.context, reach.window + reach.n_sink_tokens)
    # A draft takes in a whole path for every request, used or not, then feeds each level.
    extend = Pass("draft", load.batch * (limits.depth + 1), load.batch, seen, element, weight)
    level = Pass("draft", load.batch * limits.top_k, load.batch, seen, element, weight)
    found += _mixing(head, extend)
    found += head_traffic(head, extend, load.batch)
    for _ in range(limits.depth - 1):
        found += head_traffic(head, level, level.rows)
    return merged(found)


def target_traffic(
    target: Decoder, phase: str, rows: int, requests: int, seen: int
) -> list[Traffic]:
    """One forward of the target over all rows, logits of every row."""
    geometry, element = target.geometry, target.embedding.element_size()
    shape, hidden = geometry.attention, geometry.hidden_size
    query, key = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    blocks = [Block(hidden, hidden, query, key, geometry.mlp_width)] * geometry.n_layers
    own = Pass(phase, rows, requests, seen, element, element)
    return merged(_forward(blocks, own, geometry.vocab_size, rows))


def head_traffic(head: Eagle3Head, own: Pass, n_asked: int) -> list[Traffic]:
    """One forward of the draft head, logits of the rows that were asked for."""
    size = head.summary.geometry
    widths = [2 * size.hidden_size] + [size.hidden_size] * (size.n_layers - 1)
    query, key = size.n_heads * size.head_dim, size.n_kv_heads * size.head_dim
    blocks = [Block(n_in, size.hidden_size, query, key, size.mlp_width) for n_in in widths]
    return _forward(blocks, own, size.draft_vocab_size, n_asked)


def _forward(blocks: Sequence[Block], own: Pass, vocabulary: int, n_asked: int) -> list[Traffic]:
    layers = [traffic for block in blocks for traffic in _layer(block, own)]
    return [*layers, *_logits(own, vocabulary, blocks[-1].hidden, n_asked)]


def _layer(block: Block, own: Pass) -> list[Traffic]:
    phase, rows, size = own.phase, own.rows, own.element
    wide = block.query + 2 * block.key
    # Into and out of the four products: normed rows, q k v, attended, o, gate and up, gated, down.
    linear = block.n_in + wide + block.query + block.hidden
    linear += block.hidden + 2 * block.mlp + block.mlp + block.hidden
    per_position = 2 * block.key * size
    read, scores = own.requests * own.seen * per_position, 4.0 * rows * own.seen * block.query
    return [
        Traffic(phase, "linear", "weights", block.weights * own.weight, 2.0 * rows * block.weights),
        Traffic(phase, "linear", "activations", rows * linear * size),
        Traffic(phase, "attention", "kv", read, scores),
        Traffic(phase, "attention", "activations", 2 * rows * block.query * size),
        Traffic(phase, "rotary and KV write", "kv", rows * per_position),
        Traffic(phase, "rotary and KV write", "activations", rows * (wide + block.query) * size),
        # Two norms: the stream and what is added are read, the sum and its norm written.
        Traffic(phase, "norm", "activations", 2 * rows * 4 * block.hidden * size),
        Traffic(phase, "activation", "activations", rows * 3 * block.mlp * size),
    ]


def _logits(own: Pass, vocabulary: int, hidden: int, n_rows: int) -> list[Traffic]:
    """The LM head: its weight, and logits written in the run's dtype, widened and read."""
    weights = vocabulary * hidden
    written = n_rows * vocabulary
    return [
        Traffic(own.phase, "linear", "weights", weights * own.weight, 2.0 * n_rows * weights),
        Traffic(own.phase, "linear", "logits", written * own.element),
        Traffic(own.phase, "sampling", "logits", written * (own.element + 2 * FLOAT)),
    ]


def _mixing(head: Eagle3Head, own: Pass) -> list[Traffic]:
    """The product that turns captured states into the head's width."""
    size = head.summary.geometry
    if head.mixer.fc is None:
        return []
    n_in = size.n_captures * size.target_hidden_size
    weights = n_in * size.hidden_size
    moved = own.rows * (n_in + size.hidden_size) * own.element
    return [
        Traffic(own.phase, "linear", "weights", weights * own.weight, 2.0 * own.rows * weights),
        Traffic(own.phase, "linear", "activations", moved),
    ]


def merged(found: Iterable[Traffic]) -> list[Traffic]:
    """One entry for each phase, part and kind, most bytes first."""
    sums: dict[tuple[str, str, str], tuple[float, float]] = {}
    for entry in found:
        key = entry.phase, entry.part, entry.what
        n_bytes, flops = sums.get(key, (0.0, 0.0))
        sums[key] = n_bytes + entry.n_bytes, flops + entry.flops
    rows = [Traffic(*key, *values) for key, values in sums.items()]
    return sorted(rows, key=lambda entry: -entry.n_bytes)


def total_bytes(found: Iterable[Traffic], *kinds: str) -> float:
    """All bytes, or those of the named kinds."""
    return sum(entry.n_bytes for entry in found if entry.what in kinds or not kinds)


def step_bytes(target: Decoder, context: int, n_rows: int) -> int:
    """Fewest bytes one forward moves: every weight once, the KV of the context, what it writes."""
    stored = total_bytes(target_traffic(target, "", n_rows, 1, context), "weights", "kv")
    return int(stored) + n_rows * target.geometry.hidden_size * target.embedding.element_size()


def prompt_flops(target: Decoder, n_tokens: int) -> float:
    """Operations of reading a prompt: all products, causal attention, one row of logits."""
    found = target_traffic(target, "prompt", n_tokens, 1, (n_tokens + 1) // 2)
    spare = 2.0 * (n_tokens - 1) * target.geometry.vocab_size * target.geometry.hidden_size
    return sum(entry.flops for entry in found) - spare


def weight_bytes(target: Decoder) -> float:
    """Bytes of all products of the target."""
    return total_bytes(target_traffic(target, "prompt", 1, 1, 1), "weights")
