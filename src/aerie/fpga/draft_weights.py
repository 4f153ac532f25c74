"""The weights of a draft head as the card's memory holds them, from a loaded head or made up."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from aerie.errors import UsageError
from aerie.fpga.quantise import Array, Quantised, quantise, tiled
from aerie.models.eagle3.head import Eagle3Head
from aerie.perf.point import Sizes

GROUP, SKETCH_GROUP = 128, 32


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a draft head."""

    hidden: int
    features: int
    q_width: int
    kv_width: int
    head_dim: int
    mlp: int
    vocab: int
    window: int  # 0: everything


@dataclass(frozen=True, eq=False)
class Sketch:
    """A product of two thin matrices that stands for the head: which tokens are worth scoring."""

    inner: Quantised  # [rank, hidden]
    outer: Quantised  # [vocab, rank]

    @property
    def rank(self) -> int:
        """Of the product."""
        return int(self.inner.nibbles.shape[0])


@dataclass(frozen=True, eq=False)
class SmallTables:
    """Norms in the order of the layer (embedding, hidden, feed-forward, final), and angles."""

    norms: Array  # [4 * hidden] f32
    eps: Array  # [1] f32
    cosines: Array  # [positions, head_dim / 2] f32
    sines: Array

    @classmethod
    def of(cls, norms: Array, eps: float, frequencies: Array, n_positions: int) -> SmallTables:
        """With the angles of so many positions."""
        angles = np.outer(np.arange(n_positions), frequencies).astype(np.float32)
        return cls(norms.reshape(-1), np.array([eps], np.float32), np.cos(angles), np.sin(angles))


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """The LM head: whole, in 4 bits, and as a sketch."""

    whole: Array  # [vocab, hidden] f16
    q4: Quantised
    sketch: Sketch


@dataclass(frozen=True, eq=False)
class DraftWeights:
    """Everything a draft round reads but features and its cache."""

    shape: HeadShape
    tables: SmallTables
    embedding: Array  # [vocab, hidden] f16
    fc: Array  # [hidden, features] f16
    fc_q4: Quantised
    qkv: Quantised
    output: Quantised
    gate_up: Quantised
    down: Quantised
    down_tiles: Quantised
    head: HeadWeights


def sketch_head(head: Array, covariance: Array, rank: int) -> Sketch:
    """The best thin product for hidden states of this covariance, quantised.

    Plain singular vectors keep directions in which no hidden state points; weighting by the
    covariance of real ones halves the rank that the same acceptance needs.
    """
    ridge = 1e-4 * np.trace(covariance) / len(covariance)
    lower = np.linalg.cholesky(covariance + ridge * np.eye(len(covariance)))
    left, values, right = np.linalg.svd(head.astype(np.float64) @ lower, full_matrices=False)
    # right @ lower^-1, without an inverse.
    inner = np.linalg.solve(lower.T, right[:rank].T).T
    outer = left[:, :rank] * values[:rank]
    # Balanced, so that neither factor leaves the range of its 16-bit scales.
    size = np.sqrt(np.abs(outer).max() / np.abs(inner).max())
    return Sketch(
        quantise((inner * size).astype(np.float32), SKETCH_GROUP),
        quantise((outer / size).astype(np.float32), SKETCH_GROUP),
    )


@dataclass(frozen=True, eq=False)
class _Matrices:
    """Weights as they are multiplied, and the norms before them; folded norms are ones."""

    norms: Array  # [4, hidden]
    qkv: Array
    gate_up: Array
    head: Array
    covariance: Array  # of the rows the LM head is fed

    def folded(self) -> _Matrices:
        """Every norm's weight inside the matrix it feeds: a product a column less at run time."""
        joined = np.concatenate([self.norms[0], self.norms[1]])
        final = self.norms[3]
        return _Matrices(
            np.ones_like(self.norms),
            self.qkv * joined,
            self.gate_up * self.norms[2],
            self.head * final,
            self.covariance / np.outer(final, final),
        )


