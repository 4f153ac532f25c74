"""Whether a generated text loops: the one rule for everything that leaves such texts out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

GRAM = 8
MOST_REPEATED = 0.2  # share of 8-grams; a text with more of them is a loop


def repeated_share(tokens: Sequence[int], end_ids: Collection[int]) -> float:
    """Share of a text's 8-grams that stood in it before; it is counted up to its end token."""
    n_tokens = next((i for i, token in enumerate(tokens) if token in end_ids), len(tokens))
    grams = [tuple(tokens[i : i + GRAM]) for i in range(n_tokens - GRAM + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def is_loop_free(share: float) -> bool:
    """Whether a share of repeated 8-grams is one of a text that does not loop."""
    return share <= MOST_REPEATED


def does_not_loop(tokens: Sequence[int], end_ids: Collection[int]) -> bool:
    """Whether so little of a generated text repeats itself that acceptance on it counts."""
    return is_loop_free(repeated_share(tokens, end_ids))
