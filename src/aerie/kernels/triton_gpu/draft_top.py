"""Triton R6: softmax over the whole draft vocabulary and its best K, streamed.

Two launches: statistics and the best K of every (row, part of the vocabulary), then their union.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.round_draft import BestChildren
from aerie.kernels.triton_gpu.overlap import overlapped, take_turn
from aerie.kernels.triton_gpu.verdict import softmax_join, softmax_step

# Both launches of 8 rows of 32,000 logits take 9.2 µs, in blocks of 2048 10.1 (H200, 2026-11).
VOCAB_BLOCK, MOST_PARTS = 1024, 64
K_BLOCK = 16


@triton.jit
def sortable(x, ids):
    """Value and id as one integer that grows with the value and falls with the id."""
    bits = x.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return (ordered << 32) | (0x7FFFFFFF - ids).to(tl.int64)


@triton.jit
def value_of(key):
    """The value of a key."""
    bits = (key >> 32).to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def id_of(key):
    """The id of a key."""
    return 0x7FFFFFFF - (key & 0x7FFFFFFF)


@triton.jit
def best_keys(key, best, top_k, K: tl.constexpr):
    """The `top_k` largest of a block's keys and of `best[K]`, which is descending."""
    place = tl.arange(0, K)
    found = tl.full([K], -(1 << 63), tl.int64)
    for rank in range(top_k):
        top = tl.maximum(tl.max(key, axis=0), tl.max(best, axis=0))
        found = tl.where(place == rank, top, found)
        key = tl.where(key == top, -(1 << 63), key)
        best = tl.where(best == top, -(1 << 63), best)
    return found


@triton.jit(do_not_specialize=("part_size", "n_parts", "top_k"))
def _part_kernel(
    logits, peaks_out, masses_out, keys_out, vocab, part_size, n_parts, top_k,
    V: tl.constexpr, K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Maximum, sum and best keys of one part of one row."""
    take_turn(OVERLAP)
    row = tl.program_id(0)
    part = tl.program_id(1)
    peak = tl.full([], float("-inf"), tl.float32)
    mass = tl.zeros([], tl.float64)
    best = tl.full([K], -(1 << 63), tl.int64)
    for start in range(part * part_size, tl.minimum((part + 1) * part_size, vocab), V):
        ids = start + tl.arange(0, V)
        x = tl.load(logits + row.to(tl.int64) * vocab + ids, mask=ids < vocab, other=float("-inf"))
        x = x.to(tl.float32)
        # What is not finite would hide the rest of its row: it counts as impossible. Adding 0 makes
        # one number of both zeros, whose bits differ.
        x = tl.where(tl.abs(x) < float("inf"), x + 0.0, float("-inf"))
        peak, mass = softmax_step(x, peak, mass)
        key = tl.where(ids < vocab, sortable(x, ids), -(1 << 63))
        best = best_keys(key, best, top_k, K)
    place = row * n_parts + part
    tl.store(peaks_out + place, peak)
    tl.store(masses_out + place, mass)
    tl.store(keys_out + place * K + tl.arange(0, K), best)


@triton.jit(do_not_specialize=("n_parts", "top_k"))
def _join_kernel(
    peaks, masses, keys, token_map, probas_out, tokens_out, n_parts, top_k,
    MAPPED: tl.constexpr, S: tl.constexpr, K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Best of all parts of one row, with their probabilities and target ids."""
    take_turn(OVERLAP)
    row = tl.program_id(0)
    piece = tl.arange(0, S)
    place = row * n_parts + piece
    peak, mass = softmax_join(
        tl.load(peaks + place, mask=piece < n_parts, other=float("-inf")),
        tl.load(masses + place, mask=piece < n_parts, other=0.0),
    )
    entry = tl.arange(0, S * K)
    key = tl.load(keys + row * n_parts * K + entry, mask=entry < n_parts * K, other=-(1 << 63))
    best = best_keys(key, tl.full([K], -(1 << 63), tl.int64), top_k, K)
    rank = tl.arange(0, K)
    is_rank = rank < top_k
    # Without a finite logit the differences would be NaN, and the sum is 0.
    base = tl.where(peak == float("-inf"), 0.0, peak)
    raised = tl.exp(value_of(best).to(tl.float64) - base.to(tl.float64))
    proba = tl.where(mass > 0, raised / mass, 0.0).to(tl.float32)
    token = id_of(best)
    if MAPPED:
        token = tl.load(token_map + token, mask=is_rank, other=0)
    tl.store(probas_out + row * top_k + rank, proba, mask=is_rank)
    tl.store(tokens_out + row * top_k + rank, token, mask=is_rank)


@takes_call
def best_draft_children(call: BestChildren) -> dict[str, Tensor]:
    """R6: the most probable tokens of every row."""
    (n_rows, vocab), device, ids = call.logits.shape, call.logits.device, call.hot_token_id
    n_blocks = triton.cdiv(vocab, VOCAB_BLOCK)
    blocks_each = triton.cdiv(n_blocks, MOST_PARTS)
    n_parts = triton.cdiv(n_blocks, blocks_each)
    peaks = torch.empty(n_rows, n_parts, device=device)
    masses = torch.empty(n_rows, n_parts, dtype=torch.float64, device=device)
    keys = torch.empty(n_rows, n_parts, K_BLOCK, dtype=torch.int64, device=device)
    probas = torch.empty(n_rows, call.node_top_k, device=device)
    tokens = torch.empty(n_rows, call.node_top_k, dtype=torch.int64, device=device)
    if n_rows:
        _part_kernel[(n_rows, n_parts)](
            call.logits.contiguous(), peaks, masses, keys, vocab, blocks_each * VOCAB_BLOCK,
            n_parts, call.node_top_k, V=VOCAB_BLOCK, K=K_BLOCK, **overlapped(call.logits),
        )  # fmt: skip
        _join_kernel[(n_rows,)](
            peaks, masses, keys, tokens if ids is None else ids.contiguous(), probas, tokens,
            n_parts, call.node_top_k, MAPPED=ids is not None, S=triton.next_power_of_2(n_parts),
            K=K_BLOCK, **overlapped(call.logits),
        )  # fmt: skip
    return {"topk_probas": probas, "topk_tokens": tokens}
