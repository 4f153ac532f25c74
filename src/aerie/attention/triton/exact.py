"""Triton attention whose bits depend on the row alone: `numerics="exact"` on a GPU.

What a row's result is made of is told in `exact_kernels`; here it is decided only which program
computes it, and that changes no bit: how many rows share a program, and whether the spans of a
text are folded by one program or by many and a merge. As everywhere, nothing reads the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from aerie.attention.contract import LayerAttention, Reach
from aerie.attention.rows import Rows
from aerie.attention.triton import exact_plan_kernels as planning
from aerie.attention.triton.backend import LOG2_E, geometry_of
from aerie.attention.triton.exact_kernels import exact_attend_kernel, exact_merge_kernel
from aerie.attention.triton.plan import Geometry, most_units, power_of_two, stacked_heads
from aerie.attention.triton.tiles import Tile, padded, shared_bytes, tile_key
from aerie.chips import record_of
from aerie.errors import UsageError

MOST_AT_ONCE = 16  # spans whose parts a merging program reads together
PLAN_WARPS = 4


# `block_n` is part of a result; the rest is not, where a test says so. Matrix units take 64 queries
# for four warps each: a row's sum over a block then has one order, whatever the height. float32
# runs on no matrix unit, and wants small tiles.
FEW = Tile(64, 64, 4, 4, 2)
MANY = Tile(128, 64, 8, 5, 1)
FLOAT32 = Tile(16, 32, 4, 1, 2)
FEW_ROWS = 16  # of a request: more of them would pass over a long text again
# Beyond so many positions a text is always split: one long request must not keep a batch waiting.
LONG = 8192


class Parts(NamedTuple):
    """What programs leave of the spans that they fold apart."""

    sums: Tensor  # [rows, spans, heads, padded head_dim] f32, values by their weights
    weights: Tensor  # [rows, spans, heads, 2] f32, maximum and sum


@dataclass(frozen=True, eq=False)
class ExactPlan:
    """What all layers of a forward share; tensors live on the device."""

    tile: Tile
    heads: int  # query heads stacked in one program
    is_split: bool  # whether every span is folded by a program of its own
    n_programs: int
    n_spans: int  # of the longest text there may be
    items: Tensor  # [items, ITEM_FIELDS] i32
    n_items: Tensor  # [1] i32
    turns: Iterator[Tensor]  # of every layer a counter [] i32 of the items taken
    row_parts: Tensor  # [rows, ROW_FIELDS] i32
    paths: Tensor  # [rows, PATH] i32, node of the tree at each depth; one row without a tree
    walks: Tensor  # [rows, WALK_FIELDS] i32, the rows in the order of paths; the same
    parts: Parts | None  # where spans are folded apart


@dataclass(frozen=True)
class ExactAttention:
    """A `PrepareAttention`; tiles may be given, for tests."""

    few: Tile = FEW
    many: Tile = MANY
    float32: Tile = FLOAT32

    def __call__(self, rows: Rows, reaches: Iterable[Reach]) -> PreparedExact:
        """Refuses windows: their blocks would not begin where plain decoding's do."""
        for reach in reaches:
            if reach.window is not None:
                raise UsageError(
                    "exact numerics on a GPU have no sliding windows"
                    f" (a layer sees {reach.window} positions): use numerics fast"
                )
        return PreparedExact(self, rows)

    def choose(self, rows: Rows, dtype: torch.dtype) -> Tile:
        """The tile of a batch's bounds."""
        if dtype == torch.float32:
            return self.float32
        is_tall = (rows.bounds.tile or rows.bounds.rows) > FEW_ROWS
        is_long = not rows.bounds.tree or rows.bounds.columns > LONG
        return self.many if is_tall and is_long else self.few


@dataclass(frozen=True, eq=False)
class PreparedExact:
    """An `Attend` over one batch; the plan is made on the first layer."""

    backend: ExactAttention
    rows: Rows
    plans: dict[Geometry, ExactPlan] = field(default_factory=dict)

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, layer: LayerAttention
    ) -> Tensor:
        """Attend; see `Attend`. The result of a row that no request owns is zero."""
        if layer.sink_logits is not None:
            raise UsageError("exact numerics on a GPU have no attention sinks: use numerics fast")
        geometry = geometry_of(queries, keys, values)
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        if self.rows.n_rows == 0:
            return out
        plan = self.plans.get(geometry)
        if plan is None:
            tile = self.backend.choose(self.rows, geometry.dtype)
            plan = self.plans[geometry] = make_exact_plan(self.rows, geometry, tile)
        _attend(plan, self.rows, (queries, keys, values, out), layer.scale, geometry)
        if plan.parts is not None:
            _merge(plan, plan.parts, out, geometry)
        return out


