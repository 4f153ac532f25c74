"""sample_target_tokens and K5 against one-token-at-a-time Python: noise, penalties, filters."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.oracles.packing import ancestor_words, ancestors
from tests.oracles.philox import gumbel, noise_word
from tests.oracles.sampling import Request, probabilities, target_token
from tests.parity.backend import column, each_backend, run, starts

VOCABULARY = 23  # not a multiple of the generator's four words

FEATURES: dict[str, Request] = {
    "plain": Request(seed=1),
    "greedy": Request(temperature=0.0),
    "nearly greedy": Request(temperature=9e-7, seed=3),
    "cold": Request(temperature=0.05, seed=4),
    "hot": Request(temperature=3.0, seed=2**31 + 5),
    "long seed": Request(seed=2**62 + 12345),
    "negative seed": Request(seed=-2),
    "second sample": Request(seed=1, sample_index=1),
    "top-k": Request(seed=5, top_k=3),
    "top-k 1": Request(seed=5, top_k=1),
    "top-k beyond": Request(seed=5, top_k=1000),
    "top-p": Request(seed=6, top_p=0.6),
    "top-p tiny": Request(seed=6, top_p=1e-6),
    "min-p": Request(seed=7, min_p=0.2),
    "min-p whole": Request(seed=7, min_p=1.0),
    "repetition": Request(seed=8, repetition=1.7, prompt=[1, 2, 2, 9], output=[4, 4, 22]),
    "presence": Request(seed=9, presence=1.5, prompt=[0], output=[3, 3, 5]),
    "frequency": Request(seed=10, frequency=0.7, prompt=[0, 1], output=[3, 3, 3, 5]),
    "rewarding": Request(seed=11, presence=-1.0, frequency=-0.5, output=[2, 2]),
    "bias": Request(seed=12, bias={0: 3.0, 7: -100.0, 22: 1.5}),
    "banned": Request(seed=12, bias=dict.fromkeys(range(1, 21), -math.inf)),
    "floor": Request(seed=14, stops=[0, 5, 5, 22, 99], floor=1 << 16),
    "greedy floor": Request(0.0, stops=range(0, 23, 2), floor=1 << 16),
    "floor over a bias": Request(seed=14, bias={7: 50.0}, stops=[7], floor=1 << 16, top_k=4),
    "all": Request(
        0.8, 13, 2, 9, 0.9, 0.02, 1.2, 0.3, 0.2, [1, 5], [2, 2, 6], {4: 1.0}, [3, 9], 1 << 16
    ),
    "greedy with penalties": Request(
        0.0, repetition=2.0, presence=1.0, output=[1, 1, 2], bias={3: 1.0}
    ),
}


def counts_of(lists: Sequence[Sequence[int]], vocabulary: int) -> np.ndarray:
    table = np.zeros((len(lists), vocabulary), dtype=np.int32)
    for b, tokens in enumerate(lists):
        for token, n in Counter(tokens).items():
            table[b, token] = n
    return table


def parameters_of(requests: Sequence[Request], vocabulary: int) -> dict[str, np.ndarray]:
    bias = np.zeros((len(requests), vocabulary), dtype=np.float32)
    for b, request in enumerate(requests):
        for token, value in request.bias.items():
            bias[b, token] = value
    floats = {
        "temperature": "temperature",
        "top_p": "top_p",
        "min_p": "min_p",
        "repetition_penalty": "repetition",
        "presence_penalty": "presence",
        "frequency_penalty": "frequency",
    }
    return {
        **{
            name: column((getattr(request, field) for request in requests), "float32")
            for name, field in floats.items()
        },
        **{
            name: column(getattr(request, name) for request in requests)
            for name in ("seed", "sample_index", "top_k")
        },
        "prompt_counts": counts_of([request.prompt for request in requests], vocabulary),
        "output_counts": counts_of([request.output for request in requests], vocabulary),
        "logit_bias": bias,
        "stop_tokens": stop_table(requests),
        "floor_position": column(request.floor for request in requests),
    }


def stop_table(requests: Sequence[Request]) -> np.ndarray:
    widest = max(len(request.stops) for request in requests)
    rows = [[*request.stops, *[-1] * (widest - len(request.stops))] for request in requests]
    return np.array(rows, np.int64).reshape(len(requests), widest)


class Batch:
    """Random trees and logits for a list of requests."""

    def __init__(self, requests: Sequence[Request], n_rows: int, seed: int) -> None:
        chooser = random.Random(seed)
        generator = np.random.default_rng(seed)
        self.requests = requests
        self.parents = [
            [-1, *(chooser.randrange(row) for row in range(1, n_rows))] for _ in requests
        ]
        self.tokens = generator.integers(0, VOCABULARY, len(requests) * n_rows)
        self.logits = (generator.standard_normal((len(self.tokens), VOCABULARY)) * 2).astype(
            np.float32
        )
        self.positions = generator.integers(0, 1 << 17, len(self.tokens))
        self.n_rows = n_rows

    def inputs(self) -> dict[str, Any]:
        bits = [ancestor_words(tree, row) for tree in self.parents for row in range(self.n_rows)]
        return {
            "logits": self.logits,
            "positions": self.positions,
            "qo_indptr": starts([self.n_rows] * len(self.requests)),
            "draft_tokens": self.tokens,
            "ancestor_bits": np.array(bits, dtype=np.uint32).reshape(-1, 4),
            **parameters_of(self.requests, VOCABULARY),
        }

    def expected(self) -> list[int]:
        out = []
        for b, request in enumerate(self.requests):
            for row in range(self.n_rows):
                flat = b * self.n_rows + row
                # Row 0 is committed: the counts already hold it.
                chain = [other for other in ancestors(self.parents[b], row) if other]
                path = [int(self.tokens[b * self.n_rows + other]) for other in chain]
                logits = self.logits[flat].tolist()
                out.append(target_token(request, logits, path, int(self.positions[flat])))
        return out


@each_backend
@pytest.mark.parametrize("feature", FEATURES)
def test_tokens_of_each_feature(backend: str, feature: str) -> None:
    requests = [replace(FEATURES[feature], seed=FEATURES[feature].seed + n) for n in range(3)]
    batch = Batch(requests, n_rows=6, seed=sum(map(ord, feature)))
    found = run(backend, "sample_target_tokens", **batch.inputs())
    assert found.target_tokens.tolist() == batch.expected()


@each_backend
def test_tokens_of_a_mixed_batch(backend: str) -> None:
    batch = Batch(list(FEATURES.values()), n_rows=9, seed=77)
    found = run(backend, "sample_target_tokens", **batch.inputs())
    assert found.target_tokens.tolist() == batch.expected()


@each_backend
def test_options_left_out_are_off(backend: str) -> None:
    batch = Batch([Request(seed=21), Request(seed=22)], n_rows=4, seed=5)
    names = ("logits", "positions", "qo_indptr", "temperature", "seed")
    found = run(backend, "sample_target_tokens", **{name: batch.inputs()[name] for name in names})
    assert found.target_tokens.tolist() == batch.expected()


@each_backend
@pytest.mark.parametrize("n_equal", [1, 2, 3, 4, 8, 16, 23])
def test_shares_that_meet_top_p_exactly(backend: str, n_equal: int) -> None:
    """Of n equal tokens beside worthless ones, those stay that have less than top_p before them."""
    shares = [Fraction(n, 16) for n in range(1, 17)]
    logits = np.full((len(shares), VOCABULARY), -2000.0, np.float32)  # exp(-2000) is 0
    logits[:, VOCABULARY - n_equal :] = 0.5
    found = run(
        backend,
        "sample_target_tokens",
        logits=logits,
        positions=column(range(len(shares))),
        temperature=column([1.0] * len(shares), "float32"),
        qo_indptr=starts([1] * len(shares)),
        seed=column([9] * len(shares)),
        top_p=column(shares, "float32"),
    )
    for position, (share, token) in enumerate(
        zip(shares, found.target_tokens.tolist(), strict=True)
    ):
        noise = [gumbel(noise_word(9, position, 0, other)) for other in range(VOCABULARY)]
        first = VOCABULARY - n_equal
        kept = [id for id in range(first, VOCABULARY) if Fraction(id - first, n_equal) < share]
        assert token == max(kept, key=noise.__getitem__)


@each_backend
@pytest.mark.parametrize("position", [0, 1, 65_537, 2**31 - 2, 2**31])
def test_noise_alone_decides_between_equal_logits(backend: str, position: int) -> None:
    """With equal logits the token is the argmax of the noise, so the noise itself is tested."""
    seeds = [0, 1, -1, 2**40 + 3, 2**63 - 1]
    found = run(
        backend,
        "sample_target_tokens",
        logits=np.zeros((len(seeds), VOCABULARY), dtype=np.float32),
        positions=column([position] * len(seeds)),
        temperature=column([1.0] * len(seeds), "float32"),
        qo_indptr=starts([1] * len(seeds)),
        seed=column(seeds),
    )
    for seed, token in zip(seeds, found.target_tokens.tolist(), strict=True):
        noise = [gumbel(noise_word(seed, position, 0, other)) for other in range(VOCABULARY)]
        assert token == noise.index(max(noise))


@each_backend
def test_sampling_ignores_the_tree_and_the_batch(backend: str) -> None:
    """A row alone, in a batch, or inside another tree gets the same token."""
    batch = Batch([replace(FEATURES["all"], seed=seed) for seed in range(5)], n_rows=7, seed=9)
    plain = {"prompt_counts", "output_counts", "logit_bias", "ancestor_bits", "draft_tokens"}
    shared = {name: value for name, value in batch.inputs().items() if name not in plain}
    whole = run(backend, "sample_target_tokens", **shared).target_tokens
    for b in range(5):
        for row in (0, 3, 6):
            flat = slice(7 * b + row, 7 * b + row + 1)
            alone = {name: value[b : b + 1] for name, value in shared.items()}
            alone |= {"logits": batch.logits[flat], "positions": batch.positions[flat]}
            alone["qo_indptr"] = starts([1])
            found = run(backend, "sample_target_tokens", **alone)
            assert found.target_tokens.tolist() == whole[flat].tolist()


@each_backend
@pytest.mark.parametrize("temperature", [0.0, 5e-7, 0.05, 0.7, 1.0, 2.5, 100.0])
@pytest.mark.parametrize("kind", ["random", "ties", "masked", "wide", "single"])
def test_probabilities(backend: str, temperature: float, kind: str) -> None:
    generator = np.random.default_rng([int(temperature * 1e7), len(kind)])
    logits = generator.standard_normal((9, 1 if kind == "single" else 33)) * 3
    if kind == "ties":
        logits = np.round(logits)
    if kind == "masked":
        logits[:, 1:][generator.random((9, 32)) < 0.6] = -np.inf
    if kind == "wide":
        logits *= 1e4
    logits = logits.astype(np.float32)
    found = run(
        backend,
        "convert_logits_to_probas",
        logits=logits,
        temperature=column([temperature, 1.0, temperature], "float32"),
        qo_indptr=starts([4, 0, 4]),
    ).target_probas
    expected = np.array([probabilities(row, temperature) for row in logits.tolist()], np.float32)
    np.testing.assert_array_max_ulp(found[:8], expected[:8], maxulp=4)
    assert not found[8].any()
