"""Triton as an attention backend: choose a tile, plan on the device, launch.

Nothing here reads the device: grids come from `rows.bounds` and tensor shapes, lengths are read by
the planning kernels, programs without work return at once. So a forward can be captured in a
CUDA graph with its bucket's bounds and replayed with other lengths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from aerie.attention.contract import LayerAttention, Reach
from aerie.attention.rows import Rows
from aerie.attention.triton.attend_kernels import attend_kernel
from aerie.attention.triton.merge_kernels import merge_kernel
from aerie.attention.triton.plan import Geometry, Plan, PlanStatistics, make_plan, read_statistics
from aerie.attention.triton.tiles import Tile, TileKey, TileTable, padded, tile_key
from aerie.chips import record_of
from aerie.errors import UsageError

LOG2_E = 1.4426950408889634
# Offsets inside one layer of the pool are 32-bit: wider ones cost registers in the inner loop.
MOST_ELEMENTS = 2**31 - 1
MOST_AT_ONCE = 64  # parts a merging program reads at once


@dataclass(frozen=True)
class TritonOptions:
    """What a caller may decide; the defaults are what an engine wants."""

    # More than 1: slots of a run of so many columns, from each multiple of it, follow each other,
    # and one of them is read. Right for pages of that size, and slower: 93.9 against 90.9 µs at 64
    # rows over 32K columns (H200, 2026-11), for consecutive reads of all slots are wider.
    page_size: int = 1
    # Refuse shapes the sweep did not tune, instead of using the nearest tile and counting it.
    perf_mode: bool = False


@dataclass(frozen=True, eq=False)
class TritonAttention:
    """A `PrepareAttention`; `misses` counts the keys that no tuned tile was found for."""

    tiles: TileTable
    options: TritonOptions = TritonOptions()
    misses: Counter[TileKey] = field(default_factory=Counter)

    def __call__(self, rows: Rows, reaches: Iterable[Reach]) -> PreparedAttention:
        """Plans are made on the first layer of each reach, when heads and dtype are known."""
        return PreparedAttention(self, rows, frozenset(reaches))

    def choose(self, rows: Rows, reach: Reach, geometry: Geometry) -> Tile:
        """The tile for a batch's bounds."""
        key = tile_key(
            queries=(rows.bounds.tile or rows.bounds.rows) * geometry.group,
            columns=_columns(rows, reach),
            batch=rows.n_requests,
            head_dim=geometry.head_dim,
            dtype=geometry.dtype,
        )
        choice = self.tiles.choose(key, record_of(rows.tokens.device))
        if not choice.is_tuned:
            if self.options.perf_mode:
                raise UsageError(
                    f"no tuned attention tile for {key} and perf_mode is on; run "
                    "scripts/gpu_attention.sh on this device, or turn perf_mode off"
                )
            self.misses[key] += 1
        return choice.tile


@dataclass(frozen=True, eq=False)
class PreparedAttention:
    """An `Attend` over one batch. Plans are kept, so layers after the first launch two kernels."""

    backend: TritonAttention
    rows: Rows
    reaches: frozenset[Reach]
    plans: dict[tuple[Reach, Geometry], Plan] = field(default_factory=dict)

    def __call__(
        self, queries: Tensor, keys: Tensor, values: Tensor, layer: LayerAttention
    ) -> Tensor:
        """Attend; see `Attend`. The result of a row that no request owns is zero."""
        geometry = geometry_of(queries, keys, values)
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        if self.rows.n_rows == 0:
            return out
        plan = self._plan(layer.reach, geometry)
        work = _Layer(queries, keys, values, out, layer)
        _attend(plan, self.rows, work, geometry, self.backend.options.page_size)
        if plan.is_split:
            _merge(plan, work, geometry)
        return out

    def statistics(self) -> dict[Reach, PlanStatistics]:
        """How the work of each reach was cut. Waits for the device: not for a serving loop."""
        return {reach: read_statistics(plan) for (reach, _), plan in self.plans.items()}

    def _plan(self, reach: Reach, geometry: Geometry) -> Plan:
        if reach not in self.reaches:
            raise UsageError(f"{reach} was not among the reaches this batch was prepared for")
        found = self.plans.get((reach, geometry))
        if found is None:
            tile = self.backend.choose(self.rows, reach, geometry)
            found = make_plan(self.rows, reach, geometry, tile)
            self.plans[reach, geometry] = found
        return found


