"""top-k, top-p and min-p on the device, without a sort: a candidate is drawn, then judged.

The best token with noise is drawn among all ids. If a filter drops it, so it does with everything
ranked behind it, and the best among the ids before it is the next candidate: the first that stays
is the token, for the noise of an id does not depend on the others. A candidate of top-p stays with
a chance of at least p, so few are needed. The whole chip judges four, with rough sums; `finish` has
one program a row, takes the others and those too near their bound, and is exact for any scores.

top-k comes first: the k best lie in the k groups of 128 ids with the highest maxima, so the k-th of
these maxima is a bound that few others reach. What reaches it is listed, and one program finds the
k-th rank, the sums and the token in its registers. Longer lists, of equal scores or of a very large
k, are for the exact end of `finish` too.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from aerie.kernels.triton_gpu.device import owner_of
from aerie.kernels.triton_gpu.launch import launch
from aerie.kernels.triton_gpu.noise import NO_ID, noisy_best, words_from
from aerie.kernels.triton_gpu.sampling_finish import exact_kernel, judged, list_kernel
from aerie.kernels.triton_gpu.sampling_order import (
    LISTED,
    TESTED,
    divisor_of,
    option_of,
    order_key,
    rough_exp,
    scores_at,
)

# By how much a rough logarithm of min_p may be too high.
LOG_MARGIN = tl.constexpr(1e-3)


@triton.jit(do_not_specialize=("batch", "n_groups"))
def _select_kernel(
    kinds, groups, qo_indptr, top_k, bounds_out, list_counts_out, batch, n_groups,
    M: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The k-th highest maximum of a row's groups: k ids reach it at least."""
    row = tl.program_id(0)
    if tl.load(kinds + row) == LISTED:
        k = tl.load(top_k + owner_of(row, qo_indptr, batch, B))
        group = tl.arange(0, M)
        top = tl.load(groups + row * n_groups + group, mask=group < n_groups, other=float("-inf"))
        # Halving the span of the keys: k groups reach `low`, fewer reach `high`. With fewer groups
        # than k, every id reaches the lowest key there is.
        key = tl.where(group < n_groups, order_key(top), -(1 << 31)).to(tl.int64)
        low = tl.full([], -(1 << 31), tl.int64)
        high = tl.full([], 1 << 31, tl.int64)
        for _ in range(32):
            middle = (low + high) >> 1
            is_reached = tl.sum((key >= middle).to(tl.int32), axis=0) >= k
            low = tl.where(is_reached, middle, low)
            high = tl.where(is_reached, high, middle)
        tl.store(bounds_out + row, low.to(tl.int32))
        tl.store(list_counts_out + row, 0)


