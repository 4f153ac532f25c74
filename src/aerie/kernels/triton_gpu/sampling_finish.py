"""The end of the filters: one program a row, exact for any scores.

Sums of whole rows go block by block and those of lists are integers, so that a token depends on
its row alone and not on how a batch was cut into programs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aerie.kernels.triton_gpu.device import owner_of
from aerie.kernels.triton_gpu.noise import NO_ID, TOKENS, gumbel, noisy_best, words_from, words_of
from aerie.kernels.triton_gpu.sampling_order import (
    CLOSED,
    LISTED,
    RANK_BITS,
    TESTED,
    divisor_of,
    kth_rank,
    mass_of,
    option_of,
    rank_key,
    scores_at,
)

# In place of a further candidate: the one before stays, or rough sums cannot tell.
STAYS = tl.constexpr(-1)
UNSURE = tl.constexpr(-2)
# Rough sums closer than this to their bound decide nothing: ten times their error.
ROUGH_MARGIN = tl.constexpr(1e-4)
# Masses of a list are summed as integers, whose order does not matter: at most 2^11 of them.
MASS_UNIT = tl.constexpr(float(1 << 50))


@triton.jit
def judged(
    row, stage, value, share, least, peak, total, candidates, masses, values, ids, n_rows, n_parts,
    P: tl.constexpr,
):  # fmt: skip
    """The candidate after that of a stage, whose score is `value`; or STAYS, or UNSURE."""
    verdict = tl.load(candidates + stage * n_rows + row)
    if verdict >= 0:
        piece = tl.arange(0, P)
        place = (stage * n_rows + row) * n_parts + piece
        is_piece = piece < n_parts
        before = tl.sum(tl.load(masses + place, mask=is_piece, other=0.0), axis=0)
        best = tl.load(values + place, mask=is_piece, other=float("-inf"))
        found = tl.load(ids + place, mask=is_piece, other=NO_ID)
        following = tl.min(tl.where(best == tl.max(best, axis=0), found, NO_ID), axis=0)
        is_cut = (share < 1.0) & (before >= share * total)
        is_near = (share < 1.0) & (tl.abs(before - share * total) <= total * ROUGH_MARGIN)
        verdict = tl.where(is_near, UNSURE, tl.where(is_cut, following, STAYS))
        is_light = mass_of(value, peak) < tl.zeros([], tl.float64) + least
        verdict = tl.where(is_light, following, verdict)
    return verdict


@triton.jit
def _listed_token(
    values, ids, count, k, share, least, peak, seed, position, sample, L: tl.constexpr,
):  # fmt: skip
    """The token of a row whose best ids, k of them at least, are in a list of at most L."""
    entry = tl.arange(0, L)
    is_entry = entry < count
    x = tl.load(values + entry, mask=is_entry, other=float("-inf"))
    own = tl.load(ids + entry, mask=is_entry, other=0)
    key = rank_key(x, own, is_entry)
    bound = tl.zeros([], tl.int64)
    if count > k:
        high = tl.full([], 1, tl.int64) << RANK_BITS
        for _ in range(RANK_BITS):
            middle = (bound + high) >> 1
            is_reached = tl.sum((key >= middle).to(tl.int32), axis=0) >= k
            bound = tl.where(is_reached, middle, bound)
            high = tl.where(is_reached, high, middle)
    mass = mass_of(x, peak)
    weight = tl.where(key >= bound, (mass * MASS_UNIT).to(tl.int64), 0)
    enough = share * tl.sum(weight, axis=0).to(tl.float64)
    noisy = x + gumbel(words_of(own, seed, position, sample, TOKENS))
    alive = (key >= bound) & (mass >= tl.zeros([], tl.float64) + least)
    token = tl.full([], -1, tl.int32)
    while token < 0:
        best = tl.max(tl.where(alive, noisy, float("-inf")), axis=0)
        candidate = tl.min(tl.where(alive & (noisy == best), own, NO_ID), axis=0)
        at = tl.max(tl.where(is_entry & (own == candidate), key, -1), axis=0)
        before = tl.sum(tl.where(key > at, weight, 0), axis=0).to(tl.float64)
        token = tl.where((share >= 1.0) | (before < enough), candidate, token)
        alive &= key > at
    return token


@triton.jit
def _look(
    logits, scores, changed, tops, row, divisor, below, bound, least, peak, seed, position, sample,
    vocab, n_blocks, V: tl.constexpr,
):  # fmt: skip
    """Mass of the ids ranked above `below`, and the best of those that reach `bound` and min_p."""
    mass = tl.zeros([], tl.float64)
    best = tl.full([], float("-inf"), tl.float32)
    best_id = tl.full([], NO_ID, tl.int32)
    for tile in range(n_blocks):
        start = tile * V
        ids = start + tl.arange(0, V)
        if rank_key(tl.load(tops + row * n_blocks + tile), start, True) > below:
            x = scores_at(logits, scores, changed, row, ids, ids < vocab, divisor, vocab)
            key = rank_key(x, ids, ids < vocab)
            own = tl.where(key > below, mass_of(x, peak), 0.0)
            mass += tl.sum(own, axis=0)
            alive = (key > below) & (key >= bound) & (own >= tl.zeros([V], tl.float64) + least)
            word = words_from(start, seed, position, sample, V)
            x = tl.where(alive, x, float("-inf"))
            best, best_id = noisy_best(x, tl.max(x, axis=0), ids, word, best, best_id)
    return mass, best_id


@triton.jit
def _exact_token(
    logits, scores, changed, tops, row, divisor, k, share, least, peak, seed, position, sample,
    vocab, n_blocks, V: tl.constexpr,
):  # fmt: skip
    """The token of any row: pass after pass until a candidate stays."""
    bound = tl.zeros([], tl.int64)
    if (k > 0) & (k < vocab):
        bound = kth_rank(logits, scores, changed, row, divisor, k, vocab, n_blocks, V)
    below = bound - 1
    candidate = tl.full([], -1, tl.int32)
    token = tl.full([], -1, tl.int32)
    total = tl.zeros([], tl.float64)
    while token < 0:
        mass, following = _look(
            logits, scores, changed, tops, row, divisor, below, bound, least, peak, seed, position,
            sample, vocab, n_blocks, V,
        )  # fmt: skip
        # The first pass has no candidate before it, and looks at all that top-k keeps.
        total = tl.where(candidate < 0, mass, total)
        token = tl.where((share >= 1.0) | (mass < share * total), candidate, token)
        candidate = following
        is_id = following < vocab
        x = scores_at(logits, scores, changed, row, following, is_id, divisor, vocab)
        below = rank_key(x, following, is_id)
    return token


@triton.jit(do_not_specialize=("batch",))
def list_kernel(
    kinds, positions, qo_indptr, seed, sample_index, top_k, top_p, min_p, peaks, list_counts,
    list_values, list_ids, tokens_out, batch, B: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The token of one row whose list is whole."""
    row = tl.program_id(0)
    if tl.load(kinds + row) == LISTED:
        count = tl.load(list_counts + row)
        if count <= L:
            owner = owner_of(row, qo_indptr, batch, B)
            place = row.to(tl.int64) * L
            token = _listed_token(
                list_values + place, list_ids + place, count, tl.load(top_k + owner),
                option_of(top_p, owner, 1.0), option_of(min_p, owner, 0.0), tl.load(peaks + row),
                tl.load(seed + owner), tl.load(positions + row),
                option_of(sample_index, owner, 0), L,
            )  # fmt: skip
            tl.store(tokens_out + row, token.to(tl.int64))


