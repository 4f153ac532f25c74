"""Philox words and the Gumbel noise of a token, made where they are used and never stored."""

from __future__ import annotations

import triton
import triton.language as tl

from aerie.kernels import noise

# The last counter: tokens and coins of one position draw different words.
TOKENS = tl.constexpr(noise.TOKENS)
COINS = tl.constexpr(noise.COINS)
# What a rough sum of value and noise may lack: the noise's own error and one rounding of the sum.
ROUGH_ERROR = tl.constexpr(1e-3)
ROUGH_SHARE = tl.constexpr(1e-6)
# Candidates of a block whose exact sums are made one by one; more are made all at once.
FEW = tl.constexpr(4)
NO_ID = tl.constexpr(2147483647)


@triton.jit
def _four_words(group, seed, position, sample, use: tl.constexpr):
    """One Philox call for each group of four numbers; the arrays have the shape of `group`."""
    second = tl.zeros_like(group) + (position + 1).to(tl.uint32)
    third = tl.zeros_like(group) + sample.to(tl.uint32)
    return tl.philox(seed, group, second, third, tl.zeros_like(group) + use)


@triton.jit
def words_from(start, seed, position, sample, V: tl.constexpr):
    """Random words of the ids from `start` on, a multiple of 4: one Philox call for four. [V]"""
    group = (start // 4 + tl.arange(0, V // 4)).to(tl.uint32)
    w0, w1, w2, w3 = _four_words(group, seed, position, sample, TOKENS)
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), [V]).to(tl.uint32)


@triton.jit
def words_of(ids, seed, position, sample, use: tl.constexpr):
    """Random words of any ids, or coins: one Philox call for each."""
    w0, w1, w2, w3 = _four_words((ids // 4).to(tl.uint32), seed, position, sample, use)
    place = ids % 4
    return tl.where(place < 2, tl.where(place == 0, w0, w1), tl.where(place == 2, w2, w3))


@triton.jit
def gumbel(word):
    """Noise of random words, in float64 and rounded once."""
    # 1 - v is a multiple of 2^-33 and therefore exact in float64, so log(1 - v) is log1p(-v).
    rest = (1.0 - 2.0**-33) - word.to(tl.float64) * 2.0**-32
    return (-tl.log(-tl.log(rest))).to(tl.float32)


@triton.jit
def rough_gumbel(word):
    """The same noise in float32 with fast logarithms: within 1e-4 of it, see the test. [V]"""
    v = (word.to(tl.float32) + 0.5) * 2.0**-32
    # 1 - v from the word's complement: a difference in float32 would lose a small rest.
    rest = ((word ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.0**-32
    # A logarithm near 1 has few digits, so small v take the series of -log(1 - v).
    series = v * (1 + v * (1 / 2 + v * (1 / 3 + v * (1 / 4 + v * (1 / 5 + v / 6)))))
    return -tl.log(tl.where(v < 0.0625, series, -tl.log(rest)))


@triton.jit
def rough_error(rough):
    """How far a rough sum of value and noise may be from the exact one."""
    return tl.abs(rough) * ROUGH_SHARE + ROUGH_ERROR


@triton.jit
def noisy_best(x, highest, ids, word, best, best_id):
    """The larger of a running best and a block's best sum of value and noise.

    `highest` is the largest of `x`; no value is NaN or +inf. Ids of the block are above those seen
    so far, so an equal sum does not displace. Float64 logarithms cost ten times the rest and are
    made only where they may decide.
    """
    # The noise falls as its word grows: no sum of the block is above that of the two extremes.
    most = highest + rough_gumbel(tl.min(word, axis=0))
    if most + rough_error(most) > best:
        rough = x + rough_gumbel(word)
        top = tl.max(rough, axis=0)
        able = rough >= tl.maximum(top - 2 * rough_error(top), best - rough_error(top))
        if tl.sum(able.to(tl.int32), axis=0) > FEW:
            sums = tl.where(able, x + gumbel(word), float("-inf"))
            top = tl.max(sums, axis=0)
            if top > best:
                best = top
                best_id = tl.min(tl.where(sums == top, ids, NO_ID), axis=0)
        else:
            at = tl.min(tl.where(able, ids, NO_ID), axis=0)
            while at < NO_ID:
                value = tl.max(tl.where(ids == at, x, float("-inf")), axis=0)
                value += gumbel(tl.max(tl.where(ids == at, word, 0), axis=0))
                if value > best:
                    best = value
                    best_id = at
                at = tl.min(tl.where(able & (ids > at), ids, NO_ID), axis=0)
    return best, best_id
