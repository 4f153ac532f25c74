"""Triton R13 and R14: a text's own continuation and its merging into the tree, by request."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_text import FoundPath, MergedPath
from aerie.kernels.triton_gpu.launch import block, contiguous, row_stride

SEARCH_BLOCK = 1024  # tokens of a program: long texts are looked through side by side
# One number holds how much matches and where: the card ends the search at 65536 tokens.
SPAN = tl.constexpr(1 << 16)


@triton.jit(do_not_specialize=("width", "longest", "searched"))
def _search_kernel(
    text, table_row, text_len, best_out, width, longest, searched, E: tl.constexpr
):  # fmt: skip
    """A part of one text: how much of the suffix matches best there, and the latest such place."""
    request, part = tl.program_id(0), tl.program_id(1)
    length = tl.load(text_len + request)
    own = text + tl.load(table_row + request) * width
    start = tl.maximum(length - searched, 0)
    # An occurrence ends before `end`: how many tokens up to there are the suffix's.
    lane = part * E + tl.arange(0, E)
    end = start + 1 + lane
    is_equal = end < length
    matched = tl.zeros([E], tl.int64)
    for back in range(1, longest + 1):
        is_equal = is_equal & (end - back >= start)
        # Tokens that no longer match are not even read: nearly all drop out at once.
        seen = tl.load(own + end - back, mask=is_equal, other=-1)
        is_equal = is_equal & (seen == tl.load(own + length - back, mask=length >= back, other=-2))
        matched += is_equal.to(tl.int64)
    best = tl.max(matched * SPAN + lane, axis=0)
    tl.store(best_out + request * tl.num_programs(1) + part, best)


@triton.jit(do_not_specialize=("width", "path_length", "searched", "n_parts"))
def _follow_kernel(
    text, table_row, text_len, best_in, path_out, path_len_out, match_len_out, width, path_length,
    searched, n_parts, P: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """One request: of all parts the longest known suffix, of several the latest; what followed."""
    request = tl.program_id(0)
    length = tl.load(text_len + request)
    own = text + tl.load(table_row + request) * width
    start = tl.maximum(length - searched, 0)
    part = tl.arange(0, P)
    found = tl.load(best_in + request * n_parts + part, mask=part < n_parts, other=0)
    best = tl.max(found, axis=0)
    match_len = best // SPAN
    step = tl.arange(0, T)
    position = start + 1 + best % SPAN + step
    is_path = (match_len > 0) & (position < length) & (step < path_length)
    token = tl.load(own + position, mask=is_path, other=-1)
    tl.store(path_out + request * path_length + step, token.to(tl.int64), mask=step < path_length)
    tl.store(path_len_out + request, tl.sum(is_path.to(tl.int64), axis=0))
    tl.store(match_len_out + request, match_len)


@takes_call
def find_text_path(call: FoundPath) -> dict[str, Tensor]:
    """R13: the longest known suffix, its latest earlier occurrence, what followed it."""
    batch, device = call.text_len.shape[0], call.text.device
    outputs = {
        "path_tokens": torch.empty((batch, call.path_length), dtype=torch.int64, device=device),
        "path_len": torch.empty(batch, dtype=torch.int64, device=device),
        "match_len": torch.empty(batch, dtype=torch.int64, device=device),
    }
    if batch:
        width = call.text.shape[1]
        n_parts = triton.cdiv(min(call.searched, width), SEARCH_BLOCK)
        best = torch.empty((batch, n_parts), dtype=torch.int64, device=device)
        texts = contiguous(call.text, call.req_pool_indices, call.text_len)
        _search_kernel[(batch, n_parts)](
            *texts, best, width, call.longest, call.searched, E=SEARCH_BLOCK
        )
        _follow_kernel[(batch,)](
            *texts, best, *outputs.values(), width, call.path_length, call.searched, n_parts,
            P=block(n_parts), T=block(call.path_length),
        )  # fmt: skip
    return outputs


@triton.jit(do_not_specialize=("count", "longest", "s0", "s1", "s2", "s3"))
def _merge_kernel(
    tokens, scores, depths, parents, path, path_len, confidence, added_out, s0, s1, s2, s3, count,
    longest, N: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    """One request: walk down while the path's tokens are there, then append the rest."""
    request = tl.program_id(0)
    own_tokens, own_scores = tokens + request * s0, scores + request * s1
    own_depths, own_parents = depths + request * s2, parents + request * s3
    node = tl.arange(0, N)
    is_node = (node > 0) & (node < count)
    # The tree is read once; every step looks for the next child among all of its nodes.
    token = tl.load(own_tokens + node, mask=is_node, other=-1)
    depth = tl.load(own_depths + node, mask=is_node, other=-1)
    parent = tl.load(own_parents + node, mask=is_node, other=-1)
    length = tl.load(path_len + request).to(tl.int32)
    worth = tl.load(confidence + request).to(tl.float64)
    base = tl.load(own_scores).to(tl.float64)
    power = tl.full([], 1.0, tl.float64)
    here = tl.zeros([], tl.int32)
    step = tl.zeros([], tl.int32)
    is_inside = length > 0
    while is_inside:
        wanted = tl.load(path + request * longest + step)
        is_child = is_node & (parent == here) & (token == wanted) & (depth == step + 1)
        child = tl.min(tl.where(is_child, node, N), axis=0)
        is_found = child < N
        score = tl.load(own_scores + child, mask=is_found, other=0.0).to(tl.float64)
        is_scored = score > 0
        # Without a score of its own it is worth its share of the nearest one above that has one.
        power = tl.where(is_found, tl.where(is_scored, 1.0, power * worth), power)
        base = tl.where(is_scored, score, base)
        revived = (base * power).to(tl.float32)
        tl.store(own_scores + child, revived, mask=is_found & (score <= 0))
        here = tl.where(is_found, child, here)
        step = tl.where(is_found, step + 1, step)
        is_inside = is_found & (step < length)
    n_added = length - step
    new = tl.arange(0, T)
    is_new = new < n_added
    is_room = new < longest
    place = count + new
    added = tl.load(path + request * longest + step + new, mask=is_new, other=0)
    tl.store(own_tokens + place, added, mask=is_room)
    tl.store(own_depths + place, tl.where(is_new, step + 1 + new, 0).to(tl.int64), mask=is_room)
    above = tl.where(new == 0, here, place - 1)
    tl.store(own_parents + place, tl.where(is_new, above, -1).to(tl.int64), mask=is_room)
    tl.store(own_scores + place, 0.0, mask=is_room)
    tl.store(added_out + request, n_added.to(tl.int64))
    # One product after another: powers by a scan would round otherwise than the definition.
    tl.debug_barrier()
    for more in range(n_added):
        power = power * worth
        tl.store(own_scores + count + more, (base * power).to(tl.float32))


@takes_call
def merge_text_path(call: MergedPath) -> dict[str, Tensor]:
    """R14: walk what is there, append the rest."""
    batch, longest = call.path_tokens.shape
    n_added = torch.empty(batch, dtype=torch.int64, device=call.path_len.device)
    stores = (call.cumu_tokens, call.cumu_scores, call.cumu_deltas, call.prev_indexs)
    if batch:
        _merge_kernel[(batch,)](
            *stores, *contiguous(call.path_tokens, call.path_len, call.confidence),
            n_added, *map(row_stride, stores), call.node_count, longest,
            N=block(call.node_count, 16), T=block(longest, 16),
        )  # fmt: skip
    return {"n_added": n_added}
