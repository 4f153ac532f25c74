"""The small operations between products as one value, so that a device can bring faster ones.

The functions here are the definition: PyTorch, any device. `LoadOptions.ops` swaps the table.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from aerie.models.precision import widen
from aerie.models.routing import Routing, mix, route

Heads = tuple[Tensor, Tensor, Tensor]
Turn = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


def turn(positions: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Cosine and sine, times a factor, of half a head, which the other half shares.

    `positions` [rows] i64 and `frequencies` [dim / 2] f32 give [rows, 1, dim / 2] f32 each.
    """
    angles = positions.float()[:, None, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)


@dataclass(frozen=True)
class LayerOps:
    """How a layer's rows are normalised, gated, rotated and stored, routed and mixed.

    `turn` makes cosine and sine once a forward, laid out as `rotate_store` wants to have them.
    """

    normalise: Callable[[Tensor, Tensor, float], Tensor]
    add_normalise: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    gate: Callable[[Tensor, Tensor], Tensor]
    rotate_store: Callable[[Heads, tuple[Tensor, Tensor], Tensor, tuple[Tensor, Tensor]], Tensor]
    turn: Turn = turn
    route: Callable[[Tensor, int], Routing] = route
    mix: Callable[[Tensor, Tensor], Tensor] = mix


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Weight times x over the root mean square of its last axis, in float32, rounded once."""
    wide = widen(x)
    # In place where the tensor is our own: a small row is mostly the start of operations.
    scale = (wide * wide).mean(-1, keepdim=True).add_(eps).rsqrt_()
    return (wide * scale).mul_(weight).to(x.dtype)


def add_normalise(
    hidden: Tensor, added: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The residual stream after an addition, and its norm; never in place."""
    total = hidden + added
    return total, normalise(total, weight, eps)


def gate(gated: Tensor, up: Tensor) -> Tensor:
    """silu(gated) * up."""
    return functional.silu(gated).mul_(up)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [rows, heads, head_dim]; pairs are (i, i + head_dim / 2)."""
    # In float32 and rounded once: a bf16 cosine would cost as much as the whole product.
    first, second = widen(heads).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(
        heads.dtype
    )


def rotate_store(
    heads: Heads, rotation: tuple[Tensor, Tensor], slots: Tensor, stored: tuple[Tensor, Tensor]
) -> Tensor:
    """Rotate queries and keys, write keys and values to their slots, return the queries.

    `heads` [rows, heads, dim] each, `rotation` [rows, 1, dim / 2] f32 each, `stored` one layer of
    the pool's keys and values [slots, kv_heads, dim].
    """
    queries, keys, values = heads
    stored[0].index_copy_(0, slots, rotate(keys, *rotation))
    stored[1].index_copy_(0, slots, values)
    return rotate(queries, *rotation)


def _turn_signed(positions: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Both as wide as a head, the sine of its first half negated: [rows, 1, head_dim] f32."""
    cos, sin = turn(positions, frequencies, factor)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def _rotate_whole(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotate` by a signed cosine and sine: a head times one, its halves exchanged times the other.

    The same products and sums, hence the same bits, in half the operations.
    """
    wide = widen(heads)
    exchanged = wide.roll(wide.shape[-1] // 2, -1)
    return (wide * cos).add_(exchanged.mul_(sin)).to(heads.dtype)


def _rotate_whole_store(
    heads: Heads, rotation: tuple[Tensor, Tensor], slots: Tensor, stored: tuple[Tensor, Tensor]
) -> Tensor:
    """`rotate_store` with a signed rotation."""
    queries, keys, values = heads
    stored[0].index_copy_(0, slots, _rotate_whole(keys, *rotation))
    stored[1].index_copy_(0, slots, values)
    return _rotate_whole(queries, *rotation)


TORCH_OPS = LayerOps(normalise, add_normalise, gate, rotate_store)
CPU_OPS = LayerOps(normalise, add_normalise, gate, _rotate_whole_store, _turn_signed)


def fused_ops() -> LayerOps:
    """One launch per operation; needs triton, and a GPU unless Triton interprets."""
    # Late: a machine without a GPU may have no triton.
    fused = importlib.import_module("aerie.kernels.triton_gpu.fused")
    routed = importlib.import_module("aerie.kernels.triton_gpu.routing")

    def route_few(logits: Tensor, n_active: int) -> Routing:
        if logits.shape[0] > routed.MOST_ROWS:  # a prompt's rows: what takes long are its products
            return route(logits, n_active)
        order, starts, shares = routed.route(logits, n_active)
        return Routing(order, starts, shares, n_active)

    return LayerOps(
        fused.normalise,
        fused.add_normalise,
        fused.gate,
        fused.rotate_store,
        fused.turn,
        route=route_few,
        mix=routed.mix,
    )