@triton.jit(do_not_specialize=("batch", "n_rows", "n_parts", "n_blocks", "n_tests"))
def exact_kernel(
    kinds, logits, scores, changed, positions, temperature, qo_indptr, seed, sample_index, top_k,
    top_p, min_p, peaks, totals, tops, candidates, masses, values, ids, list_counts, tokens_out,
    batch, n_rows, vocab, n_parts, n_blocks, n_tests,
    V: tl.constexpr, B: tl.constexpr, P: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """The token of one row that is open still: its list is too long, or no candidate stayed."""
    row = tl.program_id(0)
    kind = tl.load(kinds + row)
    if kind != CLOSED:
        owner = owner_of(row, qo_indptr, batch, B)
        divisor = divisor_of(temperature, owner)
        peak = tl.load(peaks + row)
        share = option_of(top_p, owner, 1.0)
        least = option_of(min_p, owner, 0.0)
        is_open = kind == TESTED
        if list_counts is not None:
            is_open |= (kind == LISTED) & (tl.load(list_counts + row) > L)
        if masses is not None and kind == TESTED:
            last = n_tests - 1
            at = tl.load(candidates + last * n_rows + row)
            x = scores_at(logits, scores, changed, row, at, at >= 0, divisor, vocab)
            verdict = judged(
                row, last, x, share, least, peak, tl.load(totals + row), candidates, masses,
                values, ids, n_rows, n_parts, P,
            )  # fmt: skip
            is_open = verdict != STAYS
        if is_open:
            token = _exact_token(
                logits, scores, changed, tops, row, divisor, option_of(top_k, owner, 0), share,
                least, peak, tl.load(seed + owner), tl.load(positions + row),
                option_of(sample_index, owner, 0), vocab, n_blocks, V,
            )  # fmt: skip
            tl.store(tokens_out + row, token.to(tl.int64))
