"""What a verdict changes in a captured round, in one launch each: state, KV moves, the choice.

The definitions are in `speculation/round_ops.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.triton_gpu.launch import block

NODE_BLOCK = 64
MOVE_ELEMENTS = 8192  # of one program's tile


@triton.jit(do_not_specialize=("run", "n_nodes", "node_stride", "report_stride"))
def _hand_over_kernel(
    layout_status, sampled_status, walked_status, commit_status, out_tokens, out_indptr, out_rows,
    rows_indptr, new_seq_len, finished, qo_indptr, accept_count, is_live, seq_len, node_tokens,
    node_scores, tokens, count, report, kept_out, run, n_nodes, node_stride, report_stride,
    D: tl.constexpr, N: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One request: its status, lengths, root, tokens and report; its nodes lose their scores."""
    request = tl.program_id(0)
    status = tl.load(commit_status + request)
    word = tl.load(walked_status + request)
    status = tl.where(word != 0, word, status)
    word = tl.load(sampled_status + request)
    status = tl.where(word != 0, word, status)
    word = tl.load(layout_status + request)
    status = tl.where(word != 0, word, status)
    is_decided = (tl.load(is_live + request) != 0) & (status == 0)
    first = tl.load(out_indptr + request)
    n_out = tl.load(out_indptr + request + 1) - first
    n_emitted = tl.where(is_decided, n_out, 0)
    first_row = tl.load(rows_indptr + request)
    n_rows = tl.load(rows_indptr + request + 1) - first_row

    step = tl.arange(0, D)
    is_step = step < run
    emitted = tl.load(out_tokens + first + step, mask=step < n_out, other=0)
    tl.store(tokens + request * run + step, tl.maximum(emitted, 0), mask=is_step)
    row = tl.load(out_rows + first_row + step, mask=step < n_rows, other=0)
    tl.store(kept_out + request * run + step, row, mask=is_step)
    tl.store(count + request, tl.where(is_decided, n_rows, 0).to(tl.int64))
    length = tl.load(seq_len + request)
    length = tl.where(is_decided, tl.load(new_seq_len + request), length)
    tl.store(seq_len + request, length)
    root = tl.sum(tl.where(step == n_emitted - 1, emitted, 0), axis=0)
    old = tl.load(node_tokens + request * node_stride)
    tl.store(node_tokens + request * node_stride, tl.where(n_emitted > 0, root, old))
    for start in range(0, n_nodes, N):
        node = start + tl.arange(0, N)
        place = node_scores + request * node_stride + node
        tl.store(place, 0.0, mask=(node > 0) & (node < n_nodes))

    out = report + request * report_stride
    tl.store(out, n_emitted.to(tl.int32))
    tl.store(out + 1, tl.load(finished + request).to(tl.int32))
    tl.store(out + 2, status)
    tl.store(out + 3, tl.load(qo_indptr + request + 1) - tl.load(qo_indptr + request))
    tl.store(out + 4, tl.load(accept_count + request).to(tl.int32))
    tl.store(out + 5, length.to(tl.int32))
    tl.store(out + 6, 1)
    tl.store(out + COLUMNS + step, emitted.to(tl.int32), mask=is_step)


def hand_over(found: Any, standing: Any) -> Tensor:
    """Write lengths, roots, emitted tokens and the report; the kept rows [B, n] i64 come back."""
    committed, (batch, run) = found.committed, standing.tokens.shape
    kept = torch.empty_like(standing.tokens)
    n_nodes = standing.node_scores.shape[1]
    _hand_over_kernel[(batch,)](
        found.layout.status, found.sampled.status, found.walked.status, committed.status,
        committed.out_tokens, committed.out_indptr, committed.out_rows, committed.rows_indptr,
        committed.new_seq_len, committed.finished.view(torch.uint8), found.layout.qo_indptr,
        found.walked.accept_count, standing.is_live.view(torch.uint8), standing.seq_len,
        standing.node_tokens, standing.node_scores, standing.tokens, standing.count,
        standing.report, kept, run, n_nodes, standing.node_tokens.stride(0),
        standing.report.stride(0), D=block(run), N=256, COLUMNS=standing.report.shape[1] - run,
    )  # fmt: skip
    return kept


