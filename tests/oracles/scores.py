"""Log-probabilities of one row of logits, in decimals of fifty digits."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext

DIGITS = 50


def log_probabilities(logits: Sequence[float]) -> list[float]:
    """Of every id; -inf for those that are masked."""
    with localcontext() as context:
        context.prec = DIGITS
        masses = [Decimal(x).exp() for x in logits]
        whole = sum(masses, Decimal(0))
        return [float((mass / whole).ln()) if mass else -float("inf") for mass in masses]


def best(logits: Sequence[float], count: int) -> list[int]:
    """The likeliest ids, the lower one first among equals."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:count]
