"""Chi-square of what K6 emits, both rules, against the target; a 2 % bias must be rejected.

The emitted sequence of a lossless walk has the target's own distribution whatever the tree. Each
run makes 200,704 draws; the first token and the pair of the first two are tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.oracles.chi_square import fit
from tests.parity.backend import run, starts

# The two NumPy backends walk one request at a time: the same draws take them minutes, so the full
# count runs on them under `make slow`, and here they must emit what PyTorch emits, draw by draw.
counted_on = pytest.mark.parametrize(
    "backend",
    [
        "pytorch",
        pytest.param("numpy", marks=pytest.mark.slow),
        pytest.param("reference", marks=pytest.mark.slow),
    ],
)

BATCH, N_CALLS, DEPTH = 128, 1568, 2
DRAWS_AT_ONCE = 8  # walks per request whose tokens are sampled in one call: 8 trees of 4 rows
REJECT_BELOW = 1e-4

# The target: p(first token), and p(second token | first token) by row.
FIRST = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
SECOND = np.array(
    [
        [0.1, 0.5, 0.05, 0.15, 0.2],
        [0.2, 0.2, 0.2, 0.2, 0.2],
        [0.6, 0.1, 0.1, 0.1, 0.1],
        [0.05, 0.05, 0.1, 0.3, 0.5],
        [0.25, 0.25, 0.25, 0.15, 0.1],
    ]
)
VOCABULARY = len(FIRST)

# Rows: root, its children 0 and 3, and 1 below 0. The path of the last row leads to SECOND[1].
TOKENS = np.array([4, 0, 3, 1])
FIRST_CHILD = np.array([1, 3, -1, -1])
NEXT_SIBLING = np.array([-1, 2, -1, -1])
BY_PATH = np.stack([FIRST, SECOND[0], SECOND[3], SECOND[1]])  # [rows, V]

LAYOUT = {
    "qo_indptr": starts([len(TOKENS)] * BATCH),
    "draft_tokens": np.tile(TOKENS, BATCH),
    "first_child_row": np.tile(FIRST_CHILD, BATCH),
    "next_sibling_row": np.tile(NEXT_SIBLING, BATCH),
    "tree_depth": DEPTH,
}


@dataclass(frozen=True)
class Bias:
    """Root's token 0 at 0.51 instead of 0.5 (2 % off), the others sharing the loss."""

    by_path: np.ndarray
    coin_scale: float = 1.0


def biased_rows() -> np.ndarray:
    rows = BY_PATH.copy()
    rows[0] *= 0.49 / 0.5
    rows[0, 0] = 0.51
    return rows


FAIR = Bias(BY_PATH)
WRONG_ROW = Bias(biased_rows())
# `u < sum / 0.985` instead of `u < sum`: each acceptance is 1.5 % too likely.
WRONG_COMPARISON = Bias(BY_PATH, coin_scale=0.985)


def coin_calls(bias: Bias, seed: int, n_calls: int = N_CALLS) -> Iterator[dict[str, Any]]:
    """Inputs of every call of the coin rule: the same tree, fresh uniforms."""
    generator = np.random.default_rng(seed)
    probas = np.tile(bias.by_path.astype(np.float32), (BATCH, 1))
    for _ in range(n_calls):
        coins = generator.random((BATCH, DEPTH + 2), dtype=np.float32)
        coins[:, :-1] *= np.float32(bias.coin_scale)
        yield {"target_probas": probas, "coins": coins}


def match_calls(
    backend: str, bias: Bias, seed: int, n_calls: int = N_CALLS
) -> Iterator[dict[str, Any]]:
    """Inputs of every call of the match rule: the same logits, other seeds and positions."""
    n_rows = len(TOKENS)
    logits = np.log(bias.by_path).astype(np.float32)
    positions = 4 * np.arange(DRAWS_AT_ONCE)[:, None] + np.array([0, 1, 1, 2])
    for call in range(0, n_calls, DRAWS_AT_ONCE):
        sampled = run(
            backend,
            "sample_target_tokens",
            logits=np.tile(logits, (BATCH * DRAWS_AT_ONCE, 1)),
            positions=np.tile(positions.reshape(-1) + 17 * call, BATCH),
            temperature=np.ones(BATCH, dtype=np.float32),
            qo_indptr=starts([DRAWS_AT_ONCE * n_rows] * BATCH),
            seed=seed + call * BATCH + np.arange(BATCH),
        )
        tokens = sampled.target_tokens.reshape(BATCH, DRAWS_AT_ONCE, n_rows)
        for draw in range(DRAWS_AT_ONCE):
            yield {"target_tokens": np.ascontiguousarray(tokens[:, draw]).reshape(-1)}