def make_exact_plan(rows: Rows, geometry: Geometry, tile: Tile) -> ExactPlan:
    """Launch the two planning kernels."""
    tile = _fitted(tile, rows, geometry)
    heads = stacked_heads(geometry.group, tile.block_m)
    head_blocks = geometry.n_heads // heads
    tile_rows = tile.block_m // heads
    n_units, device = most_units(rows, tile_rows), rows.tokens.device
    n_at_once = tile.per_processor * record_of(device).processors
    columns = rows.bounds.columns
    n_spans, has_tree = spans_of(columns), rows.bounds.tree > 0
    # Parts of many rows cost more than programs that are idle: few rows of a prompt are split.
    is_idle = n_units * head_blocks < (n_at_once if has_tree else n_at_once // 4)
    is_split = is_idle or (has_tree and columns > LONG)
    # Paths of a branching tree have the spans behind its root for themselves: two, by its depth.
    n_items = n_units * (n_spans if is_split else 1) + (2 * rows.n_rows if has_tree else 0)
    n_drawn = rows.n_rows if has_tree else 1
    integers = partial(torch.empty, dtype=torch.int32, device=device)
    floats = partial(torch.empty, dtype=torch.float32, device=device)
    shape = rows.n_rows, n_spans, geometry.n_heads
    width = padded(geometry.head_dim)
    units = integers((n_units, planning.UNIT_FIELDS.value))
    turns = integers(planning.MOST_LAYERS.value)
    plan = ExactPlan(
        tile,
        heads,
        is_split,
        min(n_items * head_blocks, max(n_at_once, 1)),
        n_spans,
        integers((n_items, planning.ITEM_FIELDS.value)),
        integers(1),
        iter(turns),
        integers((rows.n_rows, planning.ROW_FIELDS.value)),
        integers((n_drawn, planning.PATH.value)),
        integers((n_drawn, planning.WALK_FIELDS.value)),
        Parts(floats((*shape, width)), floats((*shape, 2))) if is_split or has_tree else None,
    )
    planning.exact_unit_kernel[(n_units,)](
        units,
        turns,
        plan.row_parts,
        plan.paths,
        plan.walks,
        rows.qo_indptr,
        rows.kv_indptr,
        rows.tree_start,
        rows.positions,
        rows.ancestor_bits,
        rows.n_requests,
        rows.n_rows,
        ROWS=tile_rows,
        BLOCK_ROWS=power_of_two(tile_rows),
        BLOCK_N=tile.block_n,
        BLOCK_REQUESTS=power_of_two(rows.n_requests + 1),
        HAS_TREE=has_tree,
        IS_SPLIT=is_split,
        num_warps=PLAN_WARPS,
    )
    planning.exact_item_kernel[(n_units,)](
        units,
        plan.walks,
        plan.items,
        plan.n_items,
        n_units,
        BLOCK_UNITS=power_of_two(n_units),
        BLOCK_N=tile.block_n,
        IS_SPLIT=is_split,
        num_warps=PLAN_WARPS,
    )
    return plan


def _fitted(tile: Tile, rows: Rows, geometry: Geometry) -> Tile:
    """The tile with as few stages as the device has room for, then as few queries."""
    device = record_of(rows.tokens.device)
    key = tile_key(
        queries=tile.block_m,
        columns=rows.bounds.columns,
        batch=rows.n_requests,
        head_dim=geometry.head_dim,
        dtype=geometry.dtype,
    )
    while (needed := shared_bytes(tile, key, device)) > device.shared_bytes:
        if tile.n_stages > 1:
            tile = replace(tile, n_stages=tile.n_stages - 1)
        elif tile.block_m > FEW.block_m:
            tile = replace(tile, block_m=tile.block_m // 2, n_warps=tile.n_warps // 2)
        else:
            raise UsageError(
                f"exact attention at a head dimension of {geometry.head_dim} needs {needed} bytes"
                f" of shared memory, this {device.architecture} has {device.shared_bytes}: use"
                " numerics fast"
            )
    return tile


def spans_of(columns: int) -> int:
    """Spans of a text of so many positions, at most."""
    near = int(planning.NEAR.value)
    n_near = -(-min(columns, near) // int(planning.NEAR_SPAN.value))
    return n_near - (-max(columns - near, 0) // int(planning.FAR_SPAN.value))


def _attend(
    plan: ExactPlan,
    rows: Rows,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    scale: float,
    geometry: Geometry,
) -> None:
    queries, keys, values, out = tensors
    tile, is_chained = plan.tile, record_of(out.device).overlaps
    exact_attend_kernel[(plan.n_programs,)](
        queries,
        keys,
        values,
        out,
        *((out, out) if plan.parts is None else plan.parts),
        plan.items,
        plan.n_items,
        next(plan.turns),
        plan.paths,
        plan.walks,
        rows.positions,
        rows.kv_indices,
        scale * LOG2_E,
        plan.n_spans,
        queries.stride(0),
        queries.stride(1),
        keys.stride(0),
        keys.stride(1),
        HEAD_DIM=geometry.head_dim,
        BLOCK_D=padded(geometry.head_dim),
        GROUP=geometry.group,
        HEADS=plan.heads,
        N_HEADS=geometry.n_heads,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        HAS_TREE=rows.bounds.tree > 0,
        IS_SPLIT=plan.is_split,
        IS_CHAINED=is_chained,
        num_warps=tile.n_warps,
        num_stages=tile.n_stages,
        enable_fp_fusion=False,
        launch_pdl=is_chained,
    )


def _merge(plan: ExactPlan, parts: Parts, out: Tensor, geometry: Geometry) -> None:
    is_chained = record_of(out.device).overlaps
    exact_merge_kernel[(out.shape[0], geometry.n_heads)](
        *parts,
        out,
        plan.row_parts,
        plan.n_spans,
        HEAD_DIM=geometry.head_dim,
        BLOCK_D=padded(geometry.head_dim),
        HEADS=1,
        N_HEADS=geometry.n_heads,
        AT_ONCE=min(power_of_two(plan.n_spans), MOST_AT_ONCE),
        IS_CHAINED=is_chained,
        num_warps=1,
        enable_fp_fusion=False,
        launch_pdl=is_chained,
    )
