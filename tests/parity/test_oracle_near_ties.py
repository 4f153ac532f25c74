"""Near ties against one-token-at-a-time Python, and the backends against each other in any mix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tests.interpreted  # noqa: F401
from aerie.kernels.cases.sampling_mixes import mixed_call
from tests.oracles.philox import gumbel, noise_word
from tests.oracles.sampling import Request, f32, filtered, target_token
from tests.parity.backend import column, run, run_with_status, runnable, starts

KERNEL = "find_near_ties"
VOCABULARY = 23
LIMIT = 0.06
ASKED = (
    Request(temperature=0.0),
    Request(temperature=0.3, seed=4),
    Request(temperature=1.5, seed=-5, sample_index=2),
    Request(temperature=0.8, seed=6, top_k=4),
    Request(temperature=0.8, seed=7, top_k=1),
    Request(temperature=1.2, seed=8, top_p=0.6),
    Request(temperature=1.2, seed=9, min_p=0.3),
    Request(temperature=1.0, seed=10, top_k=9, top_p=0.8, min_p=0.05),
)


def is_near(request: Request, logits: list[float], token: int, position: int) -> bool:
    """Whether the best of the other ids that are kept is within what the token's logit may move."""
    heat = f32(1.0) if request.is_greedy else f32(request.temperature)
    values = [f32(f32(x) / heat) for x in logits]
    sums, kept = values, list(range(len(values)))
    if not request.is_greedy:
        words = [noise_word(request.seed, position, request.sample_index, t) for t in kept]
        sums = [f32(x + f32(gumbel(w))) for x, w in zip(values, words, strict=True)]
        kept = filtered(request, values)
    reach = f32(LIMIT) * f32(2.0 ** math.floor(math.log2(abs(logits[token])))) / heat
    others = [sums[t] for t in kept if t != token]
    return bool(others) and max(others) >= sums[token] - reach


@pytest.mark.parametrize("backend", [runnable(name) for name in ("reference", "numpy", "pytorch")])
def test_one_by_one(backend: str) -> None:
    rng = np.random.default_rng(3)
    n_each = 12
    size = (len(ASKED) * n_each, VOCABULARY)
    logits = (rng.standard_normal(size) * 2 + 9).astype(np.float32)
    logits[::3] = logits[::3].round()
    positions = rng.integers(0, 5000, len(logits))
    rows = np.arange(len(logits)).reshape(len(ASKED), n_each)
    said = [
        target_token(ASKED[row // n_each], logits[row].tolist(), (), int(positions[row]))
        for row in range(len(logits))
    ]
    names = ("seed", "sample_index", "top_k")
    shares = ("temperature", "top_p", "min_p")
    found = run(
        backend,
        KERNEL,
        logits=logits,
        positions=positions,
        qo_indptr=starts([n_each] * len(ASKED)),
        rows=rows,
        tokens=np.array(said).reshape(rows.shape),
        limit=column([LIMIT] * len(ASKED), "float32"),
        **{name: column(getattr(request, name) for request in ASKED) for name in names},
        **{name: column((getattr(r, name) for r in ASKED), "float32") for name in shares},
    ).near_ties
    expected = [
        is_near(ASKED[row // n_each], logits[row].tolist(), said[row], int(positions[row]))
        for row in range(len(logits))
    ]
    assert found.reshape(-1).tolist() == expected
    assert 10 < sum(expected) < 80


def mixed(seed: int) -> dict[str, Any]:
    """Any options, and the tokens that the reference gives."""
    rng = np.random.default_rng(seed)
    call = mixed_call(rng, int(rng.choice((1, 2, 5, 17, 50, 100))), int(rng.integers(1, 5)))
    said = run_with_status("reference", "sample_target_tokens", **call).target_tokens
    first, last = call["qo_indptr"][:-1, None].astype(np.int64), call["qo_indptr"][1:, None]
    rows = first + np.arange(4)
    rows = np.where(rows < last, rows, -1)
    limit = rng.choice((0.0, 0.02, 0.5), len(rows)).astype(np.float32)
    return {**call, "rows": rows, "tokens": said[rows] if len(said) else rows, "limit": limit}


@pytest.mark.parametrize("backend", [runnable(name) for name in ("numpy", "pytorch")])
def test_any_mix_of_options(backend: str) -> None:
    n_near = 0
    for seed in range(60):
        call = mixed(seed)
        expected = run("reference", KERNEL, **call).near_ties
        assert run(backend, KERNEL, **call).near_ties.tolist() == expected.tolist(), seed
        n_near += int(expected.sum())
    assert n_near > 20
