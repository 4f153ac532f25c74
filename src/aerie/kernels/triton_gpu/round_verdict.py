"""Triton R8, R11 and R12: the best nodes, KV that moves, and the state of the next round."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.errors import UsageError
from aerie.kernels import report as columns
from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_choice import BestNodes
from aerie.kernels.cards.round_verdict import HandedOver, MovedSlots
from aerie.kernels.triton_gpu.launch import block, contiguous, entry_stride, row_stride

NODE_BLOCK = 64
MOVE_ELEMENTS = 8192  # of one program's tile
MOST_MOVES = 128  # read together
COUNT_BLOCK = 1024

N_EMITTED = tl.constexpr(columns.N_EMITTED)
IS_FINISHED = tl.constexpr(columns.IS_FINISHED)
STATUS = tl.constexpr(columns.STATUS)
N_ROWS = tl.constexpr(columns.N_ROWS)
N_ACCEPTED = tl.constexpr(columns.N_ACCEPTED)
SEQ_LEN = tl.constexpr(columns.SEQ_LEN)
N_CHOSEN = tl.constexpr(columns.N_CHOSEN)
FIRST_TOKEN = tl.constexpr(len(columns.REPORT))


@triton.jit(do_not_specialize=("n_nodes", "n_kept", "stride", "count_stride"))
def _best_kernel(
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
    # A rank is the number of nodes before: counting needs no sort, and its blocks no order.
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


@takes_call
def choose_best_nodes(call: BestNodes) -> dict[str, Tensor]:
    """R8: the best nodes of each request."""
    batch, size = call.cumu_scores.shape
    if batch:
        _best_kernel[(batch, triton.cdiv(size, NODE_BLOCK))](
            call.cumu_scores, call.selected.view(torch.uint8), call.n_chosen, size, call.verify_num,
            row_stride(call.cumu_scores), row_stride(call.selected), entry_stride(call.n_chosen),
            N=NODE_BLOCK,
        )  # fmt: skip
    return {}


@triton.jit(do_not_specialize=("n_moves", "layer_stride", "slot_stride", "size"))
def _move_kernel(
    keys, values, source, destination, n_moves, layer_stride, slot_stride, size,
    M: tl.constexpr, H: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One layer, keys or values, some columns of every moved slot: all read, then all written."""
    layer = tl.program_id(0).to(tl.int64)
    column = tl.program_id(2) * H + tl.arange(0, H)
    # Moves stand in front of a list that is nearly empty: where the last one is.
    n_used = tl.zeros([], tl.int32)
    for start in range(0, n_moves, N):
        entry = start + tl.arange(0, N)
        origin = tl.load(source + entry, mask=entry < n_moves, other=-1)
        n_used = tl.maximum(n_used, tl.max(tl.where(origin >= 0, entry + 1, 0), axis=0))
    for start in range(0, n_used, M):
        move = start + tl.arange(0, M)
        is_move = move < n_used
        origin = tl.load(source + move, mask=is_move, other=-1)
        target = tl.load(destination + move, mask=is_move, other=-1)
        is_moved = (origin >= 0)[:, None] & (column < size)[None, :]
        base = layer * layer_stride + column[None, :]
        read = base + origin.to(tl.int64)[:, None] * slot_stride
        write = base + target.to(tl.int64)[:, None] * slot_stride
        # A slot may be read by one move and written by another of the same block: no write before
        # every read. What an earlier block wrote no later one reads, says the card.
        if tl.program_id(1) == 0:
            rows = tl.load(keys + read, mask=is_moved, other=0.0)
            tl.debug_barrier()
            tl.store(keys + write, rows, mask=is_moved)
        else:
            rows = tl.load(values + read, mask=is_moved, other=0.0)
            tl.debug_barrier()
            tl.store(values + write, rows, mask=is_moved)


