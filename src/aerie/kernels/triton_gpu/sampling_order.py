"""Options, order, masses and scores of a row as the filters of `sample_target_tokens` see them.

What filters keep is a prefix of the order (value descending, id ascending). Masses are
exp(z - max z) with the difference rounded to float32: rough ones in float32 decide where a sum is
far from its bound, exact ones in float64 elsewhere.
"""

from __future__ import annotations

import triton
import triton.language as tl

from aerie.kernels.cards import verdict

# Below this temperature a request is greedy.
GREEDY_TEMPERATURE = tl.constexpr(verdict.GREEDY_TEMPERATURE)
# What a row needs after the scan: nothing, a list of its best for top-k, or candidates tried.
CLOSED = tl.constexpr(0)
LISTED = tl.constexpr(1)
TESTED = tl.constexpr(2)
# A rank has 32 bits of value above 18 of id, and is found ten bits at a time.
ID_BITS = tl.constexpr(18)
LAST_ID = tl.constexpr((1 << 18) - 1)
RANK_BITS = tl.constexpr(50)
DIGIT_BITS = tl.constexpr(10)
DIGITS = tl.constexpr(1 << 10)


@triton.jit
def option_of(column, request, off):
    """A request's entry of an option, `off` where the call has none of it."""
    value = off
    if column is not None:
        value = tl.load(column + request)
    return value


@triton.jit
def kind_of(request, temperature, top_k, top_p, min_p, vocab):
    """What the rows of a request need after the scan."""
    is_cut = (option_of(top_p, request, 1.0) < 1.0) | (option_of(min_p, request, 0.0) > 0.0)
    kind = tl.where(is_cut, TESTED, CLOSED)
    k = option_of(top_k, request, 0)
    kind = tl.where((k > 0) & (k < vocab), LISTED, kind)
    return tl.where(tl.load(temperature + request) >= GREEDY_TEMPERATURE, kind, CLOSED)


@triton.jit
def divisor_of(temperature, request):
    """What the scores of a request are divided by."""
    heat = tl.load(temperature + request)
    return tl.where(heat >= GREEDY_TEMPERATURE, heat, 1.0)


@triton.jit
def order_key(x):
    """int32 in the order of the floats, one for both zeros; no value is NaN."""
    # Minus zero plus zero is zero.
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    # As sign and magnitude: of negative numbers the larger bits are the smaller number.
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def rank_key(x, ids, is_id):
    """int64 that grows with the value and falls with the id; -1 where there is no id."""
    value = order_key(x).to(tl.int64) + (1 << 31)
    return tl.where(is_id, (value << ID_BITS) | (-ids + LAST_ID), -1)


@triton.jit
def rough_exp(x, peak):
    """exp(x - peak) in float32, within 1e-5 of it; 0 where nothing but -inf was seen."""
    return tl.exp(x - tl.where(peak == float("-inf"), 0.0, peak))


@triton.jit
def mass_of(x, peak):
    """exp(x - peak) in float64 of the difference in float32, as the card says."""
    return tl.exp((x - peak).to(tl.float64))


@triton.jit
def scores_at(logits, scores, changed, row, ids, is_id, divisor, vocab):
    """Scores of a row at some ids, -inf where there is no id: what the scan saw there."""
    at = row.to(tl.int64) * vocab + ids
    if scores is None:
        x = tl.load(logits + at, mask=is_id, other=float("-inf"))
        x = _divided(x, divisor)
    elif tl.load(changed + row) != 0:
        x = tl.load(scores + at, mask=is_id, other=float("-inf"))
    else:
        x = tl.load(logits + at, mask=is_id, other=float("-inf"))
        x = _divided(x, divisor)
    return x


@triton.jit
def _divided(x, divisor):
    """x / divisor, rounded once; x itself where all requests are greedy and there is none."""
    if divisor is not None:
        x = tl.div_rn(x, tl.zeros_like(x) + divisor)
    return x


@triton.jit
def kth_rank(logits, scores, changed, row, divisor, k, vocab, n_blocks, V: tl.constexpr):
    """The rank key of the k-th id of a row, 1 <= k <= vocab: ten bits of it in each pass."""
    prefix = tl.zeros([], tl.int64)
    wanted = k
    # Bins are a power of two; the first behind the digits is for ids that have another prefix.
    digit = tl.arange(0, 2 * DIGITS)
    # Not unrolled: five copies of the pass take a minute to compile.
    for step in range(RANK_BITS // DIGIT_BITS):
        shift = -DIGIT_BITS * (step + 1) + RANK_BITS
        count = tl.zeros([2 * DIGITS], tl.int32)
        for tile in range(n_blocks):
            start = tile * V
            ids = start + tl.arange(0, V)
            x = scores_at(logits, scores, changed, row, ids, ids < vocab, divisor, vocab)
            key = rank_key(x, ids, ids < vocab)
            is_same = (key >= 0) & ((key >> (shift + DIGIT_BITS)) == prefix)
            own = ((key >> shift) & (DIGITS - 1)).to(tl.int32)
            count += tl.histogram(tl.where(is_same, own, DIGITS), 2 * DIGITS)
        count = tl.where(digit < DIGITS, count, 0)
        n_from = tl.cumsum(count, 0, reverse=True)
        chosen = tl.max(tl.where(n_from >= wanted, digit, 0), axis=0)
        wanted -= tl.sum(tl.where(digit > chosen, count, 0), axis=0)
        prefix = (prefix << DIGIT_BITS) | chosen
    return prefix
