"""Triton R17: tokens whose choice numerics may turn, streamed over the vocabulary.

What the filters keep is a prefix of the order (value descending, id ascending). So of the ids that
come close enough to a token, the first in that order is kept if any is, and no other is asked
about. `scan` finds it in every (entry, part of the vocabulary), `weigh` what stands before it where
a filter may drop it, `judge` joins the parts. Programs of unused entries end at once; noise is made
exactly only where a rough sum comes close, which few do.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from aerie.kernels.call import takes_call
from aerie.kernels.cards.scores import NearTies
from aerie.kernels.triton_gpu.launch import launch
from aerie.kernels.triton_gpu.noise import (
    NO_ID,
    TOKENS,
    gumbel,
    rough_error,
    rough_gumbel,
    words_from,
    words_of,
)
from aerie.kernels.triton_gpu.sampling import change, parts_of, prepared
from aerie.kernels.triton_gpu.sampling_order import (
    CLOSED,
    GREEDY_TEMPERATURE,
    divisor_of,
    kind_of,
    kth_rank,
    mass_of,
    option_of,
    rank_key,
    scores_at,
)

EXPONENT = tl.constexpr(0x7F800000)
# No noise is above that of the word 0: 22.88.
MOST_NOISE = tl.constexpr(22.9)


@triton.jit
def _used_row(entry, rows, tokens, n_rows, vocab):
    """Row and token of an entry, and whether it is used."""
    row = tl.load(rows + entry)
    token = tl.load(tokens + entry)
    is_used = (row >= 0) & (row < n_rows) & (token >= 0) & (token < vocab)
    return tl.where(is_used, row, 0), tl.where(is_used, token, 0).to(tl.int32), is_used


@triton.jit
def _first_close(entry, part_values, part_ids, n_parts, P: tl.constexpr):
    """The score and id of the first in order of what comes close; NO_ID where nothing does."""
    piece = tl.arange(0, P)
    place = entry * n_parts + piece
    value = tl.load(part_values + place, mask=piece < n_parts, other=float("-inf"))
    found = tl.load(part_ids + place, mask=piece < n_parts, other=NO_ID)
    top = tl.max(value, axis=0)
    return top, tl.min(tl.where(value == top, found, NO_ID), axis=0)


@triton.jit
def _closer(x, is_close, ids, best, best_id):
    """The first in order of a running best and a block's, whose ids are above those seen."""
    top = tl.max(tl.where(is_close, x, float("-inf")), axis=0)
    if top > best:
        best_id = tl.min(tl.where(is_close & (x == top), ids, NO_ID), axis=0)
    return tl.maximum(best, top), best_id


@triton.jit(do_not_specialize=("n_rows", "run", "part_blocks", "n_parts", "n_blocks"))
def _scan_kernel(
    logits, scores, changed, positions, temperature, seed, sample_index, rows, tokens, limit,
    part_values_out, part_ids_out, part_peaks_out, n_rows, vocab, run, part_blocks, n_parts,
    n_blocks, V: tl.constexpr,
):  # fmt: skip
    """The first id of one part of an entry's row whose sum comes close to the token's."""
    entry = tl.program_id(0)
    part = tl.program_id(1)
    row, token, is_used = _used_row(entry, rows, tokens, n_rows, vocab)
    best = tl.full([], float("-inf"), tl.float32)
    best_id = tl.full([], NO_ID, tl.int32)
    if is_used:
        request = entry // run
        heat = tl.load(temperature + request)
        divisor = None
        if seed is not None:
            divisor = divisor_of(temperature, request)
        is_hot = heat >= GREEDY_TEMPERATURE
        logit = tl.load(logits + row * vocab + token)
        power = (logit.to(tl.int32, bitcast=True) & EXPONENT).to(tl.float32, bitcast=True)
        reach = tl.load(limit + request) * power
        own = scores_at(logits, scores, changed, row, token, True, divisor, vocab)
        position = tl.load(positions + row)
        sample = option_of(sample_index, request, 0)
        if seed is not None and is_hot:
            reach = tl.div_rn(reach, heat)
            own += gumbel(words_of(token, tl.load(seed + request), position, sample, TOKENS))
        floor = own - reach
        peak = tl.full([], float("-inf"), tl.float32)
        for tile in range(part * part_blocks, tl.minimum((part + 1) * part_blocks, n_blocks)):
            start = tile * V
            ids = start + tl.arange(0, V)
            x = scores_at(logits, scores, changed, row, ids, ids < vocab, divisor, vocab)
            top = tl.max(x, axis=0)
            peak = tl.maximum(peak, top)
            is_other = (ids != token) & (x > float("-inf"))
            if seed is None:
                best, best_id = _closer(x, is_other & (x >= floor) & (x <= own), ids, best, best_id)
            elif is_hot:
                most = top + MOST_NOISE
                if most + rough_error(most) >= floor:
                    word = words_from(start, tl.load(seed + request), position, sample, V)
                    rough = x + rough_gumbel(word)
                    is_able = is_other & (rough >= floor - rough_error(rough))
                    is_able &= rough <= own + rough_error(rough)
                    if tl.max(is_able.to(tl.int32), axis=0) > 0:
                        sums = x + gumbel(word)
                        is_close = is_able & (sums >= floor) & (sums <= own)
                        best, best_id = _closer(x, is_close, ids, best, best_id)
            else:
                best, best_id = _closer(x, is_other & (x >= floor) & (x <= own), ids, best, best_id)
        if part_peaks_out is not None:
            tl.store(part_peaks_out + entry * n_parts + part, peak)
    tl.store(part_values_out + entry * n_parts + part, best)
    tl.store(part_ids_out + entry * n_parts + part, best_id)


