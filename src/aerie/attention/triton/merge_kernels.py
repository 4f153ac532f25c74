"""The end of attention on the device: parts that splits left, weighed and added up.

A part is a weighted mean of values and the base-2 logarithm of its sum of weights. Parts are
weighed by 2^(sum - max) and added in the order of the columns, so a result does not depend on
which program finished first.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from aerie.attention.triton.records import ROW_FIELDS, ROW_OF_UNIT, ROW_PARTIAL, ROW_SPLITS

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def final_factor(
    sink_logits: tl.tensor,
    head: tl.tensor,
    is_own: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    HAS_SINKS: tl.constexpr,
) -> tl.tensor:
    """What the weighted sum of values is multiplied with: one over the sum of weights."""
    if HAS_SINKS:
        # The sink takes its share of the probability and contributes no value.
        sink = tl.load(sink_logits + head, mask=is_own, other=0.0).to(tl.float32) * LOG2_E
        new_top = tl.maximum(top, sink)
        keep = tl.exp2(top - new_top)
        total = total * keep + tl.exp2(sink - new_top)
        factor = keep / total
    else:
        factor = 1.0 / or_one(total)
    return factor


@triton.jit
def finite(top: tl.tensor) -> tl.tensor:
    """The maximum; 0 for a row that has seen nothing yet, for -inf minus -inf is NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def or_one(total: tl.tensor) -> tl.tensor:
    """The sum of weights; 1 for a row that saw nothing, whose values and logarithm are then 0."""
    return tl.where(total > 0, total, 1.0)


@triton.jit
def merge_kernel(
    parts: tl.tensor,
    part_sums: tl.tensor,
    out: tl.tensor,
    row_parts: tl.tensor,
    sink_logits: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HEADS: tl.constexpr,
    N_HEADS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_S: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    IS_CHAINED: tl.constexpr,
) -> None:
    """One program a row and head.

    All parts are read at once. In a loop over eight at a time, 33 splits instead of 32, one more
    round of reads, took 1.5 µs more at 16 rows over 32K columns (H200, 2026-11, one run).
    """
    row = tl.program_id(0)
    head = tl.program_id(1)
    record = row_parts + row * ROW_FIELDS
    n_splits = tl.load(record + ROW_SPLITS)
    first = tl.load(record + ROW_PARTIAL)
    stacked = tl.load(record + ROW_OF_UNIT) * HEADS + head % HEADS
    if IS_CHAINED:
        # Before any return: a kernel behind this one must find the splits' kernel finished, too.
        gdc_wait()
        gdc_launch_dependents()  # the product behind may fetch its weights
    if n_splits <= 1:
        return
    dim = tl.arange(0, BLOCK_D)
    top = float("-inf")
    total = 0.0
    acc = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(0, n_splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        is_live = split < n_splits
        part = (first + split).to(tl.int64) * (N_HEADS // HEADS) + head // HEADS
        at_part = part * BLOCK_M + stacked
        sums = tl.load(part_sums + at_part, mask=is_live, other=float("-inf"))
        at_value = at_part[:, None] * BLOCK_D + dim[None, :]
        values = tl.load(parts + at_value, mask=is_live[:, None], other=0.0)
        new_top = tl.maximum(top, tl.max(sums, 0))
        base = finite(new_top)
        weights = tl.exp2(sums - base)
        keep = tl.exp2(top - base)
        total = total * keep + tl.sum(weights, 0)
        acc = acc * keep + tl.sum(weights[:, None] * values, 0)
        top = new_top
    factor = final_factor(sink_logits, head, head >= 0, top, total, HAS_SINKS)
    at_out = (row.to(tl.int64) * N_HEADS + head) * HEAD_DIM
    tl.store(out + at_out + dim, (acc * factor).to(out.dtype.element_ty), mask=dim < HEAD_DIM)
