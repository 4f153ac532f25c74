"""Triton R9 and R10: a planner's choice for the whole batch, and notes about what was chosen.

Nothing is sorted: a node's rank is the number of nodes before it, which are counted.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import KNOTS
from aerie.kernels.cards.round_choice import NotedNodes, PlannedNodes
from aerie.kernels.triton_gpu.launch import block, entry_stride, row_stride

RANK_BLOCK, OTHERS_BLOCK = 64, 128
MASS_BLOCK = 256
NOTE_BLOCK = 256


@triton.jit(do_not_specialize=("s0", "s1", "s2", "n_nodes", "n_depths", "first", "n_rounds"))
def _weigh_kernel(
    scores, depths, parents, numbers, weights, ups, s0, s1, s2, n_nodes, n_depths, first, n_rounds,
    K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One request: the calibrated weight of every path, never above its parent's."""
    request = tl.program_id(0)
    node = tl.arange(0, N)
    is_node = node < n_nodes
    score = tl.load(scores + request * s0 + node, mask=is_node, other=0.0)
    depth = tl.load(depths + request * s1 + node, mask=is_node, other=0).to(tl.int32)
    parent = tl.load(parents + request * s2 + node, mask=is_node, other=0).to(tl.int32)
    # In float64, rounded once: the last bit of a weight decides between nodes, and it must not
    # depend on whether a multiplication and an addition are fused.
    exact = score.to(tl.float64)
    place = tl.sqrt(tl.minimum(tl.maximum(exact, 0.0), 1.0)) * (K - 1)
    low = tl.minimum(place.to(tl.int32), K - 2)
    row = tl.minimum(tl.maximum(depth, 1), n_depths) - 1
    knot = numbers + first + row * K + low
    left = tl.load(knot, mask=is_node, other=0.0)
    right = tl.load(knot + 1, mask=is_node, other=0.0)
    corrected = exact + (left + (place - low.to(tl.float64)) * (right - left))
    weight = tl.minimum(tl.maximum(corrected, 0.0), 1.0).to(tl.float32)
    weight = tl.where(score > 0, weight, 0.0)
    weight = tl.where(depth == 0, score, weight)
    # Pointer doubling through memory: parents may be anywhere, merged paths lie behind all layers.
    own = weights + request * n_nodes
    up = ups + request * n_nodes
    above = tl.maximum(parent, 0)
    for _ in range(n_rounds):
        tl.store(own + node, weight, mask=is_node)
        tl.store(up + node, above, mask=is_node)
        tl.debug_barrier()
        weight = tl.minimum(weight, tl.load(own + above, mask=is_node, other=0.0))
        above = tl.load(up + above, mask=is_node, other=0)
        # No thread may overwrite what another has still to read.
        tl.debug_barrier()
    tl.store(own + node, weight, mask=is_node)


@triton.jit(do_not_specialize=("n_nodes", "n_kept"))
def _keep_kernel(weights, kept, n_nodes, n_kept, N: tl.constexpr, M: tl.constexpr):
    """One block of nodes of one request: those beyond the best `n_kept` lose their weight."""
    request = tl.program_id(0)
    node = tl.program_id(1) * N + tl.arange(0, N)
    is_node = node < n_nodes
    row = weights + request * n_nodes
    own = tl.load(row + node, mask=is_node, other=0.0)
    rank = tl.zeros([N], tl.int32)
    for start in range(0, n_nodes, M):
        other_node = start + tl.arange(0, M)
        other = tl.load(row + other_node, mask=other_node < n_nodes, other=-1.0)
        before = other[None, :] > own[:, None]
        before |= (other[None, :] == own[:, None]) & (other_node[None, :] < node[:, None])
        rank += tl.sum(before.to(tl.int32), axis=1)
    tl.store(kept + request * n_nodes + node, tl.where(rank < n_kept, own, 0.0), mask=is_node)


@triton.jit(do_not_specialize=("n_nodes", "n_all"))
def _rank_kernel(weights, ranks, n_nodes, n_all, N: tl.constexpr, M: tl.constexpr):
    """One block of all nodes: how many of the batch come before each; the roots come first."""
    place = tl.program_id(0) * N + tl.arange(0, N)
    is_node = place < n_all
    own = tl.load(weights + place, mask=is_node, other=0.0)
    # Weights end at 1: a root is above every one of them, and verified whatever happens.
    own = tl.where(place % n_nodes == 0, 2.0, own)
    rank = tl.zeros([N], tl.int32)
    for start in range(0, n_all, M):
        other_place = start + tl.arange(0, M)
        other = tl.load(weights + other_place, mask=other_place < n_all, other=-1.0)
        is_root = (other_place % n_nodes == 0) & (other_place < n_all)
        other = tl.where(is_root, 2.0, other)
        before = other[None, :] > own[:, None]
        before |= (other[None, :] == own[:, None]) & (other_place[None, :] < place[:, None])
        rank += tl.sum(before.to(tl.int32), axis=1)
    tl.store(ranks + place, rank, mask=is_node)


