"""A planner's choice in a captured round, in a handful of launches for the whole batch.

The definitions are `choose_planned` and `note_chosen` in `speculation/round_ops.py`. Nothing is
sorted: a node's rank is the number of nodes before it, which are counted.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.triton_gpu.launch import block

RANK_BLOCK, OTHERS_BLOCK = 64, 128
MASS_BLOCK = 256
# Of the calibration (speculation/calibration.py): depths that have a row of their own, and knots.
KNOTS = 17


@triton.jit(do_not_specialize=("stride", "n_nodes", "top_k", "width", "n_layers", "first"))
def _weigh_kernel(
    scores, parents, numbers, weights, stride, n_nodes, top_k, width, n_layers, first,
    DEPTHS: tl.constexpr, K: tl.constexpr, W: tl.constexpr,
):  # fmt: skip
    """One request, layer by layer: the calibrated weight of a path, never above its parent's."""
    request = tl.program_id(0)
    row, own = scores + request * stride, weights + request * n_nodes
    tl.store(own, tl.load(row))
    start, size = 1, top_k
    for layer in range(n_layers):
        # The layer above is written by this same program.
        tl.debug_barrier()
        offset = tl.arange(0, W)
        is_node = offset < size
        node = start + offset
        score = tl.load(row + node, mask=is_node, other=0.0)
        place = tl.sqrt_rn(tl.minimum(tl.maximum(score, 0.0), 1.0)) * (K - 1)
        low = tl.minimum(place.to(tl.int32), K - 2)
        share = place - low.to(tl.float32)
        knot = numbers + first + tl.minimum(layer, DEPTHS - 1) * K + low
        left = tl.load(knot).to(tl.float32)
        right = tl.load(knot + 1).to(tl.float32)
        near = left + share * (right - left)
        correction = tl.where(share < 0.5, near, right - (right - left) * (1 - share))
        weight = tl.minimum(tl.maximum(score + correction, 0.0), 1.0)
        is_scored = is_node & (score > 0)
        parent = tl.load(parents + request * stride + node, mask=is_scored, other=0)
        above = tl.load(own + tl.maximum(parent, 0), mask=is_scored, other=0.0)
        weight = tl.where(is_scored, tl.minimum(weight, above), 0.0)
        tl.store(own + node, weight, mask=is_node)
        start += size
        size = top_k * width


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
    weights, ranks, sizes, numbers, n_rows_out, n_all, n_sizes, N: tl.constexpr, S: tl.constexpr
):
    """The size whose expected tokens are worth most beyond its seconds: how many rows it takes."""
    n_usable = tl.zeros([], tl.int32)
    for start in range(0, n_all, N):
        place = start + tl.arange(0, N)
        weight = tl.load(weights + place, mask=place < n_all, other=0.0)
        n_usable += tl.sum((weight > 0).to(tl.int32), axis=0)
    entry = tl.arange(0, S)
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
    value = tl.where(is_size, tokens - tl.load(numbers) * seconds, float("-inf"))
    is_best = is_size & (value == tl.max(value, axis=0))
    best = tl.min(tl.where(is_best, entry, S), axis=0)
    tl.store(n_rows_out, tl.sum(tl.where(entry == best, n_rows, 0), axis=0))


@triton.jit(do_not_specialize=("n_nodes", "stride", "count_stride"))
def _take_kernel(ranks, n_rows, chosen, count, n_nodes, stride, count_stride, N: tl.constexpr):
    """One request: its nodes among the best of the batch."""
    request = tl.program_id(0)
    bound = tl.load(n_rows)
    n_chosen = tl.zeros([], tl.int32)
    for start in range(0, n_nodes, N):
        node = start + tl.arange(0, N)
        is_node = node < n_nodes
        rank = tl.load(ranks + request * n_nodes + node, mask=is_node, other=bound)
        is_chosen = rank < bound
        tl.store(chosen + request * stride + node, is_chosen.to(tl.uint8), mask=is_node)
        n_chosen += tl.sum(is_chosen.to(tl.int32), axis=0)
    tl.store(count + request * count_stride, n_chosen)