def weights_of(
    head: Eagle3Head, covariance: Array, rank: int, n_positions: int, fold: bool = False
) -> DraftWeights:
    """A loaded head in the card's formats; `covariance` is of the rows its LM head is fed."""
    size, first = head.summary.geometry, head.first
    reach = head.summary.convention.reach
    if reach.n_sink_tokens:
        raise UsageError(
            f"the card's head has a window and no sinks: draft_sinks is {reach.n_sink_tokens}"
        )
    shape = HeadShape(
        size.hidden_size,
        size.n_captures * size.target_hidden_size,
        size.n_heads * size.head_dim,
        size.n_kv_heads * size.head_dim,
        size.head_dim,
        size.mlp_width,
        size.draft_vocab_size,
        reach.window or 0,
    )
    norms = (first.embedding_norm, first.hidden_norm, first.feed_forward_norm, head.final_norm)
    fc = _weight(head.mixer.fc)
    attention, mlp = first.attention, first.feed_forward
    made = _Matrices(
        np.stack([_array(norm.weight) for norm in norms]),
        _weight(_part(attention.qkv, "linear")),
        _weight(_part(_part(mlp, "gate_up"), "linear")),
        _weight(head.output),
        covariance,
    )
    made = made.folded() if fold else made
    down = quantise(_weight(_part(mlp, "down")), GROUP)
    frequencies = head.rotary.frequencies.numpy()
    return DraftWeights(
        shape=shape,
        tables=SmallTables.of(made.norms, size.norm_eps, frequencies, n_positions),
        embedding=_half(_array(head.embedding)),
        fc=_half(fc),
        fc_q4=quantise(fc, GROUP),
        qkv=quantise(made.qkv, GROUP),
        output=quantise(_weight(attention.output), GROUP),
        gate_up=quantise(made.gate_up, GROUP),
        down=down,
        down_tiles=tiled(down),
        head=HeadWeights(
            _half(made.head),
            quantise(made.head, GROUP),
            sketch_head(made.head, made.covariance, rank),
        ),
    )


def _part(layer: object, name: str) -> object:
    """A part of a layer whose storage this format knows; another storage is refused by name."""
    if not hasattr(layer, name):
        raise UsageError(f"{type(layer).__name__} has no {name}: pack a head of dense weights")
    return getattr(layer, name)


def _weight(linear: object) -> Array:
    weight = _part(linear, "weight")
    assert isinstance(weight, Tensor)
    return _array(weight)


def _array(tensor: Tensor) -> Array:
    made: Array = np.ascontiguousarray(tensor.detach().float().numpy())
    return made


def _half(array: Array) -> Array:
    return np.ascontiguousarray(array.astype(np.float16))


def made_up_weights(sizes: Sizes, rank: int, n_positions: int) -> DraftWeights:
    """Random weights of a production geometry: right in bytes, and small enough to stay finite."""
    rng = np.random.default_rng(0)
    shape = HeadShape(
        sizes.hidden,
        sizes.n_taps * sizes.hidden,
        sizes.n_heads * sizes.head_dim,
        sizes.n_kv_heads * sizes.head_dim,
        sizes.head_dim,
        sizes.mlp_width,
        sizes.draft_vocab,
        0,
    )
    hidden, wide = sizes.hidden, shape.q_width + 2 * shape.kv_width
    head = _drawn_half(rng, (sizes.draft_vocab, hidden))
    frequencies = 1.0 / 500000.0 ** (np.arange(0, sizes.head_dim, 2) / sizes.head_dim)
    down = _drawn(rng, hidden, sizes.mlp_width, GROUP)
    sketch = Sketch(
        _drawn(rng, rank, hidden, SKETCH_GROUP), _drawn(rng, sizes.draft_vocab, rank, SKETCH_GROUP)
    )
    return DraftWeights(
        shape=shape,
        tables=SmallTables.of(np.ones(4 * hidden, np.float32), 1e-5, frequencies, n_positions),
        embedding=head,  # bytes that are gathered a row at a time: any table will do
        fc=_drawn_half(rng, (hidden, shape.features)),
        fc_q4=_drawn(rng, hidden, shape.features, GROUP),
        qkv=_drawn(rng, wide, 2 * hidden, GROUP),
        output=_drawn(rng, hidden, shape.q_width, GROUP),
        gate_up=_drawn(rng, 2 * sizes.mlp_width, hidden, GROUP),
        down=down,
        down_tiles=tiled(down),
        head=HeadWeights(head, _drawn(rng, sizes.draft_vocab, hidden, GROUP), sketch),
    )


def _drawn(rng: np.random.Generator, n_out: int, n_in: int, group: int) -> Quantised:
    nibbles = rng.integers(0, 256, (n_out, n_in // 2), np.uint8)
    scale = np.float16(0.2 / np.sqrt(n_in))
    return Quantised(nibbles, np.full((n_out, n_in // group), scale), group)


def _drawn_half(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """One row of noise, rolled: gigabytes of fresh random numbers would take minutes."""
    row = (rng.standard_normal(shape[1] + 1009) / np.sqrt(shape[1])).astype(np.float16)
    shifts = rng.integers(0, 1009, shape[0])
    windows = np.lib.stride_tricks.sliding_window_view(row, shape[1])
    return np.ascontiguousarray(windows[shifts])