@triton.jit(do_not_specialize=("n_all", "n_sizes"))
def _value_kernel(
    weights, ranks, sizes, numbers, values_out, rows_out, n_all, n_sizes,
    N: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """One block of sizes: what each is worth beyond its seconds, and how many rows it takes."""
    n_usable = tl.zeros([], tl.int32)
    for start in range(0, n_all, N):
        place = start + tl.arange(0, N)
        weight = tl.load(weights + place, mask=place < n_all, other=0.0)
        n_usable += tl.sum((weight > 0).to(tl.int32), axis=0)
    entry = tl.program_id(0) * S + tl.arange(0, S)
    is_size = entry < n_sizes
    size = tl.load(sizes + entry, mask=is_size, other=1).to(tl.int32)
    n_rows = tl.minimum(size, n_usable)
    tokens = tl.zeros([S], tl.float64)
    for start in range(0, n_all, N):
        place = start + tl.arange(0, N)
        weight = tl.load(weights + place, mask=place < n_all, other=0.0).to(tl.float64)
        rank = tl.load(ranks + place, mask=place < n_all, other=n_all)
        is_in = rank[:, None] < n_rows[None, :]
        tokens += tl.sum(tl.where(is_in, weight[:, None], 0.0), axis=0)
    seconds = tl.load(numbers + 1 + entry, mask=is_size, other=0.0)
    value = tokens - tl.load(numbers) * seconds
    # No rate, and a size that is not on offer: 0 times infinity.
    value = tl.where(value == value, value, float("-inf"))
    tl.store(values_out + entry, value, mask=is_size)
    tl.store(rows_out + entry, n_rows, mask=is_size)


@triton.jit(do_not_specialize=("n_nodes", "n_sizes", "stride", "count_stride"))
def _take_kernel(
    ranks, values, size_rows, chosen, count, n_nodes, n_sizes, stride, count_stride,
    N: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """One request: its nodes among the best of the batch, in the size that is worth most."""
    request = tl.program_id(0)
    entry = tl.arange(0, S)
    # Every request finds the best size for itself: cheaper than another launch.
    value = tl.load(values + entry, mask=entry < n_sizes, other=float("-inf"))
    is_best = (entry < n_sizes) & (value == tl.max(value, axis=0))
    best = tl.min(tl.where(is_best, entry, S), axis=0)
    bound = tl.load(size_rows + best)
    n_chosen = tl.zeros([], tl.int32)
    for start in range(0, n_nodes, N):
        node = start + tl.arange(0, N)
        is_node = node < n_nodes
        rank = tl.load(ranks + request * n_nodes + node, mask=is_node, other=bound)
        is_chosen = rank < bound
        tl.store(chosen + request * stride + node, is_chosen.to(tl.uint8), mask=is_node)
        n_chosen += tl.sum(is_chosen.to(tl.int32), axis=0)
    tl.store(count + request * count_stride, n_chosen)


@takes_call
def choose_planned_nodes(call: PlannedNodes) -> dict[str, Tensor]:
    """R9: the forest that is worth most at the offer's rate."""
    (batch, n_nodes), device = call.cumu_scores.shape, call.cumu_scores.device
    if not batch:
        return {}
    n_all, n_sizes = batch * n_nodes, call.row_sizes.shape[0]
    offer, sizes = call.numbers.contiguous(), call.row_sizes.contiguous()
    weights = torch.empty((batch, n_nodes), device=device)
    ups = torch.empty((batch, n_nodes), dtype=torch.int32, device=device)
    trees = (call.cumu_scores, call.cumu_deltas, call.prev_indexs)
    _weigh_kernel[(batch,)](
        *trees, offer, weights, ups, *map(row_stride, trees), n_nodes,
        (offer.shape[0] - 1 - n_sizes) // KNOTS, 1 + n_sizes, call.deepest.bit_length(),
        K=KNOTS, N=block(n_nodes),
    )  # fmt: skip
    if n_nodes > call.verify_num:
        kept = torch.empty_like(weights)
        _keep_kernel[(batch, triton.cdiv(n_nodes, RANK_BLOCK))](
            weights, kept, n_nodes, call.verify_num, N=RANK_BLOCK, M=OTHERS_BLOCK
        )
        weights = kept
    ranks = torch.empty((batch, n_nodes), dtype=torch.int32, device=device)
    _rank_kernel[(triton.cdiv(n_all, RANK_BLOCK),)](
        weights, ranks, n_nodes, n_all, N=RANK_BLOCK, M=OTHERS_BLOCK
    )
    values = torch.empty(n_sizes, dtype=torch.float64, device=device)
    size_rows = torch.empty(n_sizes, dtype=torch.int32, device=device)
    n_together = min(block(n_sizes), 64)
    _value_kernel[(triton.cdiv(n_sizes, n_together),)](
        weights, ranks, sizes, offer, values, size_rows, n_all, n_sizes, N=MASS_BLOCK, S=n_together
    )
    _take_kernel[(batch,)](
        ranks, values, size_rows, call.selected.view(torch.uint8), call.n_chosen, n_nodes, n_sizes,
        row_stride(call.selected), entry_stride(call.n_chosen), N=256, S=block(n_sizes),
    )  # fmt: skip
    return {}


_NOTE_STRIDES = ("n_nodes", "n_rows", "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8")


@triton.jit(do_not_specialize=_NOTE_STRIDES)
def _note_kernel(
    scores, depths, tokens, parents, chosen, scores_out, depths_out, tokens_out, parents_out,
    row_of, s0, s1, s2, s3, s4, s5, s6, s7, s8, n_nodes, n_rows,
    N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """One request: its chosen nodes packed in the order of their rows."""
    request = tl.program_id(0)
    entry = tl.arange(0, M)
    is_entry = entry < n_rows
    tl.store(scores_out + request * s5 + entry, 0.0, mask=is_entry)
    tl.store(depths_out + request * s6 + entry, 0, mask=is_entry)
    tl.store(tokens_out + request * s7 + entry, 0, mask=is_entry)
    tl.store(parents_out + request * s8 + entry, -1, mask=is_entry)
    own = row_of + request * n_nodes
    n_before = tl.zeros([], tl.int32)
    for start in range(0, n_nodes, N):
        node = start + tl.arange(0, N)
        is_node = node < n_nodes
        flag = tl.load(chosen + request * s4 + node, mask=is_node, other=0).to(tl.int32)
        tl.store(own + node, n_before + tl.cumsum(flag, axis=0) - 1, mask=is_node)
        n_before += tl.sum(flag, axis=0)
    # Rows are complete, and the fills are written, before anything is put over them.
    tl.debug_barrier()
    for start in range(0, n_nodes, N):
        node = start + tl.arange(0, N)
        is_node = node < n_nodes
        flag = tl.load(chosen + request * s4 + node, mask=is_node, other=0)
        row = tl.load(own + node, mask=is_node, other=n_rows)
        is_noted = (flag != 0) & (row < n_rows)
        score = tl.load(scores + request * s0 + node, mask=is_noted, other=0.0)
        depth = tl.load(depths + request * s1 + node, mask=is_noted, other=0)
        token = tl.load(tokens + request * s2 + node, mask=is_noted, other=0)
        parent = tl.load(parents + request * s3 + node, mask=is_noted, other=-1)
        above = tl.load(own + parent, mask=is_noted & (parent >= 0), other=-1)
        tl.store(scores_out + request * s5 + row, score, mask=is_noted)
        tl.store(depths_out + request * s6 + row, depth.to(tl.int32), mask=is_noted)
        tl.store(tokens_out + request * s7 + row, token.to(tl.int32), mask=is_noted)
        tl.store(parents_out + request * s8 + row, above, mask=is_noted)


@takes_call
def note_chosen_nodes(call: NotedNodes) -> dict[str, Tensor]:
    """R10: the chosen nodes in the order of their rows."""
    batch, n_nodes = call.selected.shape
    n_rows = call.noted_scores.shape[1]
    arrays = (
        call.cumu_scores, call.cumu_deltas, call.cumu_tokens, call.prev_indexs,
        call.selected.view(torch.uint8), call.noted_scores, call.noted_depths, call.noted_tokens,
        call.noted_parents,
    )  # fmt: skip
    if batch:
        row_of = torch.empty((batch, n_nodes), dtype=torch.int32, device=call.selected.device)
        _note_kernel[(batch,)](
            *arrays, row_of, *map(row_stride, arrays), n_nodes, n_rows, N=NOTE_BLOCK,
            M=block(n_rows),
        )  # fmt: skip
    return {}