@triton.jit
def _peak_of(entry, part_peaks, n_parts, P: tl.constexpr):
    """The highest score of an entry's row."""
    piece = tl.arange(0, P)
    found = tl.load(part_peaks + entry * n_parts + piece, mask=piece < n_parts, other=float("-inf"))
    return tl.max(found, axis=0)


@triton.jit(do_not_specialize=("n_rows", "run", "part_blocks", "n_parts", "n_blocks"))
def _weigh_kernel(
    logits, scores, changed, temperature, top_k, top_p, min_p, rows, tokens, part_values, part_ids,
    part_peaks, part_counts_out, part_befores_out, part_totals_out, n_rows, vocab, run,
    part_blocks, n_parts, n_blocks, V: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Of one part: how many ids stand before the close one, their mass, and that of all."""
    entry = tl.program_id(0)
    part = tl.program_id(1)
    request = entry // run
    row, _, is_used = _used_row(entry, rows, tokens, n_rows, vocab)
    value, first = _first_close(entry, part_values, part_ids, n_parts, P)
    kind = kind_of(request, temperature, top_k, top_p, min_p, vocab)
    if is_used & (first < NO_ID) & (kind != CLOSED):
        divisor = divisor_of(temperature, request)
        peak = _peak_of(entry, part_peaks, n_parts, P)
        count = tl.zeros([], tl.int32)
        before = tl.zeros([], tl.float64)
        total = tl.zeros([], tl.float64)
        for tile in range(part * part_blocks, tl.minimum((part + 1) * part_blocks, n_blocks)):
            ids = tile * V + tl.arange(0, V)
            x = scores_at(logits, scores, changed, row, ids, ids < vocab, divisor, vocab)
            mass = mass_of(x, peak)
            is_before = (x > value) | ((x == value) & (ids < first))
            count += tl.sum(is_before.to(tl.int32), axis=0)
            before += tl.sum(tl.where(is_before, mass, 0.0), axis=0)
            total += tl.sum(mass, axis=0)
        place = entry * n_parts + part
        tl.store(part_counts_out + place, count)
        tl.store(part_befores_out + place, before)
        tl.store(part_totals_out + place, total)


@triton.jit
def _best_mass(
    logits, scores, changed, row, divisor, k, peak, vocab, n_blocks, V: tl.constexpr,
):  # fmt: skip
    """Mass of the k best of a row."""
    bound = kth_rank(logits, scores, changed, row, divisor, k, vocab, n_blocks, V)
    total = tl.zeros([], tl.float64)
    for tile in range(n_blocks):
        ids = tile * V + tl.arange(0, V)
        x = scores_at(logits, scores, changed, row, ids, ids < vocab, divisor, vocab)
        is_best = rank_key(x, ids, ids < vocab) >= bound
        total += tl.sum(tl.where(is_best, mass_of(x, peak), 0.0), axis=0)
    return total


@triton.jit(do_not_specialize=("n_rows", "run", "n_parts", "n_blocks"))
def _judge_kernel(
    logits, scores, changed, temperature, top_k, top_p, min_p, rows, tokens, part_values, part_ids,
    part_peaks, part_counts, part_befores, part_totals, near_out, n_rows, vocab, run, n_parts,
    n_blocks, V: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """Whether one entry is a near tie."""
    entry = tl.program_id(0)
    request = entry // run
    row, _, is_used = _used_row(entry, rows, tokens, n_rows, vocab)
    value, first = _first_close(entry, part_values, part_ids, n_parts, P)
    is_near = is_used & (first < NO_ID)
    if part_counts is not None:
        kind = kind_of(request, temperature, top_k, top_p, min_p, vocab)
        if is_near & (kind != CLOSED):
            piece = tl.arange(0, P)
            place = entry * n_parts + piece
            is_piece = piece < n_parts
            count = tl.sum(tl.load(part_counts + place, mask=is_piece, other=0), axis=0)
            before = tl.sum(tl.load(part_befores + place, mask=is_piece, other=0.0), axis=0)
            total = tl.sum(tl.load(part_totals + place, mask=is_piece, other=0.0), axis=0)
            peak = _peak_of(entry, part_peaks, n_parts, P)
            k = option_of(top_k, request, 0).to(tl.int64)
            share = option_of(top_p, request, 1.0)
            least = option_of(min_p, request, 0.0)
            is_cut = (k > 0) & (k < vocab)
            is_near &= (is_cut == 0) | (count < k)
            is_near &= mass_of(value, peak) >= tl.zeros([], tl.float64) + least
            # Rare: both filters, and a close id among the best.
            if is_near & is_cut & (share < 1.0):
                divisor = divisor_of(temperature, request)
                total = _best_mass(
                    logits, scores, changed, row, divisor, k, peak, vocab, n_blocks, V
                )
            is_near &= (share >= 1.0) | (before < share * total)
    tl.store(near_out + entry, is_near.to(tl.uint8))


@takes_call
def find_near_ties(call: NearTies) -> dict[str, Tensor]:
    """R17: the first of what comes close to each token, and whether the filters keep it."""
    (batch, run), n_rows, device = call.rows.shape, call.logits.shape[0], call.logits.device
    near = torch.empty((batch, run), dtype=torch.bool, device=device)
    named = prepared(call)
    if not batch or not n_rows:
        return {"near_ties": near.fill_(False)}
    change(named)
    is_filtered = named["kinds"] is not None
    # A round emits few of the tokens it may: programs of unused entries end at once.
    n_parts, part_size = parts_of(batch, named["vocab"], named["V"])
    named |= {
        "rows": call.rows.contiguous(), "tokens": call.tokens.contiguous(),
        "limit": call.limit.contiguous(), "near": near.view(torch.uint8), "run": run,
        "n_parts": n_parts,
        "part_blocks": part_size // named["V"],
        **_parts(batch * run * n_parts, is_filtered, device),
    }  # fmt: skip
    by_part = (batch * run, n_parts)
    launch(_scan_kernel, by_part, named, num_warps=named["warps"])
    if is_filtered:
        launch(_weigh_kernel, by_part, named, num_warps=named["warps"])
    launch(_judge_kernel, by_part[:1], named, num_warps=1)
    return {"near_ties": near}


def _parts(size: int, is_filtered: bool, device: torch.device) -> dict[str, Any]:
    """Room for what one launch finds of each part and another joins."""
    wanted = {
        "part_values": (True, torch.float32),
        "part_ids": (True, torch.int32),
        "part_peaks": (is_filtered, torch.float32),
        "part_counts": (is_filtered, torch.int32),
        "part_befores": (is_filtered, torch.float64),
        "part_totals": (is_filtered, torch.float64),
    }
    return {
        name: torch.empty(size, dtype=dtype, device=device) if is_there else None
        for name, (is_there, dtype) in wanted.items()
    }
