"""Philox4x32-10, the Gumbel noise and the coins made from it, with Python integers and floats."""

from __future__ import annotations

import math

import numpy as np

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10

Words = tuple[int, int, int, int]


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """One block of four 32-bit words (Salmon et al., SC11, section 4.3)."""
    for round_number in range(ROUNDS):
        key_0, key_1 = ((k + round_number * w) & WORD for k, w in zip(key, WEYL, strict=True))
        product_0 = counter[0] * MULTIPLIERS[0]
        product_1 = counter[2] * MULTIPLIERS[1]
        counter = (
            (product_1 >> 32) ^ counter[1] ^ key_0,
            product_1 & WORD,
            (product_0 >> 32) ^ counter[3] ^ key_1,
            product_0 & WORD,
        )
    return counter


def noise_word(seed: int, position: int, sample: int, token: int, use: int = 0) -> int:
    """The word of one token: key = seed, counter = (id div 4, position + 1, sample, use)."""
    counter = (token // 4, (position + 1) & WORD, sample & WORD, use)
    return philox(counter, (seed & WORD, seed >> 32 & WORD))[token % 4]


def coin(seed: int, position: int, sample: int, number: int) -> float:
    """A uniform of 24 bits; coins are use 1."""
    return (noise_word(seed, position, sample, number, use=1) >> 8) / 2**24


def gumbel(word: int) -> float:
    """g = float32(-log(-log1p(-v))) with v = (word + 1/2) / 2**32."""
    v = (word + 0.5) * 2.0**-32
    return float(np.float32(-math.log(-math.log1p(-v))))
