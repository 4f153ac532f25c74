"""What a request adds to its logits before the temperature: penalties, bias, the floor of stops.

Arrays that a call leaves out are None, and what would read them is not compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aerie.kernels.triton_gpu.device import FAR, owner_of
from aerie.kernels.triton_gpu.sampling_order import divisor_of, option_of


@triton.jit(do_not_specialize=("part_blocks", "n_parts", "n_blocks"))
def bias_kernel(
    logit_bias, qo_indptr, biased_out, vocab, part_blocks, n_parts, n_blocks, V: tl.constexpr,
):  # fmt: skip
    """Whether one part of a request's bias holds anything but zeros: most requests have none."""
    request = tl.program_id(0)
    part = tl.program_id(1)
    found = tl.zeros([], tl.int32)
    if tl.load(qo_indptr + request + 1) > tl.load(qo_indptr + request):
        row = logit_bias + request.to(tl.int64) * vocab
        for tile in range(part * part_blocks, tl.minimum((part + 1) * part_blocks, n_blocks)):
            start = tile * V
            ids = start + tl.arange(0, V)
            bias = tl.load(row + ids, mask=ids < vocab, other=0.0)
            found |= tl.max((bias != 0).to(tl.int32), axis=0)
    tl.store(biased_out + request * n_parts + part, found)


@triton.jit
def _has_penalty(request, repetition, presence, frequency):
    """Whether any penalty of a request is not neutral."""
    is_some = option_of(repetition, request, 1.0) != 1.0
    is_some |= option_of(presence, request, 0.0) != 0.0
    is_some |= option_of(frequency, request, 0.0) != 0.0
    return is_some


@triton.jit
def _has_bias(biased, request, n_parts, P: tl.constexpr):
    """Whether a request's bias holds anything but zeros."""
    piece = tl.arange(0, P)
    found = tl.load(biased + request * n_parts + piece, mask=piece < n_parts, other=0)
    return tl.max(found, axis=0) > 0


@triton.jit
def _is_short(position, floor):
    """Whether the token after a position stands before the floor."""
    # Not the second comparison alone: behind int64's largest position comes its smallest.
    return (position < floor) & (position + 1 < floor)