def pairs(backend: str, calls: Iterator[dict[str, Any]]) -> np.ndarray:
    """First and second token of every draw, [draws, 2]."""
    generator = np.random.default_rng(99)
    drawn = []
    for inputs in calls:
        found = run(backend, "draft_tree_reject_sample", **LAYOUT, **inputs)
        first_row, second_row = found.accept_index[:, 1], found.accept_index[:, 2]
        first = np.where(first_row >= 0, TOKENS[first_row], found.bonus_token)
        second = np.where(second_row >= 0, TOKENS[second_row], found.bonus_token)
        # A walk that emits one token goes on in the next round: one plain draw from the target.
        running = np.cumsum(SECOND[first], axis=1)
        plain = (generator.random((BATCH, 1)) >= running[:, :-1]).sum(axis=1)
        drawn.append(np.stack([first, np.where(first_row >= 0, second, plain)], axis=1))
    return np.concatenate(drawn)


def p_values(drawn: np.ndarray) -> tuple[float, float]:
    """Of the first token, and of the pair."""
    assert len(drawn) >= 200_000
    firsts = fit(Counter(drawn[:, 0].tolist()), dict(enumerate(FIRST)))
    both = fit(
        Counter(map(tuple, drawn.tolist())),
        {(a, b): FIRST[a] * SECOND[a, b] for a in range(VOCABULARY) for b in range(VOCABULARY)},
    )
    assert (firsts.freedom, both.freedom) == (4, 24)
    return firsts.p_value, both.p_value


@counted_on
def test_coins_draw_from_the_target(backend: str) -> None:
    for p_value in p_values(pairs(backend, coin_calls(FAIR, seed=1))):
        assert p_value > REJECT_BELOW


@counted_on
def test_match_draws_from_the_target(backend: str) -> None:
    for p_value in p_values(pairs(backend, match_calls(backend, FAIR, seed=10**12))):
        assert p_value > REJECT_BELOW


@counted_on
def test_biased_coins_are_rejected(backend: str) -> None:
    for p_value in p_values(pairs(backend, coin_calls(WRONG_ROW, seed=2))):
        assert p_value < REJECT_BELOW


@pytest.mark.slow
def test_a_wrong_comparison_is_rejected() -> None:
    for p_value in p_values(pairs("pytorch", coin_calls(WRONG_COMPARISON, seed=3))):
        assert p_value < REJECT_BELOW


@counted_on
def test_biased_match_is_rejected(backend: str) -> None:
    for p_value in p_values(pairs(backend, match_calls(backend, WRONG_ROW, seed=10**13))):
        assert p_value < REJECT_BELOW


@pytest.mark.parametrize("other", ["numpy", "pytorch"])
def test_backends_draw_the_same(other: str) -> None:
    both = ("reference", other)
    coins = [pairs(backend, coin_calls(FAIR, 1, n_calls=16)) for backend in both]
    match = [
        pairs(backend, match_calls(backend, FAIR, 10**12, n_calls=DRAWS_AT_ONCE))
        for backend in both
    ]
    np.testing.assert_array_equal(*coins)
    np.testing.assert_array_equal(*match)


def test_bias_is_at_most_two_percent_in_one_cell() -> None:
    rows = WRONG_ROW.by_path
    assert rows[0].sum() == pytest.approx(1.0)
    assert rows[0, 0] / FIRST[0] <= 1.02 + 1e-12
    np.testing.assert_array_equal(rows[1:], BY_PATH[1:])
    assert 1 / WRONG_COMPARISON.coin_scale < 1.02
