"""A model of the bytes and operations of a round: weights, KV, activations and logits by phase.

Every tensor of a layer is counted as written once and read once by each that needs it, weights and
KV as read once a pass. Small activations may live in a cache; then fewer bytes leave the chip.
Attention's partial results and index lists are left out: under one percent at these sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aerie.config import SpeculationConfig
from aerie.models.decoder import Decoder
from aerie.models.eagle3.head import Eagle3Head
from aerie.models.eagle3.values import HeadGeometry
from aerie.models.eight_bits import EightBitLinear
from aerie.models.geometry import AttentionGeometry
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
class Pass:
    """One forward: rows in all, requests, and the positions each of them looks back at."""

    phase: str
    rows: int
    requests: int
    seen: int
    element: int  # bytes
    weight: int  # bytes of one of its elements

    def product(self, rows: int, n_weights: int, moved: int, what: str) -> list[Traffic]:
        """Products of some rows: their weights, and the elements that go in and come out."""
        flops = 2.0 * rows * n_weights
        return [
            Traffic(self.phase, "linear", "weights", n_weights * self.weight, flops),
            Traffic(self.phase, "linear", what, moved * self.element),
        ]


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
    found += _mixing(head, extend) + _head_traffic(head, extend, load.batch)
    for _ in range(limits.depth - 1):
        found += _head_traffic(head, level, level.rows)
    return merged(found)


def target_traffic(
    target: Decoder, phase: str, rows: int, requests: int, seen: int
) -> list[Traffic]:
    """One forward of the target over all rows, logits of every row."""
    geometry, element = target.geometry, target.embedding.element_size()
    own, hidden = Pass(phase, rows, requests, seen, element, element), geometry.hidden_size
    layer = _layer(own, geometry.attention, hidden, hidden, geometry.mlp_width)
    return merged(layer * geometry.n_layers + _logits(own, geometry.vocab_size, hidden, rows))


def _head_traffic(head: Eagle3Head, own: Pass, n_asked: int) -> list[Traffic]:
    """One forward of the draft head, logits of the rows that were asked for."""
    size = head.summary.geometry
    hidden = size.hidden_size
    # Its first layer reads an embedding beside a feature.
    layers = _layer(own, size, 2 * hidden, hidden, size.mlp_width)
    layers += _layer(own, size, hidden, hidden, size.mlp_width) * (size.n_layers - 1)
    return layers + _logits(own, size.draft_vocab_size, hidden, n_asked)


def _layer(
    own: Pass, heads: AttentionGeometry | HeadGeometry, n_in: int, hidden: int, mlp: int
) -> list[Traffic]:
    phase, rows, size = own.phase, own.rows, own.element
    query, key = heads.n_heads * heads.head_dim, heads.n_kv_heads * heads.head_dim
    wide = query + 2 * key
    weights = n_in * wide + query * hidden + 3 * hidden * mlp
    # Into and out of the four products: normed rows, q k v, attended, o, gate and up, gated, down.
    moved = rows * (n_in + wide + query + hidden + hidden + 2 * mlp + mlp + hidden)
    per_position = 2 * key * size
    read, scores = own.requests * own.seen * per_position, 4.0 * rows * own.seen * query
    return [
        *own.product(rows, weights, moved, "activations"),
        Traffic(phase, "attention", "kv", read, scores),
        Traffic(phase, "attention", "activations", 2 * rows * query * size),
        Traffic(phase, "rotary and KV write", "kv", rows * per_position),
        Traffic(phase, "rotary and KV write", "activations", rows * (wide + query) * size),
        # Two norms: the stream and what is added are read, the sum and its norm written.
        Traffic(phase, "norm", "activations", 2 * rows * 4 * hidden * size),
        Traffic(phase, "activation", "activations", rows * 3 * mlp * size),
    ]


def _logits(own: Pass, vocabulary: int, hidden: int, n_rows: int) -> list[Traffic]:
    """The LM head: its weight, and logits written in the run's dtype, widened and read."""
    written = n_rows * vocabulary
    read = Traffic(own.phase, "sampling", "logits", written * (own.element + 2 * FLOAT))
    return [*own.product(n_rows, vocabulary * hidden, written, "logits"), read]


def _mixing(head: Eagle3Head, own: Pass) -> list[Traffic]:
    """The product that turns captured states into the head's width."""
    size = head.summary.geometry
    if head.mixer.fc is None:
        return []
    n_in, n_out = size.n_captures * size.target_hidden_size, size.hidden_size
    return own.product(own.rows, n_in * n_out, own.rows * (n_in + n_out), "activations")


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
