"""The first launches of `sample_target_tokens`: scores and their best, then tokens and refusals."""

from __future__ import annotations

import triton
import triton.language as tl

from aerie.kernels.triton_gpu.device import (
    ALL_MASKED,
    BAD_PARAMETER,
    NOT_FINITE,
    OUT_OF_RANGE,
    first_where,
    owner_of,
    refuse,
    request_span,
)
from aerie.kernels.triton_gpu.noise import NO_ID, noisy_best, words_from
from aerie.kernels.triton_gpu.sampling_order import (
    CLOSED,
    GREEDY_TEMPERATURE,
    LISTED,
    divisor_of,
    kind_of,
    option_of,
    rough_exp,
    scores_at,
)
from aerie.kernels.triton_gpu.sampling_scores import foreign_on_path


@triton.jit
def _plain_best(x, top, ids, best, best_id):
    """The larger of a running best and a block's, whose ids are all above those seen so far."""
    if top > best:
        best_id = tl.min(tl.where(x == top, ids, NO_ID), axis=0)
    return tl.maximum(best, top), best_id


@triton.jit(do_not_specialize=("batch", "part_blocks", "n_parts", "n_groups", "n_blocks"))
def scan_kernel(
    logits, scores, changed, positions, temperature, qo_indptr, seed, sample_index, top_k, top_p,
    min_p, part_values_out, part_ids_out, part_bad_out, part_peaks_out, part_masses_out, tops_out,
    groups_out, kinds_out, tokens_out, batch, vocab, part_blocks, n_parts, n_groups, n_blocks,
    V: tl.constexpr, G: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The best of one part of one row, with noise where it is sampled, and what filters ask for."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    owner = owner_of(row, qo_indptr, batch, B)
    if part == 0:
        tl.store(tokens_out + row, -1)
        if kinds_out is not None:
            tl.store(kinds_out + row, CLOSED)
    if owner < B:
        divisor = None
        if seed is not None:
            divisor = divisor_of(temperature, owner)
        is_hot = tl.load(temperature + owner) >= GREEDY_TEMPERATURE
        kind = kind_of(owner, temperature, top_k, top_p, min_p, vocab)
        position = tl.load(positions + row)
        best = tl.full([], float("-inf"), tl.float32)
        best_id = tl.zeros([], tl.int32)
        is_bad = tl.zeros([], tl.int32)
        peak = tl.full([], float("-inf"), tl.float32)
        mass = tl.zeros([], tl.float32)
        for tile in range(part * part_blocks, tl.minimum((part + 1) * part_blocks, n_blocks)):
            start = tile * V
            ids = start + tl.arange(0, V)
            x = scores_at(logits, scores, changed, row, ids, ids < vocab, divisor, vocab)
            top = tl.max(tl.where(x == x, x, float("inf")), axis=0)
            if top == float("inf"):
                is_bad = tl.full([], 1, tl.int32)
            elif seed is None:
                best, best_id = _plain_best(x, top, ids, best, best_id)
            elif is_hot & (kind != LISTED):
                sample = option_of(sample_index, owner, 0)
                word = words_from(start, tl.load(seed + owner), position, sample, V)
                best, best_id = noisy_best(x, top, ids, word, best, best_id)
            else:
                best, best_id = _plain_best(x, top, ids, best, best_id)
            if kinds_out is not None and kind != CLOSED:
                tl.store(tops_out + row * n_blocks + tile, top)
                if groups_out is not None and kind == LISTED:
                    group = start // G + tl.arange(0, V // G)
                    highest = tl.max(tl.reshape(x, [V // G, G]), axis=1)
                    place = row * n_groups + group
                    tl.store(groups_out + place, highest, mask=group < n_groups)
                elif option_of(top_p, owner, 1.0) < 1.0:
                    above = tl.maximum(peak, top)
                    mass = mass * rough_exp(peak, above)
                    mass += tl.sum(rough_exp(x, above), axis=0)
                peak = tl.maximum(peak, top)
        place = row * n_parts + part
        tl.store(part_values_out + place, best)
        tl.store(part_ids_out + place, best_id)
        tl.store(part_bad_out + place, is_bad)
        if kinds_out is not None:
            tl.store(part_peaks_out + place, peak)
            tl.store(part_masses_out + place, mass)


@triton.jit
def _is_possible(
    request, temperature, seed, top_k, top_p, min_p, repetition, presence, frequency,
):  # fmt: skip
    """Whether every option of a request lies in its range; NaN fails each comparison."""
    heat = tl.load(temperature + request)
    is_fine = (heat >= 0) & (heat < float("inf"))
    if seed is None:
        is_fine &= heat < GREEDY_TEMPERATURE
    if top_k is not None:
        is_fine &= tl.load(top_k + request) >= 0
    share = option_of(top_p, request, 1.0)
    is_fine &= (share > 0.0) & (share <= 1.0)
    least = option_of(min_p, request, 0.0)
    is_fine &= (least >= 0.0) & (least <= 1.0)
    factor = option_of(repetition, request, 1.0)
    is_fine &= (factor > 0.0) & (factor < float("inf"))
    if presence is not None:
        is_fine &= tl.abs(tl.load(presence + request)) < float("inf")
    if frequency is not None:
        is_fine &= tl.abs(tl.load(frequency + request)) < float("inf")
    return is_fine


@triton.jit(do_not_specialize=("n_rows", "n_parts"))
def choose_kernel(
    part_values, part_ids, part_bad, part_peaks, part_masses, temperature, qo_indptr, seed, top_k,
    top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, draft_tokens,
    ancestor_bits, tokens_out, kinds_out, candidates_out, peaks_out, totals_out, status_out,
    detail_out, n_rows, vocab, n_parts,
    B: tl.constexpr, Q: tl.constexpr,
):  # fmt: skip
    """Best of each row of one request, and why the request is refused if it is."""
    request = tl.program_id(0)
    first, count, status, detail = request_span(qo_indptr, request, n_rows, Q, B, True)
    is_possible = _is_possible(
        request, temperature, seed, top_k, top_p, min_p, repetition_penalty, presence_penalty,
        frequency_penalty,
    )  # fmt: skip
    status, detail = refuse(status, detail, BAD_PARAMETER, is_possible == 0, 0)
    if draft_tokens is not None:
        is_any, token = foreign_on_path(first, count, draft_tokens, ancestor_bits, vocab, Q)
        status, detail = refuse(status, detail, OUT_OF_RANGE, is_any, token)
    row = first + tl.arange(0, Q)
    is_row = tl.arange(0, Q) < count
    best = tl.full([Q], float("-inf"), tl.float32)
    best_id = tl.zeros([Q], tl.int32)
    is_bad = tl.zeros([Q], tl.int32)
    peak = tl.full([Q], float("-inf"), tl.float32)
    total = tl.zeros([Q], tl.float32)
    # Unrolled: a loop of loads that wait for one another took longer than the scan of a row.
    for part in tl.range(n_parts, loop_unroll_factor=8):
        place = row * n_parts + part
        value = tl.load(part_values + place, mask=is_row, other=float("-inf"))
        found = tl.load(part_ids + place, mask=is_row, other=0)
        is_bad |= tl.load(part_bad + place, mask=is_row, other=0)
        # Later parts hold higher ids, so an equal value does not displace.
        best_id = tl.where(value > best, found, best_id)
        best = tl.maximum(best, value)
        if part_peaks is not None:
            top = tl.load(part_peaks + place, mask=is_row, other=float("-inf"))
            above = tl.maximum(peak, top)
            mass = tl.load(part_masses + place, mask=is_row, other=0.0)
            total = total * rough_exp(peak, above) + mass * rough_exp(top, above)
            peak = above
    is_any, bad_row = first_where(is_row & (is_bad > 0), row, Q)
    status, detail = refuse(status, detail, NOT_FINITE, is_any, bad_row)
    is_any, masked_row = first_where(is_row & (best == float("-inf")), row, Q)
    status, detail = refuse(status, detail, ALL_MASKED, is_any, masked_row)
    is_fine = is_row & (status == 0)
    tl.store(tokens_out + row, best_id.to(tl.int64), mask=is_fine)
    if part_peaks is not None:
        kind = tl.zeros([Q], tl.int32) + kind_of(request, temperature, top_k, top_p, min_p, vocab)
        tl.store(kinds_out + row, kind, mask=is_fine)
        tl.store(candidates_out + row, best_id, mask=is_fine)
        tl.store(peaks_out + row, peak, mask=is_fine)
        tl.store(totals_out + row, total, mask=is_fine)
    tl.store(status_out + request, status)
    tl.store(detail_out + request, detail)
