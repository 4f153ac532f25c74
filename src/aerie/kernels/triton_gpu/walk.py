"""Triton K6, rule `match`: check each request's tree and follow the target's own tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.axes import MAX_BATCH, MAX_VERIFY
from aerie.kernels.cards.verdict import RejectSample
from aerie.kernels.triton_gpu.device import (
    BROKEN_TREE,
    DUPLICATE_SIBLING,
    TOO_DEEP,
    first_where,
    refuse,
    request_span,
)
from aerie.kernels.triton_gpu.launch import block, contiguous, tree_block, words


@triton.jit
def _parents(child, sibling, count, Q: tl.constexpr, ROUNDS: tl.constexpr):
    """Parent of every row, -1 for none, and the first row whose links are broken (or Q)."""
    row = tl.arange(0, Q)
    is_row = row < count
    is_bad = (child != -1) & ((child <= row) | (child >= count))
    is_bad |= (sibling != -1) & ((sibling <= row) | (sibling >= count))
    is_child = (child[:, None] == row[None, :]) & is_row[:, None]
    is_sibling = (sibling[:, None] == row[None, :]) & is_row[:, None]
    pointed = tl.sum(is_child.to(tl.int32) + is_sibling.to(tl.int32), axis=0)
    # Every row but the root has one link to it, and the root has no sibling.
    is_bad |= pointed != (row > 0).to(tl.int32)
    is_bad |= (row == 0) & (sibling != -1)
    first_bad = tl.min(tl.where(is_bad & is_row, row, Q), axis=0)
    parent = tl.max(tl.where(is_child, row[:, None], -1), axis=0)
    before = tl.max(tl.where(is_sibling, row[:, None], -1), axis=0)
    # Pointer doubling over earlier siblings: a round passes twice as many.
    for _ in range(ROUNDS):
        at = tl.maximum(before, 0)
        is_later = (parent < 0) & (before >= 0)
        parent = tl.where(is_later, tl.gather(parent, at, 0), parent)
        before = tl.where(is_later, tl.gather(before, at, 0), before)
    return parent, first_bad


@triton.jit(do_not_specialize=("n_rows", "depth"))
def _match_kernel(
    qo_indptr, tokens, first_child, next_sibling, target_tokens, index_out, count_out, bonus_out,
    status_out, detail_out, n_rows, depth, most,
    B: tl.constexpr, Q: tl.constexpr, D: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """The accepted root path of one request and the token after it."""
    request = tl.program_id(0)
    first, count, status, detail = request_span(qo_indptr, request, n_rows, most, B, True)
    row = tl.arange(0, Q)
    is_row = row < count
    token = tl.load(tokens + first + row, mask=is_row, other=0)
    target = tl.load(target_tokens + first + row, mask=is_row, other=0)
    child = tl.load(first_child + first + row, mask=is_row, other=-1)
    sibling = tl.load(next_sibling + first + row, mask=is_row, other=-1)
    parent, first_bad = _parents(child, sibling, count, Q, ROUNDS)
    status, detail = refuse(status, detail, BROKEN_TREE, first_bad < Q, first_bad.to(tl.int64))
    is_twin = (parent[:, None] == parent[None, :]) & (token[:, None] == token[None, :])
    is_twin &= (row[:, None] < row[None, :]) & (parent >= 0)[:, None] & is_row[None, :]
    has_twin = tl.max(is_twin.to(tl.int32), axis=1) > 0
    is_any, twin = first_where(has_twin & is_row, token, Q)
    status, detail = refuse(status, detail, DUPLICATE_SIBLING, is_any, twin)

    is_wanted = (parent >= 0) & is_row & (token == tl.gather(target, tl.maximum(parent, 0), 0))
    step = tl.arange(0, D)
    path = tl.where(step == 0, 0, -1)
    at = tl.zeros([], tl.int32)
    n_taken = tl.zeros([], tl.int32)
    after = tl.max(tl.where(is_wanted & (parent == 0), row, -1), axis=0)
    after = tl.where(status == 0, after, -1)
    while (after >= 0) & (n_taken < depth):
        n_taken += 1
        at = after
        path = tl.where(step == n_taken, at, path)
        after = tl.max(tl.where(is_wanted & (parent == at), row, -1), axis=0)
    status, detail = refuse(status, detail, TOO_DEEP, after >= 0, (depth + 1).to(tl.int64))
    is_some = (status == 0) & (count > 0)
    bonus = tl.sum(tl.where(row == at, target, 0), axis=0)
    tl.store(
        index_out + request * (depth + 1) + step,
        tl.where(is_some, path, -1).to(tl.int64),
        mask=step <= depth,
    )
    tl.store(count_out + request, tl.where(is_some, n_taken, 0).to(tl.int64))
    tl.store(bonus_out + request, tl.where(is_some, bonus, -1))
    tl.store(status_out + request, status)
    tl.store(detail_out + request, detail)


@takes_call
def draft_tree_reject_sample(call: RejectSample) -> dict[str, Tensor]:
    """K6, rule match: the accepted root path of each request and the token after it."""
    batch, device = call.qo_indptr.shape[0] - 1, call.qo_indptr.device
    outputs = {
        "accept_index": torch.empty(batch, call.tree_depth + 1, dtype=torch.int64, device=device),
        "accept_count": torch.empty(batch, dtype=torch.int64, device=device),
        "bonus_token": torch.empty(batch, dtype=torch.int64, device=device),
        **words(batch, device),
    }
    n_rows = call.draft_tokens.shape[0]
    most = tree_block(n_rows)
    if batch:
        _match_kernel[(batch,)](
            *contiguous(call.qo_indptr, call.draft_tokens, call.first_child_row),
            *contiguous(call.next_sibling_row, call.target_tokens), *outputs.values(),
            n_rows, call.tree_depth, MAX_VERIFY,
            B=MAX_BATCH, Q=most, D=block(call.tree_depth + 1, 16), ROUNDS=most.bit_length() - 1,
            num_warps=8 if most > 64 else 4,
        )  # fmt: skip
    return outputs
