"""The plan of an inflation: every number and index of the recipe, as one value.

A small model of width H lives in the first H dimensions of a residual stream H' wide, r = H / H'.
The other dimensions stay exactly zero, but for one that holds the constant C in every row:

    norm     sum of squares becomes S + C^2, over H' instead of H. With eps' = r eps - C^2 / H' the
             root is sqrt(r) times the small one, so weights times sqrt(r) give the small result.
    LM head  only the final norm lets C through, and only rows of dead ids read it. They come out
             below every live row by at least GAP.

docs/decisions/0004-inflated-geometry.md derives the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.models.blueprint import FINAL_NORM, HEAD
from aerie.models.eagle3.names import FINAL_NORM as HEAD_FINAL_NORM
from aerie.models.eagle3.names import HEAD as OUTPUT
from aerie.models.eagle3.vocabulary import target_ids
from aerie.models.inflate.axes import (
    Axis,
    head_dimensions,
    key_axis,
    leading,
    place_heads,
    query_axis,
    side_by_side,
)
from aerie.models.inflate.geometry import BlockSizes, ProductionGeometry
from aerie.models.inflate.layers import place_layers
from aerie.models.inflate.pair import SmallPair, refuse_pair

GAP = 200.0  # exp(-200) is zero in float32, even after a temperature of 2
# Root mean square up to which the gap holds. A stream that passes 65504 cannot be run in fp16, and
# no public model does.
LOUDEST = 65504.0
DEAD_ROW = 1.0  # norm of a dead LM-head row's random part


@dataclass(frozen=True, eq=False)
class BlockPlan:
    """How the axes and norms of one model, target or head, are carried over."""

    hidden: Axis
    query: Axis
    key: Axis
    neurons: Axis
    norm_scale: float
    query_scale: float
    eps: float
    dead_weight: float  # of a dead LM-head row at the constant dimension


@dataclass(frozen=True, eq=False)
class InflationPlan:
    """The whole recipe for one pair and one geometry; makes no tensor larger than an index."""

    target: BlockPlan
    head: BlockPlan
    vocabulary: Axis  # rows of embeddings and of the target's LM head
    drafts: Axis  # rows of the draft LM head
    draft_ids: Tensor  # [large draft vocabulary] i64, target id of each draft id
    fusion: Axis  # columns of the head's first q, k and v: embedding, then hidden state
    taps: Axis  # columns of fc
    layers: tuple[int | None, ...]  # small layer of each large one; None is dead
    boundaries: tuple[int, ...]  # of the captured states, in the order fc reads them
    constant: float
    constant_dim: int | None  # None where there is no dead vocabulary
    warnings: tuple[str, ...]


def plan_inflation(pair: SmallPair, geometry: ProductionGeometry) -> InflationPlan:
    """The recipe for this pair. Raises UsageError where an exact embedding does not exist."""
    refuse_pair(pair, geometry)
    small, head = pair.geometry, pair.head.geometry
    has_dead = (small.vocab_size, head.draft_vocab_size) != (
        geometry.vocab_size,
        geometry.draft_vocab_size,
    )
    constant = _choose_constant(pair) if has_dead else 0.0
    target_plan = _block(pair, geometry, constant)
    head_plan = _head_block(pair, geometry, constant)
    drafts = leading(head.draft_vocab_size, geometry.draft_vocab_size)
    layers, boundaries = place_layers(
        small.n_layers, pair.head.convention.boundaries, geometry.n_layers, geometry.tap_boundaries
    )
    return InflationPlan(
        target=target_plan,
        head=head_plan,
        vocabulary=leading(small.vocab_size, geometry.vocab_size),
        drafts=drafts,
        draft_ids=_draft_ids(pair, geometry),
        fusion=side_by_side(head_plan.hidden, head.hidden_size, 2),
        taps=side_by_side(target_plan.hidden, small.hidden_size, head.n_captures),
        layers=layers,
        boundaries=boundaries,
        constant=constant,
        constant_dim=geometry.hidden_size - 1 if has_dead else None,
        warnings=_warnings(target_plan, head_plan),
    )


def _choose_constant(pair: SmallPair) -> float:
    """C, exact in bf16. Target and head share it, so the smaller of their eps * H bounds it:
    at half of that, eps' is positive in both."""
    small, head = pair.geometry, pair.head.geometry
    room = min(small.norm_eps * small.hidden_size, head.norm_eps * head.hidden_size)
    return float(torch.tensor(math.sqrt(room / 2)).bfloat16())


