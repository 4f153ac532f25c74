"""Philox4x32-10, the Gumbel noise of tokens and the words of coins: the definition, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

# Multipliers and key increments of Philox4x32 (Salmon et al., SC 2011, table 2).
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)
ROUNDS = 10

# The last counter: tokens and coins of one position draw different words.
TOKENS, COINS = 0, 1


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, ...]:
    """Four 32-bit words (held in uint64) for each counter, ten rounds."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (product1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            product1 & _LOW,
            (product0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            product0 & _LOW,
        )
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    return c0, c1, c2, c3


def random_words(count: int, seed: int, position: int, sample_index: int, use: int) -> Words:
    """Words of 32 bits: number i is word i mod 4 of counter i div 4."""
    groups = np.arange((count + 3) // 4, dtype=np.uint64)

    def word(value: int) -> Words:
        return np.full_like(groups, value & 0xFFFFFFFF)

    key = (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    words = philox((groups, word(position + 1), word(sample_index), word(use)), key)
    return np.stack(words, axis=1).ravel()[:count]


def gumbel(vocabulary: int, seed: int, position: int, sample_index: int) -> NDArray[np.float32]:
    """Gumbel noise of every token id for the token that follows `position`."""
    return gumbel_of(random_words(vocabulary, seed, position, sample_index, TOKENS))


def gumbel_of(words: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
    """g = -log(-log1p(-v)) with v = (word + 1/2) / 2^32, in float64 and rounded once."""
    uniform = (words.astype(np.float64) + 0.5) * 2.0**-32
    return (-np.log(-np.log1p(-uniform))).astype(np.float32)
