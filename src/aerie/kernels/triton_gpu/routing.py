"""Routing of few rows to experts in one launch, and the sum of what came back in another.

Every function computes what its definition in `models.routing` does; of experts with equal logits
the lower one is chosen.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.triton_gpu.launch import block
from aerie.kernels.triton_gpu.overlap import overlapped, take_turn

MOST_ROWS = 64  # of one program; more are the library's
MIX_BLOCK = 1024
LEAST = tl.constexpr(-(2**31))


@triton.jit
def _in_order(x):
    """Floats as integers in the same order, NaN too, all above `LEAST`."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.maximum(tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits), LEAST + 1)


@triton.jit(do_not_specialize=("n_rows", "n_experts"))
def _route_kernel(
    logits, order, starts, shares, n_rows, n_experts, ACTIVE: tl.constexpr, A: tl.constexpr,
    R: tl.constexpr, X: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Choose, share, count, and sort by counting: a row's place is how many above chose alike."""
    row, expert, rank = tl.arange(0, R)[:, None], tl.arange(0, X)[None, :], tl.arange(0, A)[None, :]
    is_row, is_expert = row < n_rows, expert < n_experts
    take_turn(OVERLAP)
    is_logit = is_row & is_expert
    x = tl.load(logits + row * n_experts + expert, mask=is_logit, other=0.0).to(tl.float32)
    keys = tl.where(is_logit, _in_order(x), LEAST)
    best = tl.full([R, A], float("-inf"), tl.float32)
    ranks = tl.full([R, X], -1, tl.int32)
    for at in tl.static_range(ACTIVE):
        is_own = expert == tl.argmax(keys, 1)[:, None]
        best = tl.where(rank == at, tl.sum(tl.where(is_own, x, 0.0), 1)[:, None], best)
        ranks = tl.where(is_own, at, ranks)
        keys = tl.where(is_own, LEAST, keys)
    parts = tl.exp(best - tl.max(best, 1)[:, None])
    shared = parts / tl.sum(parts, 1)[:, None]
    tl.store(shares + row * ACTIVE + rank, shared, mask=is_row & (rank < ACTIVE))
    is_pair = is_row & (ranks >= 0)
    taken = is_pair.to(tl.int32)
    counts = tl.sum(taken, 0)[None, :]
    ends = tl.cumsum(counts, 1)
    tl.store(starts + 1 + expert, ends, mask=is_expert)
    tl.store(starts, 0)
    place = ends - counts + tl.cumsum(taken, 0) - 1
    tl.store(order + place, row * ACTIVE + ranks, mask=is_pair)


def route(logits: Tensor, n_active: int) -> tuple[Tensor, Tensor, Tensor]:
    """Order and starts of the pairs, and the shares, of at most `MOST_ROWS` rows [experts]."""
    n_rows, n_experts = logits.shape
    order = logits.new_empty(n_rows * n_active, dtype=torch.int32)
    starts = logits.new_empty(n_experts + 1, dtype=torch.int32)
    shares = logits.new_empty((n_rows, n_active), dtype=torch.float32)
    if not n_rows:
        starts.zero_()
    else:
        _route_kernel[(1,)](
            logits.contiguous(), order, starts, shares, n_rows, n_experts, ACTIVE=n_active,
            A=block(n_active), R=block(n_rows), X=block(n_experts),
            num_warps=8 if n_rows > 8 else 4, **overlapped(logits),
        )  # fmt: skip
    return order, starts, shares


@triton.jit
def _mix_kernel(
    outputs, shares, mixed, size, ACTIVE: tl.constexpr, B: tl.constexpr, OVERLAP: tl.constexpr
):  # fmt: skip
    """Some columns of one row: the shares of its pairs, in rank order."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * B + tl.arange(0, B)
    is_inside = column < size
    take_turn(OVERLAP)
    total = tl.zeros([B], tl.float32)
    for at in tl.static_range(ACTIVE):
        pair = row * ACTIVE + at
        own = tl.load(outputs + pair * size + column, mask=is_inside, other=0.0)
        total += own.to(tl.float32) * tl.load(shares + pair)
    tl.store(mixed + row * size + column, total.to(mixed.dtype.element_ty), mask=is_inside)


def mix(outputs: Tensor, shares: Tensor) -> Tensor:
    """Pairs [rows * active, width] to rows [rows, width]."""
    (n_rows, n_active), size = shares.shape, outputs.shape[1]
    mixed = outputs.new_empty((n_rows, size))
    if n_rows:
        _mix_kernel[(n_rows, triton.cdiv(size, MIX_BLOCK))](
            outputs, shares, mixed, size, ACTIVE=n_active, B=MIX_BLOCK, **overlapped(outputs)
        )
    return mixed