@triton.jit(do_not_specialize=("batch", "part_blocks", "n_blocks"))
def _gather_kernel(
    kinds, logits, scores, changed, temperature, qo_indptr, tops, bounds, list_counts,
    list_values_out, list_ids_out, batch, vocab, part_blocks, n_blocks,
    V: tl.constexpr, B: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """List the ids of one part that reach the row's bound; the count goes on behind the last."""
    row = tl.program_id(0)
    part = tl.program_id(1)
    if tl.load(kinds + row) == LISTED:
        divisor = divisor_of(temperature, owner_of(row, qo_indptr, batch, B))
        bound = tl.load(bounds + row)
        for tile in range(part * part_blocks, tl.minimum((part + 1) * part_blocks, n_blocks)):
            start = tile * V
            if order_key(tl.load(tops + row * n_blocks + tile)) >= bound:
                ids = start + tl.arange(0, V)
                is_id = ids < vocab
                x = scores_at(logits, scores, changed, row, ids, is_id, divisor, vocab)
                is_hit = (is_id & (order_key(x) >= bound)).to(tl.int32)
                # Lists have no order: a reader orders them by rank.
                first = tl.atomic_add(list_counts + row, tl.sum(is_hit, axis=0))
                place = first + tl.cumsum(is_hit, 0) - 1
                is_kept = (is_hit > 0) & (place < L)
                tl.store(list_values_out + row.to(tl.int64) * L + place, x, mask=is_kept)
                tl.store(list_ids_out + row.to(tl.int64) * L + place, ids, mask=is_kept)


@triton.jit(do_not_specialize=("stage", "batch", "n_rows", "part_blocks", "n_parts", "n_blocks"))
def _test_kernel(
    kinds, logits, scores, changed, positions, temperature, qo_indptr, seed, sample_index, top_p,
    min_p, peaks, totals, tops, candidates, masses, values, ids, tokens_out, stage, batch, n_rows,
    vocab, part_blocks, n_parts, n_blocks, V: tl.constexpr, B: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """What stands before a row's candidate in one part: rough mass, and the best with noise.

    Every program of a row first judges the candidate of the stage before by what was found there.
    """
    row = tl.program_id(0)
    part = tl.program_id(1)
    if tl.load(kinds + row) == TESTED:
        owner = owner_of(row, qo_indptr, batch, B)
        divisor = divisor_of(temperature, owner)
        peak = tl.load(peaks + row)
        least = option_of(min_p, owner, 0.0)
        before = tl.maximum(stage - 1, 0)
        at = tl.load(candidates + before * n_rows + row)
        value = scores_at(logits, scores, changed, row, at, at >= 0, divisor, vocab)
        if stage > 0:
            at = judged(
                row, before, value, option_of(top_p, owner, 1.0), least, peak,
                tl.load(totals + row), candidates, masses, values, ids, n_rows, n_parts, P,
            )  # fmt: skip
            value = scores_at(logits, scores, changed, row, at, at >= 0, divisor, vocab)
            if part == 0:
                tl.store(candidates + stage * n_rows + row, at)
                # A candidate is the token until a filter drops it.
                tl.store(tokens_out + row, at.to(tl.int64), mask=at >= 0)
        if at >= 0:
            # A little more than min_p keeps: the candidate itself is judged exactly.
            lowest = tl.log(tl.zeros([], tl.float32) + least) - LOG_MARGIN
            key = tl.load(seed + owner)
            position = tl.load(positions + row)
            sample = option_of(sample_index, owner, 0)
            mass = tl.zeros([], tl.float32)
            best = tl.full([], float("-inf"), tl.float32)
            best_id = tl.full([], NO_ID, tl.int32)
            for tile in range(part * part_blocks, tl.minimum((part + 1) * part_blocks, n_blocks)):
                start = tile * V
                if tl.load(tops + row * n_blocks + tile) >= value:
                    here = start + tl.arange(0, V)
                    x = scores_at(logits, scores, changed, row, here, here < vocab, divisor, vocab)
                    is_before = (x > value) | ((x == value) & (here < at))
                    mass += tl.sum(tl.where(is_before, rough_exp(x, peak), 0.0), axis=0)
                    x = tl.where(is_before & (x - peak >= lowest), x, float("-inf"))
                    top = tl.max(x, axis=0)
                    if top > float("-inf"):
                        word = words_from(start, key, position, sample, V)
                        best, best_id = noisy_best(x, top, here, word, best, best_id)
            place = (stage * n_rows + row) * n_parts + part
            tl.store(masses + place, mass)
            tl.store(values + place, best)
            tl.store(ids + place, best_id)


def run_filters(named: dict[str, Any]) -> None:
    """Write the tokens of the rows that the scan left open; `named` are the call's arrays."""
    by_row, by_part = (named["n_rows"],), (named["n_rows"], named["n_parts"])
    if named["list_counts"] is not None:
        launch(_select_kernel, by_row, named)
        launch(_gather_kernel, by_part, named, num_warps=named["warps"])
        launch(list_kernel, by_row, named)
    if named["masses"] is not None:
        for stage in range(named["n_tests"]):
            launch(_test_kernel, by_part, {**named, "stage": stage}, num_warps=named["warps"])
    launch(exact_kernel, by_row, named, num_warps=8)