@triton.jit(do_not_specialize=("n_moves", "n_slots", "size"))
def _move_kernel(
    keys, values, source, destination, n_moves, n_slots, size, M: tl.constexpr, H: tl.constexpr
):
    """One layer, keys or values, some columns of every moved slot: all read, then all written."""
    layer = tl.program_id(0).to(tl.int64)
    column = tl.program_id(2) * H + tl.arange(0, H)
    move = tl.arange(0, M)
    is_move = move < n_moves
    origin = tl.load(source + move, mask=is_move, other=-1)
    target = tl.load(destination + move, mask=is_move, other=-1)
    is_moved = (origin >= 0)[:, None] & (column < size)[None, :]
    base = layer * n_slots * size
    read = base + origin.to(tl.int64)[:, None] * size + column[None, :]
    write = base + target.to(tl.int64)[:, None] * size + column[None, :]
    if tl.program_id(1) == 0:
        rows = tl.load(keys + read, mask=is_moved, other=0.0)
        # A slot may be read by one move and written by another: no write before every read.
        tl.debug_barrier()
        tl.store(keys + write, rows, mask=is_moved)
    else:
        rows = tl.load(values + read, mask=is_moved, other=0.0)
        tl.debug_barrier()
        tl.store(values + write, rows, mask=is_moved)


def move_slots(keys: Tensor, values: Tensor, source: Tensor, destination: Tensor) -> None:
    """K7's moves in every layer of a pool [layers, slots, kv_heads, dim]; -1 for none."""
    n_layers, n_slots = keys.shape[:2]
    size = keys[0, 0].numel()
    n_moves = source.shape[0]
    rows = block(n_moves, 2)
    wide = min(block(size), max(16, MOVE_ELEMENTS // rows))
    _move_kernel[(n_layers, 2, triton.cdiv(size, wide))](
        keys, values, source, destination, n_moves, n_slots, size, M=rows, H=wide
    )


@triton.jit(do_not_specialize=("n_nodes", "n_kept", "stride", "count_stride"))
def _choose_nodes_kernel(
    scores, chosen, count, n_nodes, n_kept, stride, chosen_stride, count_stride, N: tl.constexpr
):
    """One block of nodes of one request: rank by (score descending, id ascending)."""
    request = tl.program_id(0)
    node = tl.program_id(1) * N + tl.arange(0, N)
    is_node = node < n_nodes
    row = scores + request * stride
    own = tl.load(row + node, mask=is_node, other=0.0)
    rank = tl.zeros([N], tl.int32)
    n_scored = tl.zeros([], tl.int32)
    for start in range(0, n_nodes, N):
        other_node = start + tl.arange(0, N)
        other = tl.load(row + other_node, mask=other_node < n_nodes, other=float("-inf"))
        n_scored += tl.sum((other > 0).to(tl.int32), axis=0)
        before = other[None, :] > own[:, None]
        before |= (other[None, :] == own[:, None]) & (other_node[None, :] < node[:, None])
        rank += tl.sum(before.to(tl.int32), axis=1)
    is_chosen = (rank < n_kept) & (own > 0)
    tl.store(chosen + request * chosen_stride + node, is_chosen.to(tl.uint8), mask=is_node)
    if tl.program_id(1) == 0:
        tl.store(count + request * count_stride, tl.minimum(n_scored, n_kept))


def choose_best(scores: Tensor, n_nodes: int, chosen_out: Tensor, count_out: Tensor) -> None:
    """The best nodes of each request: chosen [B, N] bool, and how many [B] i32."""
    batch, size = scores.shape
    _choose_nodes_kernel[(batch, triton.cdiv(size, NODE_BLOCK))](
        scores, chosen_out.view(torch.uint8), count_out, size, n_nodes, scores.stride(0),
        chosen_out.stride(0), count_out.stride(0), N=NODE_BLOCK,
    )  # fmt: skip
