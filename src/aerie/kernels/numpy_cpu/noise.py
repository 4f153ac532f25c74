"""Random words of many rows at once, and Gumbel noise for the tokens that can win alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from aerie.kernels.noise import MULTIPLIERS, ROUNDS, TOKENS, WEYL, gumbel_of
from aerie.kernels.numpy_types import Floats, Ints, Words

Long = NDArray[np.uint64]

_LOW = np.uint64(0xFFFFFFFF)
_UPPER = np.uint64(32)

# Counters worked on at once: five arrays of 8-byte words stay in a core's second-level cache.
# One thread, 48 rows of 4,096 ids, ms: 4,096 counters 2.5, 16,384 1.8, 65,536 2.2 (2026-11).
BLOCK = 16384


def random_words(
    count: int, seed: Ints, position: Ints, sample_index: Ints, use: int = TOKENS
) -> Words:
    """Philox4x32-10: words of 32 bits, by token id or coin. [R, count rounded up to 4]"""
    n_rows, n_groups = len(seed), (count + 3) // 4
    words = np.empty((n_rows, n_groups, 4), np.uint32)
    n_block = max(1, BLOCK // n_groups)
    columns = [column[:, None].view(np.uint64) for column in (seed, position + 1, sample_index)]
    for start in range(0, n_rows, n_block):
        rows = slice(start, start + n_block)
        _philox([column[rows] for column in columns], use, words[rows])
    return words.reshape(n_rows, n_groups * 4)


def _philox(columns: list[Long], use: int, words_out: Words) -> None:
    seed, second, third = columns  # [R, 1] each
    shape = words_out.shape[:2]
    c0, c1, c2, c3, upper = (np.empty(shape, np.uint64) for _ in range(5))
    c0[:] = np.arange(shape[1], dtype=np.uint64)
    c1[:], c2[:], c3[:] = second & _LOW, third & _LOW, use
    k0, k1 = seed & _LOW, seed >> _UPPER
    for _ in range(ROUNDS):
        c0 *= MULTIPLIERS[0]
        c2 *= MULTIPLIERS[1]
        # The upper word of the other product, mixed with a counter and the key; c1 and c3 keep
        # their upper halves until then, for the mask drops them.
        for product, counter, key in ((c2, c1, k0), (c0, c3, k1)):
            np.right_shift(product, _UPPER, out=upper)
            counter ^= upper
            counter ^= key
            counter &= _LOW
        c0, c1, c2, c3 = c1, c2, c3, c0
        k0, k1 = (k0 + np.uint64(WEYL[0])) & _LOW, (k1 + np.uint64(WEYL[1])) & _LOW
    for place, counter in enumerate((c0, c1, c2, c3)):
        # Cast to 32 bits, so that the upper halves are dropped here too.
        words_out[:, :, place] = counter


def best_with_noise(scores: Floats, words: Words) -> int:
    """argmax(scores + noise), lowest id on ties. [vocab] each; some score is above -inf.

    The noise falls as its word grows, and float32 addition never turns an order round: a score
    that stays below a known sum even with the row's largest noise cannot win, and its noise is
    not computed. For peaked rows that is nearly all of them.
    """
    best = int(scores.argmax())
    highest = gumbel_of(words.min(keepdims=True))
    known = scores[best] + gumbel_of(words[best : best + 1])
    able = (scores + highest >= known).nonzero()[0]
    return int(able[(scores[able] + gumbel_of(words[able])).argmax()])