@triton.jit
def _path_tokens(row, owner, n_rows, qo_indptr, draft_tokens, ancestor_bits, Q: tl.constexpr):
    """Tokens of a flat row's ancestors and itself, -1 for every other row. [Q]"""
    first = tl.load(qo_indptr + owner)
    slot = tl.arange(0, Q)
    flat = first + slot
    # Row 0 is committed and in the counts. A broken layout may point anywhere.
    is_row = (slot > 0) & (flat < tl.load(qo_indptr + owner + 1)) & (flat >= 0) & (flat < n_rows)
    word = tl.load(ancestor_bits + row * 4 + slot // 32, mask=is_row, other=0)
    is_on = is_row & (((word >> (slot % 32)) & 1) > 0)
    return tl.load(draft_tokens + flat, mask=is_on, other=-1)


@triton.jit
def _stops_of(request, stop_tokens, n_stops, S: tl.constexpr):
    """The stop tokens of a request, -1 behind the last. [S]"""
    entry = tl.arange(0, S)
    return tl.load(stop_tokens + request * n_stops + entry, mask=entry < n_stops, other=-1)


@triton.jit
def _next_of(tokens, after):
    """The least of `tokens` above `after`, or FAR."""
    return tl.min(tl.where(tokens > after, tokens, FAR), axis=0)


@triton.jit
def _penalised(
    x, start, base, is_id, path, repetition, presence, frequency, prompt_counts, output_counts,
    request, V: tl.constexpr,
):  # fmt: skip
    """Scores of the ids from `start` on after the three penalties, each step rounded to float32.

    `base` are the places of these ids in the tables of counts. The launch must forbid fused
    multiply-adds: the product of penalty and count is rounded before it is subtracted.
    """
    ids = start + tl.arange(0, V)
    produced = tl.zeros([V], tl.int64)
    if output_counts is not None:
        produced += tl.load(output_counts + base, mask=is_id, other=0)
    if path is not None:
        # A block seldom holds a token of the path: one step for each that it does.
        token = _next_of(path, start - 1)
        while token < start + V:
            n_times = tl.sum((path == token).to(tl.int64), axis=0)
            produced += tl.where(ids == token, n_times, 0)
            token = _next_of(path, token)
    if repetition is not None:
        seen = produced > 0
        if prompt_counts is not None:
            seen |= tl.load(prompt_counts + base, mask=is_id, other=0) > 0
        penalty = tl.load(repetition + request)
        shrunk = tl.where(x > 0, tl.div_rn(x, tl.zeros([V], tl.float32) + penalty), x * penalty)
        x = tl.where(seen, shrunk, x)
    if frequency is not None:
        x = x - tl.load(frequency + request) * produced.to(tl.float32)
    if presence is not None:
        x = x - tl.where(produced > 0, tl.load(presence + request), 0.0)
    return x


@triton.jit
def _without_stops(x, start, stops, V: tl.constexpr):
    """-inf at those of the ids from `start` on that `stops[S]` holds."""
    ids = start + tl.arange(0, V)
    token = _next_of(stops, start - 1)
    while token < start + V:
        x = tl.where(ids == token, float("-inf"), x)
        token = _next_of(stops, token)
    return x


@triton.jit(do_not_specialize=("batch", "n_rows", "n_stops", "part_blocks", "n_parts", "n_blocks"))
def change_kernel(
    logits, positions, temperature, qo_indptr, repetition_penalty, presence_penalty,
    frequency_penalty, prompt_counts, output_counts, logit_bias, biased, draft_tokens,
    ancestor_bits, stop_tokens, floor_position, scores_out, changed_out, batch, n_rows, vocab,
    n_stops, part_blocks, n_parts, n_blocks,
    V: tl.constexpr, B: tl.constexpr, P: tl.constexpr, Q: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """Scores of one part of one row, if its request changes any: later passes read them."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    owner = owner_of(row, qo_indptr, batch, B)
    if owner < B:
        is_penalised = _has_penalty(owner, repetition_penalty, presence_penalty, frequency_penalty)
        is_biased = False
        if logit_bias is not None:
            is_biased = _has_bias(biased, owner, n_parts, P)
        is_barred = False
        if stop_tokens is not None:
            is_barred = _is_short(tl.load(positions + row), tl.load(floor_position + owner))
        is_changed = is_penalised | is_biased | is_barred
        tl.store(changed_out + row, is_changed.to(tl.int32))
        if is_changed:
            path = None
            if draft_tokens is not None:
                path = _path_tokens(row, owner, n_rows, qo_indptr, draft_tokens, ancestor_bits, Q)
            divisor = tl.zeros([V], tl.float32) + divisor_of(temperature, owner)
            for tile in range(part * part_blocks, tl.minimum((part + 1) * part_blocks, n_blocks)):
                start = tile * V
                ids = start + tl.arange(0, V)
                is_id = ids < vocab
                at = row.to(tl.int64) * vocab + ids
                own = owner.to(tl.int64) * vocab + ids
                x = tl.load(logits + at, mask=is_id, other=float("-inf"))
                if is_penalised:
                    x = _penalised(
                        x, start, own, is_id, path, repetition_penalty, presence_penalty,
                        frequency_penalty, prompt_counts, output_counts, owner, V,
                    )  # fmt: skip
                if logit_bias is not None and is_biased:
                    x += tl.load(logit_bias + own, mask=is_id, other=0.0)
                if stop_tokens is not None and is_barred:
                    x = _without_stops(x, start, _stops_of(owner, stop_tokens, n_stops, S), V)
                tl.store(scores_out + at, tl.div_rn(x, divisor), mask=is_id)


@triton.jit
def foreign_on_path(first, count, draft_tokens, ancestor_bits, vocab, Q: tl.constexpr):
    """Whether a path of a request holds a token outside the vocabulary, and the first of them."""
    slot = tl.arange(0, Q)
    row = first + slot
    is_row = slot < count
    token = tl.load(draft_tokens + row, mask=is_row, other=0)
    is_foreign = is_row & (slot > 0) & ((token < 0) | (token >= vocab))
    is_hit = tl.zeros([Q], tl.int32)
    for word in tl.static_range(4):
        bit = tl.where(is_foreign & (slot // 32 == word), 1 << (slot % 32), 0)
        # Each bit stands once, so their sum is their union.
        wanted = tl.sum(bit, axis=0)
        ancestors = tl.load(ancestor_bits + row * 4 + word, mask=is_row, other=0)
        is_hit |= ((ancestors & wanted) != 0).to(tl.int32)
    first_hit = tl.min(tl.where(is_hit > 0, slot, Q), axis=0)
    # The lowest ancestor of the first such row.
    place = (first + first_hit) * 4 + slot // 32
    ancestors = tl.load(ancestor_bits + place, mask=is_foreign & (first_hit < Q), other=0)
    is_it = is_foreign & (((ancestors >> (slot % 32)) & 1) > 0)
    lowest = tl.min(tl.where(is_it, slot, Q), axis=0)
    return lowest < Q, tl.sum(tl.where(slot == lowest, token, 0), axis=0)