@takes_call
def move_kv_slots(call: MovedSlots) -> dict[str, Tensor]:
    """R11: all reads, then all writes."""
    n_layers, _, n_heads, width = call.keys.shape
    size, n_moves = n_heads * width, call.kv_src.shape[0]
    strides, own = call.keys.stride(), call.values.stride()
    if strides != own or (call.keys.numel() and strides[2:] != (width, 1)):
        raise UsageError(
            f"keys have strides {strides}, values {own}; Triton kernels take a"
            " pool whose slots are packed, the same in both"
        )
    if n_layers and n_moves:
        rows = min(block(n_moves, 2), MOST_MOVES)
        wide = min(block(size), max(16, MOVE_ELEMENTS // rows))
        _move_kernel[(n_layers, 2, triton.cdiv(size, wide))](
            call.keys, call.values, *contiguous(call.kv_src, call.kv_dst), n_moves, *strides[:2],
            size, M=rows, H=wide, N=COUNT_BLOCK,
        )  # fmt: skip
    return {}


_STRIDES = ("run", "n_nodes", "s0", "s1", "s2", "s3", "s4", "s5", "s6")


@triton.jit(do_not_specialize=_STRIDES)
def _hand_over_kernel(
    layout_status, sample_status, walk_status, commit_status, out_tokens, out_indptr,
    new_seq_len, finished, qo_indptr, accept_index, accept_count, is_live, seq_len, node_tokens,
    node_scores, tokens, count, report, kept_out, deciding_out, run, n_nodes, s0, s1, s2, s3, s4,
    s5, s6, D: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One request: its status, lengths, root, tokens and report; its nodes lose their scores."""
    request = tl.program_id(0)
    # The first word that refuses wins: what follows it was computed from nothing.
    status = tl.load(commit_status + request)
    word = tl.load(walk_status + request)
    status = tl.where(word != 0, word, status)
    word = tl.load(sample_status + request)
    status = tl.where(word != 0, word, status)
    word = tl.load(layout_status + request)
    status = tl.where(word != 0, word, status)
    is_alive = tl.load(is_live + request * s6) != 0
    is_decided = is_alive & (status == 0)
    is_done = tl.load(finished + request)
    tl.store(is_live + request * s6, (is_alive & ~(is_decided & (is_done != 0))).to(tl.uint8))
    first = tl.load(out_indptr + request)
    n_out = tl.load(out_indptr + request + 1) - first
    n_emitted = tl.where(is_decided, n_out, 0)
    first_row = tl.load(qo_indptr + request)
    n_rows = tl.load(qo_indptr + request + 1) - first_row
    before = tl.load(seq_len + request * s0)
    length = tl.where(is_decided, tl.load(new_seq_len + request), before)
    n_kept = length - before

    step = tl.arange(0, D)
    is_step = step < run
    emitted = tl.load(out_tokens + first + step, mask=step < n_out, other=0)
    tl.store(tokens + request * s3 + step, tl.maximum(emitted, 0), mask=is_step)
    path = tl.load(accept_index + request * run + step, mask=is_step, other=0)
    kept = tl.where(step < n_kept, first_row + path, 0)
    tl.store(kept_out + request * run + step, kept, mask=is_step)
    deciding = tl.where(step < n_emitted, kept, -1)
    tl.store(deciding_out + request * run + step, deciding, mask=is_step)
    tl.store(count + request * s4, n_kept)
    tl.store(seq_len + request * s0, length)
    root = tl.sum(tl.where(step == n_emitted - 1, emitted, 0), axis=0)
    old = tl.load(node_tokens + request * s1)
    tl.store(node_tokens + request * s1, tl.where(n_emitted > 0, root, old))
    for start in range(0, n_nodes, N):
        node = start + tl.arange(0, N)
        place = node_scores + request * s2 + node
        tl.store(place, 0.0, mask=(node > 0) & (node < n_nodes))

    out = report + request * s5
    tl.store(out + N_EMITTED, n_emitted.to(tl.int32))
    tl.store(out + IS_FINISHED, is_done.to(tl.int32))
    tl.store(out + STATUS, status)
    tl.store(out + N_ROWS, n_rows)
    tl.store(out + N_ACCEPTED, tl.load(accept_count + request).to(tl.int32))
    tl.store(out + SEQ_LEN, length.to(tl.int32))
    tl.store(out + N_CHOSEN, 1)  # the root; a choice writes what it chose
    tl.store(out + FIRST_TOKEN + step, emitted.to(tl.int32), mask=is_step)


@takes_call
def hand_over_verdict(call: HandedOver) -> dict[str, Tensor]:
    """R12: lengths, roots, emitted tokens, rows to take in, and the report."""
    batch, run = call.accepted_tokens.shape
    outputs = {
        name: torch.empty((batch, run), dtype=torch.int64, device=call.seq_len.device)
        for name in ("kept_rows", "deciding_rows")
    }
    read = contiguous(
        call.layout_status, call.sample_status, call.walk_status, call.commit_status,
        call.out_tokens, call.out_indptr, call.new_seq_len, call.finished.view(torch.uint8),
        call.qo_indptr, call.accept_index, call.accept_count,
    )  # fmt: skip
    if batch:
        _hand_over_kernel[(batch,)](
            *read, call.is_live.view(torch.uint8), call.seq_len, call.cumu_tokens, call.cumu_scores,
            call.accepted_tokens, call.accepted_count, call.report, *outputs.values(), run,
            call.cumu_scores.shape[1], entry_stride(call.seq_len), row_stride(call.cumu_tokens),
            row_stride(call.cumu_scores), row_stride(call.accepted_tokens),
            entry_stride(call.accepted_count), row_stride(call.report), entry_stride(call.is_live),
            D=block(run), N=256, num_warps=1,
        )  # fmt: skip
    return outputs
