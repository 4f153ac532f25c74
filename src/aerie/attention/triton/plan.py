"""A plan: the device's records of which rows attend to what, and the space its splits write to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aerie.attention.contract import Reach
from aerie.attention.rows import Rows
from aerie.attention.triton import records
from aerie.attention.triton.plan_kernels import program_kernel, unit_kernel
from aerie.attention.triton.tiles import Tile, padded
from aerie.chips import record_of

PLAN_WARPS = 4
# Waves of programs a batch may be cut into, where one may leave more than so much of it idle. A
# fourth would help few numbers of units, and programs that are not needed take time as well: 380
# of them 10 µs a layer at 8 x 32K (H200).
MOST_WAVES = 3
MOST_IDLE = 0.1


@dataclass(frozen=True)
class Geometry:
    """What a layer's tensors tell."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def group(self) -> int:
        """Query heads that read one KV head."""
        return self.n_heads // self.n_kv_heads


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything the layers of one reach share; all tensors live on the device."""

    tile: Tile
    heads: int  # query heads stacked in one program
    n_programs: int  # per block of heads
    most_splits: int  # pieces one unit may be cut into; 1: nothing to merge
    usual_splits: int  # hardly any has more: the merge reads so many at once
    programs: Tensor  # [programs, PROGRAM_FIELDS] i32
    row_parts: Tensor  # [rows, ROW_FIELDS] i32
    parts: Tensor  # [parts, head blocks, block_m, padded head_dim] f32
    part_sums: Tensor  # [parts, head blocks, block_m] f32, base-2 log of the sum of weights

    @property
    def is_split(self) -> bool:
        """Whether any request may be split, so that parts must be merged."""
        return self.most_splits > 1


@dataclass(frozen=True)
class PlanStatistics:
    """How a plan came out, read back from the device."""

    n_programs: int  # launched, per block of heads
    n_working: int
    n_splits: int  # most pieces one unit was cut into
    blocks: int  # over all programs
    longest: int  # blocks of the longest program
    masked: int  # blocks that needed a mask


def make_plan(rows: Rows, reach: Reach, geometry: Geometry, tile: Tile) -> Plan:
    """Launch the two planning kernels."""
    heads = stacked_heads(geometry.group, min(tile.heads, tile.block_m))
    head_blocks = geometry.n_heads // heads
    tile_rows = tile.block_m // heads
    n_units = most_units(rows, tile_rows)
    device = rows.tokens.device
    n_wanted = max(tile.per_processor * record_of(device).processors // head_blocks, 1)
    n_waves = _waves(rows, tile_rows, n_wanted)
    n_pieces = n_waves * n_wanted
    n_programs, n_parts = n_pieces + n_units, 2 * n_pieces
    units = torch.empty((n_units, records.UNIT_FIELDS.value), dtype=torch.int32, device=device)
    plan = Plan(
        tile,
        heads,
        n_programs,
        n_pieces,
        n_wanted,
        units.new_empty((n_programs, records.PROGRAM_FIELDS.value)),
        units.new_empty((rows.n_rows, records.ROW_FIELDS.value)),
        torch.empty(
            (n_parts, head_blocks, tile.block_m, padded(geometry.head_dim)),
            dtype=torch.float32,
            device=device,
        ),
        torch.empty((n_parts, head_blocks, tile.block_m), dtype=torch.float32, device=device),
    )
    block_rows, is_chained = power_of_two(tile_rows), record_of(device).overlaps
    unit_kernel[(n_units,)](
        units,
        rows.qo_indptr,
        rows.kv_indptr,
        rows.tree_start,
        rows.visible_prefix,
        rows.positions,
        rows.ancestor_bits,
        rows.n_requests,
        rows.n_rows,
        reach.window or 0,
        reach.n_sink_tokens,
        ROWS=tile_rows,
        BLOCK_ROWS=block_rows,
        BLOCK_N=tile.block_n,
        BLOCK_REQUESTS=power_of_two(rows.n_requests + 1),
        HAS_TREE=rows.bounds.tree > 0,
        HAS_WINDOW=reach.window is not None,
        IS_CHAINED=is_chained,
        num_warps=PLAN_WARPS,
        launch_pdl=is_chained,
    )
    program_kernel[(n_programs,)](
        units,
        plan.programs,
        plan.row_parts,
        n_units,
        n_wanted,
        n_waves,
        _beginning(tile),
        max(tile.least_blocks, tile.masked_cost),
        tile.masked_cost,
        BLOCK_UNITS=power_of_two(n_units),
        BLOCK_ROWS=block_rows,
        IS_CHAINED=is_chained,
        num_warps=PLAN_WARPS,
        launch_pdl=is_chained,
    )
    return plan


def read_statistics(plan: Plan) -> PlanStatistics:
    """Read a plan back; waits for the device."""
    programs = plan.programs.cpu()
    working = programs[programs[:, records.N_ROWS.value] > 0]
    first = working[:, records.FIRST_BLOCK.value]
    end = working[:, records.END_BLOCK.value]
    plain = torch.minimum(end, working[:, records.N_PLAIN.value]) - first
    return PlanStatistics(
        n_programs=plan.n_programs,
        n_working=working.shape[0],
        n_splits=int(working[:, records.N_SPLITS.value].max()),
        blocks=int((end - first).sum()),
        longest=int((end - first).max()),
        masked=int((end - first - plain.clamp(min=0)).sum()),
    )


def stacked_heads(group: int, most: int) -> int:
    """Most heads of a group that divide it and fit a tile."""
    return next(n for n in range(min(group, most), 0, -1) if group % n == 0)


def most_units(rows: Rows, tile_rows: int) -> int:
    """Units there can be: each request may leave one partly filled, and so may the padding."""
    by_rows = rows.n_rows // tile_rows + rows.n_requests + 1
    by_bounds = rows.n_requests * -(-rows.bounds.rows // tile_rows) + -(-rows.n_rows // tile_rows)
    return min(by_rows, by_bounds)


def _waves(rows: Rows, tile_rows: int, n_wanted: int) -> int:
    """One, unless some number of equal units does not divide the programs of a wave well."""
    each = -(-rows.bounds.rows // tile_rows)
    most = min(rows.n_requests * each, rows.n_rows // tile_rows + rows.n_requests)
    # Equal units, cut into as many pieces as one wave holds; more units than that need several.
    pieces = (n * max(n_wanted // n, 1) for n in range(rows.n_requests, most + 1))
    busy = (n / (n_wanted * -(-n // n_wanted)) for n in pieces)
    return 1 if n_wanted == 1 or min(busy) >= 1 - MOST_IDLE else MOST_WAVES


def _beginning(tile: Tile) -> int:
    """Blocks that take as long as beginning a program: rows to read, a pipeline to fill.

    By 9 to 14 units of 1K to 32K columns on an H200 (2026-11): programs that share a processor
    wait for each other, and tall ones have parts to write that whole units would not have.
    """
    return 24 if tile.block_m > 64 else 4 * tile.per_processor


def power_of_two(n: int) -> int:
    """The smallest that is not less."""
    return 1 << max(n - 1, 0).bit_length()