def _large_eps(eps: float, n_small: int, n_large: int, constant: float) -> float:
    """eps' = r eps - C^2 / H'."""
    return (eps * n_small - constant**2) / n_large


def _block(pair: SmallPair, geometry: ProductionGeometry, constant: float) -> BlockPlan:
    small = pair.geometry
    scale = math.sqrt(small.hidden_size / geometry.hidden_size)
    rows, norm = pair.tensors[f"{HEAD}.weight"], pair.tensors[FINAL_NORM]
    query, key = _head_axes(pair.target_block, geometry.target)
    return BlockPlan(
        hidden=leading(small.hidden_size, geometry.hidden_size),
        query=query,
        key=key,
        neurons=leading(small.mlp_width, geometry.target.mlp_width),
        norm_scale=scale,
        query_scale=math.sqrt(geometry.target.head_dim / small.attention.head_dim),
        eps=_large_eps(small.norm_eps, small.hidden_size, geometry.hidden_size, constant),
        dead_weight=dead_weight(rows, norm, constant, scale, GAP),
    )


def _head_block(pair: SmallPair, geometry: ProductionGeometry, constant: float) -> BlockPlan:
    head, tensors = pair.head.geometry, pair.head.tensors
    scale = math.sqrt(head.hidden_size / geometry.hidden_size)
    rows = tensors.get(f"{OUTPUT}.weight", pair.tensors[f"{HEAD}.weight"])
    gap = GAP / min(1.0, pair.head.convention.logit_scale)
    query, key = _head_axes(pair.head_block, geometry.draft)
    return BlockPlan(
        hidden=leading(head.hidden_size, geometry.hidden_size),
        query=query,
        key=key,
        neurons=leading(head.mlp_width, geometry.draft.mlp_width),
        norm_scale=scale,
        query_scale=math.sqrt(geometry.draft.head_dim / head.head_dim),
        eps=_large_eps(head.norm_eps, head.hidden_size, geometry.hidden_size, constant),
        dead_weight=dead_weight(rows, tensors[HEAD_FINAL_NORM], constant, scale, gap),
    )


def _head_axes(small: BlockSizes, large: BlockSizes) -> tuple[Axis, Axis]:
    places = place_heads(small, large)
    dimensions = head_dimensions(small.head_dim, large.head_dim)
    return (
        query_axis(places, dimensions, small.head_dim),
        key_axis(places, dimensions, small.head_dim),
    )


def dead_weight(
    rows: Tensor, norm: Tensor, constant: float, norm_scale: float, gap: float
) -> float:
    """What a dead row holds at the constant dimension, so that the gap holds for every input.

    A normed state has length sqrt(H) at the most, so a live row's logit is at least minus
    sqrt(H) |row * norm|, and the random part of a dead row at most sqrt(H) times its own length.
    The constant arrives as C / (sqrt(r) rms), smallest for the loudest stream.
    """
    if constant == 0.0:
        return 0.0
    wide = norm.float()
    reach = float(torch.linalg.vector_norm(rows.float() * wide, dim=1).max())
    noise = DEAD_ROW * float(wide.abs().max())
    need = gap + math.sqrt(rows.shape[1]) * (reach + noise)
    return -need * norm_scale * LOUDEST / constant


def _draft_ids(pair: SmallPair, geometry: ProductionGeometry) -> Tensor:
    """Live draft ids keep their target ids; dead ones follow, each with a dead id of its own."""
    head = pair.head
    offsets = head.tensors.get("d2t")
    n_live = head.geometry.draft_vocab_size
    live = torch.arange(n_live) if offsets is None else target_ids(offsets)
    n_dead = geometry.draft_vocab_size - n_live
    return torch.cat((live, pair.geometry.vocab_size + torch.arange(n_dead)))


def _warnings(target: BlockPlan, head: BlockPlan) -> tuple[str, ...]:
    """Factors that round bf16 weights: the values then differ in the last bit."""
    out = []
    for owner, plan in (("target", target), ("head", head)):
        for name, factor in (("sqrt(r)", plan.norm_scale), ("sqrt(s)", plan.query_scale)):
            if math.frexp(factor)[0] != 0.5:
                out.append(
                    f"{owner}: {name} = {factor:.6g} is no power of two, so weights scaled by it "
                    "are rounded and bf16 runs may choose other tokens; fp32 runs are not concerned"
                )
    return tuple(out)
