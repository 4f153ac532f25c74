"""Philox4x32-10 in int64 arithmetic, and the Gumbel noise of `sample_target_tokens`."""

from __future__ import annotations

import torch
from torch import Tensor

from aerie.kernels.noise import MULTIPLIERS, ROUNDS, TOKENS, WEYL

_LOW = 0xFFFFFFFF


def philox(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Four 32-bit words (held in int64) for each counter, ten rounds; shapes broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        # c1 and c3 keep their upper halves: they are only mixed into words that drop them.
        c0, c1 = _mix(product1, c1, k0), product1
        c2, c3 = _mix(product0, c3, k1), product0
        k0, k1 = (k0 + WEYL[0]) & _LOW, (k1 + WEYL[1]) & _LOW
    return c0, c1 & _LOW, c2, c3 & _LOW


def _mix(product: Tensor, word: Tensor, key: Tensor) -> Tensor:
    """Upper word of a product, combined with another word and the key."""
    # A product wraps into int64's sign; shift and mask give its upper word all the same.
    return ((product >> 32) ^ word).bitwise_xor_(key).bitwise_and_(_LOW)


def random_words(
    count: int, seed: Tensor, position: Tensor, sample_index: Tensor | None, use: int
) -> tuple[Tensor, ...]:
    """Words 0, 1, 2 and 3 of every group of four, for each of R rows. [R, groups] each"""
    groups = torch.arange((count + 3) // 4, device=seed.device)[None]  # [1, numbers div 4]
    second = (position[:, None] + 1) & _LOW
    third = torch.zeros_like(second) if sample_index is None else sample_index[:, None] & _LOW
    key = (seed[:, None] & _LOW, (seed[:, None] >> 32) & _LOW)
    return philox((groups, second, third, torch.full_like(second, use)), key)


def gumbel(vocab: int, seed: Tensor, position: Tensor, sample_index: Tensor | None) -> Tensor:
    """Noise of every token id for the token that follows `position[R]`. float32 [R, V]"""
    words = random_words(vocab, seed, position, sample_index, TOKENS)
    # [R, groups, 4]: word id mod 4 of group id div 4
    size = (*words[0].shape, len(words))
    rest = torch.empty(size, dtype=torch.float64, device=seed.device)
    for place, word in enumerate(words):
        rest[:, :, place] = word
    # 1 - v is a multiple of 2^-33 and therefore exact, so log(1 - v) is log1p(-v), and faster.
    rest.mul_(-(2.0**-32)).add_(1.0 - 2.0**-33).log_().neg_().log_()
    return rest.flatten(1)[:, :vocab].float().neg_()
