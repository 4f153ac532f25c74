"""Planning on the device: which rows share a program, and which columns each program walks.

Runs once a forward, for all its layers. The host knows only bounds; every true length is read
here, so a captured graph adapts to the lengths of each replay.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from aerie.attention.triton.records import (
    EDGE_START,
    END,
    END_BLOCK,
    FIRST_BLOCK,
    FIRST_COLUMN,
    FIRST_ROW,
    N_BLOCKS,
    N_EDGE,
    N_PLAIN,
    N_ROWS,
    N_SINKS,
    N_SPLITS,
    PARTIAL,
    PLAIN_END,
    PLAIN_START,
    PROGRAM_FIELDS,
    ROW_FIELDS,
    ROW_OF_UNIT,
    ROW_PARTIAL,
    ROW_SPLITS,
    SINKS_END,
    TREE_START,
    UNIT_FIELDS,
)

FAR = tl.constexpr(2147483647)
EVENING_STEPS = tl.constexpr(8)


@triton.jit
def rows_of_unit(
    unit: tl.tensor,
    qo_indptr: tl.tensor,
    n_requests: tl.tensor,
    n_rows: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_REQUESTS: tl.constexpr,
) -> tl.tensor:
    """(request, first row, rows) of a unit; no rows for a unit behind the last.

    Rows behind the last request (a bucket's padding) form one more request without columns.
    """
    request = tl.arange(0, BLOCK_REQUESTS)
    first = tl.load(qo_indptr + request, mask=request <= n_requests, other=n_rows)
    last = tl.load(qo_indptr + request + 1, mask=request < n_requests, other=n_rows)
    n_units = (last - first + ROWS - 1) // ROWS
    ends = tl.cumsum(n_units, 0)
    before = ends <= unit
    owner = tl.sum(before.to(tl.int32), 0)
    is_owner = request == owner
    # Last rows first: among causal rows they see most, and the longest work should start first.
    from_end = tl.sum(tl.where(before, n_units, 0), 0) + tl.sum(tl.where(is_owner, n_units, 0), 0)
    first_row = tl.sum(tl.where(is_owner, first, 0), 0) + (from_end - 1 - unit) * ROWS
    n_own = tl.minimum(tl.sum(tl.where(is_owner, last, 0), 0) - first_row, ROWS)
    return owner, first_row, tl.where(unit < tl.sum(n_units, 0), n_own, 0)


# Sizes that change from batch to batch must not each compile a kernel of their own.
@triton.jit(do_not_specialize=["n_requests", "n_rows", "window", "n_sink_tokens"])
def unit_kernel(
    units: tl.tensor,
    qo_indptr: tl.tensor,
    kv_indptr: tl.tensor,
    tree_start: tl.tensor,
    visible_prefix: tl.tensor,
    positions: tl.tensor,
    ancestor_bits: tl.tensor,
    n_requests: tl.tensor,
    n_rows: tl.tensor,
    window: tl.tensor,
    n_sink_tokens: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_REQUESTS: tl.constexpr,
    HAS_TREE: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    IS_CHAINED: tl.constexpr,
) -> None:
    """One program a unit: find its rows, then the ranges of columns they may see."""
    if IS_CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    unit = tl.program_id(0)
    record = units + unit * UNIT_FIELDS
    owner, first_row, n_own = rows_of_unit(
        unit, qo_indptr, n_requests, n_rows, ROWS, BLOCK_REQUESTS
    )
    if n_own == 0:
        tl.store(record + N_ROWS, 0)
        tl.store(record + N_BLOCKS, 0)
        return

    has_columns = owner < n_requests
    first_column = tl.load(kv_indptr + owner, mask=has_columns, other=0)
    n_columns = tl.load(kv_indptr + owner + 1, mask=has_columns, other=0) - first_column
    n_columns = tl.maximum(n_columns, 0)
    tree = tl.load(tree_start + owner, mask=has_columns, other=0)

    offset = tl.arange(0, BLOCK_ROWS)
    is_own = (offset < n_own) & has_columns
    row = first_row + offset
    prefix = tl.load(visible_prefix + row, mask=is_own, other=0)
    plain_end = tl.min(tl.where(is_own, prefix, FAR), 0)
    end = tl.minimum(tl.max(tl.where(is_own, prefix, 0), 0), n_columns)
    edge_start = end
    if HAS_TREE:
        words = row[:, None] * 4 + tl.arange(0, 4)[None, :]
        bits = tl.load(ancestor_bits + words, mask=is_own[:, None], other=0)
        if tl.sum((bits != 0).to(tl.int32)) > 0:
            end = tl.maximum(end, tl.minimum(n_columns, tree + 128))
            # The whole tree stays in: its columns' positions are not their indices.
            edge_start = tl.minimum(edge_start, tree)
    plain_end = tl.minimum(plain_end, end) // BLOCK_N * BLOCK_N

    plain_start = 0
    sinks_end = 0
    if HAS_WINDOW:
        position = tl.load(positions + row, mask=is_own, other=0).to(tl.int32)
        oldest = tl.min(tl.where(is_own, position, FAR), 0) - window + 1
        newest = tl.max(tl.where(is_own, position, 0), 0) - window + 1
        edge_start = tl.minimum(edge_start, tl.maximum(oldest, 0)) // BLOCK_N * BLOCK_N
        plain_start = (tl.maximum(newest, 0) + BLOCK_N - 1) // BLOCK_N * BLOCK_N
        if plain_end <= plain_start:
            plain_start = edge_start
            plain_end = edge_start
        sinks_end = tl.minimum(n_sink_tokens, edge_start)
    else:
        edge_start = 0

    n_plain = (plain_end - plain_start) // BLOCK_N
    n_sinks = (sinks_end + BLOCK_N - 1) // BLOCK_N
    n_edge = (plain_start - edge_start) // BLOCK_N
    n_rest = (tl.maximum(end - plain_end, 0) + BLOCK_N - 1) // BLOCK_N
    tl.store(record + FIRST_ROW, first_row)
    tl.store(record + N_ROWS, n_own)
    tl.store(record + FIRST_COLUMN, first_column)
    tl.store(record + TREE_START, tree)
    tl.store(record + N_BLOCKS, n_plain + n_sinks + n_edge + n_rest)
    tl.store(record + N_PLAIN, n_plain)
    tl.store(record + N_SINKS, n_sinks)
    tl.store(record + N_EDGE, n_edge)
    tl.store(record + PLAIN_START, plain_start)
    tl.store(record + PLAIN_END, plain_end)
    tl.store(record + SINKS_END, sinks_end)
    tl.store(record + EDGE_START, edge_start)
    tl.store(record + END, end)


@triton.jit(
    do_not_specialize=[
        "n_units",
        "n_wanted",
        "n_waves",
        "beginning",
        "n_least",
        "masked_cost",
    ]
)
def program_kernel(
    units: tl.tensor,
    programs: tl.tensor,
    row_parts: tl.tensor,
    n_units: tl.tensor,
    n_wanted: tl.tensor,
    n_waves: tl.tensor,
    beginning: tl.tensor,
    n_least: tl.tensor,
    masked_cost: tl.tensor,
    BLOCK_UNITS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    IS_CHAINED: tl.constexpr,
) -> None:
    """One program an attention program: which unit, which of its blocks, where its part goes.

    Aims at `n_wanted` pieces of equal length over the whole batch, `n_least` blocks or more, or at
    so many in each of up to `n_waves` waves, where that is over earlier; to begin a program takes
    as long as `beginning` blocks.
    """
    if IS_CHAINED:
        gdc_wait()
        gdc_launch_dependents()
    program = tl.program_id(0)
    record = programs + program * PROGRAM_FIELDS
    unit = tl.arange(0, BLOCK_UNITS)
    is_unit = unit < n_units
    n_blocks = tl.load(units + unit * UNIT_FIELDS + N_BLOCKS, mask=is_unit, other=0)
    n_rows = tl.load(units + unit * UNIT_FIELDS + N_ROWS, mask=is_unit, other=0)
    n_plain = tl.load(units + unit * UNIT_FIELDS + N_PLAIN, mask=is_unit & (n_rows > 0), other=0)
    cost = n_plain + (n_blocks - n_plain) * masked_cost
    # 9 equal units on 16 programs: one piece each, as long as a unit; three each in two waves
    # are over after two thirds of that.
    piece = n_least
    earliest = FAR
    for wave in range(1, n_waves + 1):
        finer = _even_piece(cost, wave * n_wanted, n_least)
        pieces = tl.maximum((cost + finer - 1) // finer, 1)
        n_needed = (tl.sum(tl.where(cost > 0, pieces, 0), 0) + n_wanted - 1) // n_wanted
        ready = n_needed * (tl.max((cost + pieces - 1) // pieces, 0) + beginning)
        piece = tl.where(ready < earliest, finer, piece)
        earliest = tl.minimum(ready, earliest)
    splits = tl.where(n_rows > 0, tl.maximum((cost + piece - 1) // piece, 1), 0)
    ends = tl.cumsum(splits, 0)
    before = ends <= program
    owner = tl.sum(before.to(tl.int32), 0)
    if program >= tl.sum(splits, 0):
        tl.store(record + N_ROWS, 0)
        return

    is_owner = unit == owner
    index = program - tl.sum(tl.where(before, splits, 0), 0)
    own_splits = tl.sum(tl.where(is_owner, splits, 0), 0)
    own_cost = tl.sum(tl.where(is_owner, cost, 0), 0)
    own_plain = tl.sum(tl.where(is_owner, n_plain, 0), 0)
    partial = tl.sum(tl.where((unit < owner) & (splits > 1), splits, 0), 0)
    first_block = _block_at(index * own_cost // own_splits, own_plain, masked_cost)
    end_block = _block_at((index + 1) * own_cost // own_splits, own_plain, masked_cost)

    field = tl.arange(0, UNIT_FIELDS)
    tl.store(record + field, tl.load(units + owner * UNIT_FIELDS + field))
    tl.store(record + FIRST_BLOCK, first_block)
    tl.store(record + END_BLOCK, end_block)
    tl.store(record + N_SPLITS, own_splits)
    tl.store(record + PARTIAL, partial + index)
    if index == 0:
        first_row = tl.load(units + owner * UNIT_FIELDS + FIRST_ROW)
        offset = tl.arange(0, BLOCK_ROWS)
        is_own = offset < tl.sum(tl.where(is_owner, n_rows, 0), 0)
        own = row_parts + (first_row + offset) * ROW_FIELDS
        tl.store(own + ROW_PARTIAL, partial + tl.zeros_like(offset), mask=is_own)
        tl.store(own + ROW_SPLITS, own_splits + tl.zeros_like(offset), mask=is_own)
        tl.store(own + ROW_OF_UNIT, offset, mask=is_own)


@triton.jit
def _even_piece(cost: tl.tensor, n_wanted: tl.tensor, n_least: tl.tensor) -> tl.tensor:
    """Cost of the pieces that units are cut into, so that not many more than wanted come of it."""
    piece = tl.maximum((tl.sum(cost, 0) + n_wanted - 1) // n_wanted, n_least)
    # Rounding up per unit may ask for more programs than run at once; a second wave of a
    # few would double the time, so the pieces grow until all fit.
    most = tl.maximum(tl.sum((cost > 0).to(tl.int32), 0), n_wanted)
    for _ in range(EVENING_STEPS):
        n_pieces = tl.sum((cost + piece - 1) // piece, 0)
        grown = (piece * n_pieces + most - 1) // most
        piece = tl.where(n_pieces > most, grown, piece)
    return piece


@triton.jit
def _block_at(cost: tl.tensor, n_plain: tl.tensor, masked_cost: tl.tensor) -> tl.tensor:
    """The first block that begins at or behind a cost; blocks with a mask come last."""
    behind = tl.maximum(cost - n_plain, 0)
    return tl.minimum(cost, n_plain) + (behind + masked_cost - 1) // masked_cost