def choose_planned(
    tree: Any, widths: tuple[int, ...], offer: Any, chosen_out: Tensor, count_out: Tensor
) -> None:
    """The forest that is worth most at the offer's rate: chosen [B, N] bool, and counts [B] i32."""
    assert len(set(widths)) <= 1, "planned levels are all of one width"
    (batch, n_nodes), device = tree.scores.shape, tree.scores.device
    n_layers, n_all, n_sizes = len(widths) + 1, batch * n_nodes, offer.sizes.shape[0]
    width = widths[0] if widths else 0
    top_k = (n_nodes - 1) // (1 + sum(widths))
    n_depths = (offer.numbers.shape[0] - 1 - n_sizes) // KNOTS
    weights = torch.empty((batch, n_nodes), device=device)
    _weigh_kernel[(batch,)](
        tree.scores, tree.parents, offer.numbers, weights, tree.scores.stride(0), n_nodes, top_k,
        width, n_layers, 1 + n_sizes, DEPTHS=n_depths, K=KNOTS, W=block(top_k * max(width, 1)),
    )  # fmt: skip
    if n_nodes > offer.verify:
        kept = torch.empty_like(weights)
        _keep_kernel[(batch, triton.cdiv(n_nodes, RANK_BLOCK))](
            weights, kept, n_nodes, offer.verify, N=RANK_BLOCK, M=OTHERS_BLOCK
        )
        weights = kept
    ranks = torch.empty((batch, n_nodes), dtype=torch.int32, device=device)
    _rank_kernel[(triton.cdiv(n_all, RANK_BLOCK),)](
        weights, ranks, n_nodes, n_all, N=RANK_BLOCK, M=OTHERS_BLOCK
    )
    n_rows = torch.empty(1, dtype=torch.int32, device=device)
    _value_kernel[(1,)](
        weights, ranks, offer.sizes, offer.numbers, n_rows, n_all, n_sizes, N=MASS_BLOCK,
        S=block(n_sizes),
    )  # fmt: skip
    _take_kernel[(batch,)](
        ranks, n_rows, chosen_out.view(torch.uint8), count_out, n_nodes, chosen_out.stride(0),
        count_out.stride(0), N=256,
    )  # fmt: skip


@triton.jit(do_not_specialize=("n_nodes", "stride", "chosen_stride", "n_rows"))
def _note_kernel(
    scores, depths, chosen, sent, n_nodes, stride, chosen_stride, n_rows,
    N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """One request: what its rows will be, packed."""
    request = tl.program_id(0)
    out = sent + request * 2 * n_rows
    entry = tl.arange(0, M)
    tl.store(out + entry, 0.0, mask=entry < 2 * n_rows)
    tl.debug_barrier()
    n_before = tl.zeros([], tl.int32)
    for start in range(0, n_nodes, N):
        node = start + tl.arange(0, N)
        is_node = node < n_nodes
        flag = tl.load(chosen + request * chosen_stride + node, mask=is_node, other=0).to(tl.int32)
        place = n_before + tl.cumsum(flag, axis=0) - 1
        is_noted = (flag != 0) & (place < n_rows)
        score = tl.load(scores + request * stride + node, mask=is_noted, other=0.0)
        depth = tl.load(depths + request * stride + node, mask=is_noted, other=0)
        tl.store(out + place, score, mask=is_noted)
        tl.store(out + n_rows + place, depth.to(tl.float32), mask=is_noted)
        n_before += tl.sum(flag, axis=0)


def note_chosen(tree: Any, chosen: Tensor, sent_out: Tensor) -> None:
    """Scores and then depths of the chosen nodes in row order, 0 behind them: sent [B, 2 M] f32."""
    batch, n_nodes = chosen.shape
    n_rows = sent_out.shape[1] // 2
    _note_kernel[(batch,)](
        tree.scores, tree.depths, chosen.view(torch.uint8), sent_out, n_nodes,
        tree.scores.stride(0), chosen.stride(0), n_rows, N=256, M=block(2 * n_rows),
    )  # fmt: skip
