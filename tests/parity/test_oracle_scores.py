"""Coins against Philox in Python integers, log-probabilities against decimals of fifty digits."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.oracles.philox import coin
from tests.oracles.scores import best, log_probabilities
from tests.parity.backend import column, run, runnable

each_backend = pytest.mark.parametrize(
    "backend", [runnable(name) for name in ("reference", "numpy", "pytorch")]
)
EXTREMES = [0, 1, -1, 2**31, 2**32 - 1, 2**40 + 3, 2**63 - 1, -(2**63)]


@each_backend
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 126])
def test_coins(backend: str, depth: int) -> None:
    rng = random.Random(depth)
    keys = [[rng.choice(EXTREMES) for _ in range(3)] for _ in range(20)]
    seeds, samples, positions = zip(*keys, strict=True)
    found = run(
        backend,
        "toss_coins",
        seed=column(seeds),
        sample_index=column(samples),
        position=column(positions),
        tree_depth=depth,
    ).coins
    assert found.dtype == np.float32
    for tossed, (seed, sample, position) in zip(found.tolist(), keys, strict=True):
        assert tossed == [coin(seed, position, sample, n) for n in range(depth + 2)]


def rows_of_logits(rng: np.random.Generator, vocab: int) -> np.ndarray:
    """Usual ones, ties, masked ones, and one id that is all but certain."""
    logits = rng.standard_normal((6, vocab)) * 3
    logits[1] = logits[1].round()
    logits[2, 1:][rng.random(vocab - 1) < 0.7] = -np.inf
    logits[3, rng.integers(vocab)] = 30
    logits[4] *= 40
    logits[5] = 0
    return logits.astype(np.float32)


@each_backend
@pytest.mark.parametrize("vocab", [2, 3, 17, 64])
def test_log_probabilities(backend: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = rows_of_logits(rng, vocab)
    rows, tokens = rng.integers(-1, 6, (8, 5)), rng.integers(0, vocab, (8, 5))
    # The token that was said is the likeliest of its row in every other request.
    tokens[::2] = logits.argmax(1)[rows[::2]]
    wanted = [-1, 0, 1, 3, 7, 20, 4, 2]
    found = run(
        backend,
        "score_target_tokens",
        logits=logits,
        rows=rows,
        tokens=tokens,
        wanted=column(wanted, "int32"),
        top_n=7,
    )
    scores = [log_probabilities(row) for row in logits.tolist()]
    for b, n in np.ndindex(rows.shape):
        row, is_used = rows[b, n], rows[b, n] >= 0 and wanted[b] >= 0
        order = best(logits[row].tolist(), min(wanted[b], 7)) if is_used else []
        expected = [scores[row][token] for token in order]
        own = scores[row][tokens[b, n]] if is_used else 0.0
        assert found.top_tokens[b, n].tolist() == order + [-1] * (7 - len(order))
        shown = [found.chosen_logprobs[b, n], *found.top_logprobs[b, n]]
        padded = [own, *expected, *[0.0] * (7 - len(order))]
        np.testing.assert_array_max_ulp(
            np.array(shown, np.float32), np.array(padded, np.float32), maxulp=1
        )