@dataclass(frozen=True, eq=False)
class _Layer:
    """One layer's tensors and rule, as the kernels want them."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    out: Tensor
    rule: LayerAttention

    @property
    def sink_logits(self) -> Tensor:
        """Some tensor must be passed even where no logit is read."""
        return self.queries if self.rule.sink_logits is None else self.rule.sink_logits


def _attend(plan: Plan, rows: Rows, layer: _Layer, geometry: Geometry, page_size: int) -> None:
    tile, reach = plan.tile, layer.rule.reach
    # A program's heads follow each other: programs without work then come last of all, and hold
    # up no other's (chain of 7 at 8 x 1K on an H200: 19.3 instead of 21.2 µs a layer).
    attend_kernel[(plan.n_programs * (geometry.n_heads // plan.heads),)](
        layer.queries,
        layer.keys,
        layer.values,
        layer.out,
        plan.parts,
        plan.part_sums,
        plan.programs,
        rows.visible_prefix,
        rows.positions,
        rows.ancestor_bits,
        rows.kv_indices,
        rows.column_positions,
        layer.sink_logits,
        layer.rule.scale * LOG2_E,
        reach.window or 0,
        reach.n_sink_tokens,
        layer.queries.stride(0),
        layer.queries.stride(1),
        layer.keys.stride(0),
        layer.keys.stride(1),
        HEAD_DIM=geometry.head_dim,
        BLOCK_D=padded(geometry.head_dim),
        GROUP=geometry.group,
        HEADS=plan.heads,
        N_HEADS=geometry.n_heads,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        PAGE=page_size,
        HAS_TREE=rows.bounds.tree > 0,
        HAS_WINDOW=reach.window is not None,
        HAS_SINKS=layer.rule.sink_logits is not None,
        IS_CHAINED=_is_chained(plan),
        IS_OVERLAPPED=_is_chained(plan) and tile.is_overlapped,
        num_warps=tile.n_warps,
        num_stages=tile.n_stages,
        launch_pdl=_is_chained(plan),
    )


def _merge(plan: Plan, layer: _Layer, geometry: Geometry) -> None:
    at_once = min(plan.usual_splits, MOST_AT_ONCE)
    merge_kernel[(layer.out.shape[0], geometry.n_heads)](
        plan.parts,
        plan.part_sums,
        layer.out,
        plan.row_parts,
        layer.sink_logits,
        HEAD_DIM=geometry.head_dim,
        BLOCK_D=padded(geometry.head_dim),
        HEADS=plan.heads,
        N_HEADS=geometry.n_heads,
        BLOCK_M=plan.tile.block_m,
        BLOCK_S=padded(at_once),
        HAS_SINKS=layer.rule.sink_logits is not None,
        IS_CHAINED=_is_chained(plan),
        num_warps=2 if at_once <= 16 else 4,
        launch_pdl=_is_chained(plan),
    )


def _is_chained(plan: Plan) -> bool:
    """Whether its kernels wait for the one before inside, not before they are launched."""
    return record_of(plan.parts.device).overlaps


def geometry_of(queries: Tensor, keys: Tensor, values: Tensor) -> Geometry:
    """Check what the kernels take for granted."""
    if keys.shape != values.shape or keys.stride() != values.stride():
        raise UsageError("keys and values must be two layers of equal shape and strides")
    if queries.stride(2) != 1 or keys.stride(2) != 1:
        raise UsageError("head dimensions must be contiguous in queries, keys and values")
    if not queries.dtype == keys.dtype == values.dtype:
        raise UsageError(f"queries are {queries.dtype}, keys {keys.dtype}, values {values.dtype}")
    n_heads, n_kv_heads = queries.shape[1], keys.shape[1]
    if n_heads % n_kv_heads:
        raise UsageError(f"{n_heads} query heads are not a multiple of {n_kv_heads} KV heads")
    if keys.shape[0] * keys.stride(0) > MOST_ELEMENTS:
        raise UsageError(
            f"a layer of {keys.shape[0]} slots holds {keys.shape[0] * keys.stride(0)} elements, "
            f"the kernels address {MOST_ELEMENTS}; use fewer slots"
        )
    return Geometry(n_heads, n_kv_heads, queries.shape[2], queries.dtype)


def _columns(rows: Rows, reach: Reach) -> int:
    """Columns a row looks at: a window hides the rest."""
    if reach.window is None:
        return rows.bounds.columns
    return min(rows.bounds.columns, reach.window + reach.n_sink_tokens + rows.bounds.tree)
