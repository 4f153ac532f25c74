"""Chi-square of sampled tokens, option by option; a bias of a few percent must be rejected."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from tests.oracles.chi_square import Fit, fit
from tests.oracles.sampling import Request, f32, filtered, penalised
from tests.parity.backend import run, starts
from tests.parity.test_oracle_noise import parameters_of

BATCH, ROWS = 128, 128
REJECT_BELOW = 1e-4
LOGITS = [1.2, 0.9, 0.4, 0.4, -0.3, 1.0, -1.5, 0.1, -4.0]
# What the control adds to the score of the likeliest token: 3 to 4 % of all draws move to it.
NUDGE = 0.15

REQUESTS: dict[str, Request] = {
    "plain": Request(),
    "hot": Request(temperature=2.5),
    "cold": Request(temperature=0.4),
    "top-k": Request(top_k=4),
    "top-k of a tie": Request(top_k=5),
    "top-p": Request(top_p=0.8),
    "min-p": Request(min_p=0.3),
    "top-k, then top-p": Request(top_k=5, top_p=0.7),
    "top-p and min-p": Request(top_p=0.9, min_p=0.4),
    "all filters": Request(temperature=1.3, top_k=7, top_p=0.95, min_p=0.2),
    "repetition": Request(repetition=1.6, prompt=[0, 4], output=[1]),
    "presence": Request(presence=0.8, output=[0, 2, 2]),
    "frequency": Request(frequency=0.4, output=[5, 5, 1]),
    "bias": Request(bias={6: 2.0, 0: -math.inf}),
    "floor": Request(stops=[0, 3], floor=1 << 40),
    "everything": Request(
        temperature=0.8, top_k=6, top_p=0.9, min_p=0.05, repetition=1.3, presence=0.3,
        frequency=0.2, prompt=[1], output=[0, 5, 5], bias={4: 1.0}, stops=[2], floor=1 << 40,
    ),
}  # fmt: skip


def shares_of(request: Request) -> dict[int, float]:
    """The distribution the options leave, from the oracle's own penalties and filters."""
    values = penalised(request, LOGITS, [])
    values = [f32(-math.inf) if t in request.stops else x for t, x in enumerate(values)]
    values = [f32(value / f32(request.temperature)) for value in values]
    weights = {token: math.exp(float(values[token])) for token in filtered(request, values)}
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def judged(request: Request, nudge: float, seed: int) -> Fit:
    shares = shares_of(request)
    logits = np.array(LOGITS, np.float32)
    logits[max(shares, key=shares.__getitem__)] += nudge * request.temperature
    found = run(
        # Draws them in a moment; the other backends give the same tokens, case by case.
        "pytorch",
        "sample_target_tokens",
        logits=np.tile(logits, (BATCH * ROWS, 1)),
        positions=np.tile(np.arange(ROWS), BATCH),
        qo_indptr=starts([ROWS] * BATCH),
        **{**parameters_of([request] * BATCH, len(logits)), "seed": seed + np.arange(BATCH)},
    )
    return fit(Counter(found.target_tokens.tolist()), shares)


@pytest.mark.parametrize("name", REQUESTS)
def test_tokens_have_the_shares_that_the_options_leave(name: str) -> None:
    seed = 1000 * sum(map(ord, name))
    assert judged(REQUESTS[name], 0.0, seed).p_value > REJECT_BELOW
    assert judged(REQUESTS[name], NUDGE, seed).p_value < REJECT_BELOW
