"""Near ties are counted where numerics are fast: logits written by hand, both launchers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aerie.config import SpeculationConfig
from aerie.engine.engine import EngineCore
from aerie.kernels.noise import gumbel
from aerie.models.decoder import Decoder, DecoderOutput
from aerie.near_ties import LIMITS, NearTies, cell_of
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import LIMITS as ROOM
from tests.unit.engine.cores import PLAIN, Pair, core, load_pair, outputs

TREE = SpeculationConfig(top_k=3, depth=3, nodes=10)
NGRAM = SpeculationConfig(method="ngram", depth=4, nodes=5)
BEST, STEP = 12.0, 2.0**-20  # a logit of a row's best token, and float32's step there
# Of the runner-up, by the token before: none left, a tie, just within the limit, just beyond it.
REACH = LIMITS["float32"] * 8
GAPS = (np.inf, 0.0, REACH - STEP, REACH + STEP)


def logits_behind(token: int) -> np.ndarray:
    """The rows of the target by hand: two ids stand out, so far apart."""
    row = np.full(ROOM.vocabulary, -40.0, np.float32)
    best = (7 * token + 11) % ROOM.vocabulary
    row[(best + 5) % ROOM.vocabulary] = BEST - GAPS[token % len(GAPS)]
    row[best] = BEST
    return row


TABLE = torch.from_numpy(np.stack([logits_behind(token) for token in range(ROOM.vocabulary)]))


@pytest.fixture(scope="module")
def fast(pair_directory: Path) -> Pair:
    return load_pair(pair_directory, "fast")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target says what stands in the table; its features stay its own."""
    forward = Decoder.forward

    def scripted(self: Any, rows: Any, pool: Any, logit_rows: Any, taps: Any = ()) -> DecoderOutput:
        output = forward(self, rows, pool, logit_rows, taps)
        asked = rows.tokens if logit_rows is None else rows.tokens[logit_rows]
        return replace(output, logits=TABLE[asked])

    monkeypatch.setattr(Decoder, "forward", scripted)


def with_limit(engine: EngineCore, limit: float) -> EngineCore:
    """The same engine with another limit: choices are seldom as close as float32's."""
    parts = engine.launcher.parts
    assert parts.near_limit is not None
    object.__setattr__(parts, "near_limit", torch.full_like(parts.near_limit, limit))
    return engine


def counted(engine: EngineCore) -> list[tuple[int, int]]:
    """Tokens and near ties of each request; their sum is the engine's."""
    tallies = [request.statistics.near_ties for request in engine._requests.values()]
    for name in ("tokens", "near"):
        total = sum((getattr(tally, name) for tally in tallies), Counter[Any]())
        assert total == +getattr(engine.near_ties, name)
    return [(tally.n_tokens, tally.n_near) for tally in tallies]


def closest(text: list[int], n_prompt: int, params: SamplingParams, limit: float) -> list[bool]:
    """Of each token of an output, whether the runner-up was within the limit; one by one."""
    found = []
    for at in range(n_prompt, len(text)):
        sums, heat = logits_behind(text[at - 1]), np.float32(params.temperature or 1)
        if params.temperature:
            sums = sums / heat + gumbel(len(sums), params.seed or 0, at - 1, 0)
        if params.top_k:
            order = (-logits_behind(text[at - 1])).argsort(kind="stable")
            sums[order[params.top_k :]] = -np.inf
        reach = np.float32(limit) * np.float32(2.0 ** np.floor(np.log2(abs(_logit(text, at)))))
        others = np.delete(sums, text[at])
        is_some = bool((others > -np.inf).any())
        found.append(is_some and bool(others.max() >= sums[text[at]] - reach / heat))
    return found


def _logit(text: list[int], at: int) -> float:
    return float(logits_behind(text[at - 1])[text[at]])


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize("speculation", [PLAIN, TREE, NGRAM], ids=["plain", "tree", "ngram"])
def test_ties_and_gaps_around_the_limit(
    fast: Pair, launcher: str, speculation: SpeculationConfig
) -> None:
    """Greedy, sampled, and with a filter that leaves one token: no runner-up, no tie."""
    asked = [
        SamplingParams(max_tokens=30, ignore_eos=True),
        SamplingParams(max_tokens=30, temperature=0.5, seed=3, ignore_eos=True),
        SamplingParams(max_tokens=30, temperature=0.5, seed=4, top_k=1, ignore_eos=True),
        SamplingParams(max_tokens=30, temperature=4.0, seed=5, top_k=2, ignore_eos=True),
    ]
    prompts = [[1, 2, 3], [9, 4], [7], [30, 31]]
    engine = core(fast, "fast", speculation=speculation, engine=launcher)
    texts = outputs(engine, list(zip(prompts, asked, strict=True)))
    expected = [
        sum(closest([*prompt, *text], len(prompt), params, LIMITS["float32"]))
        for prompt, text, params in zip(prompts, texts, asked, strict=True)
    ]
    assert expected[0] > 5
    assert expected[2] == 0
    assert counted(engine) == [(30, n) for n in expected]


@pytest.mark.usefixtures("written")
def test_sampled_sums_are_compared_with_their_noise(fast: Pair, launcher: str) -> None:
    params = SamplingParams(max_tokens=60, temperature=4.0, seed=8, ignore_eos=True)
    engine = with_limit(core(fast, "fast", speculation=TREE, engine=launcher), 0.05)
    (text,) = outputs(engine, [([1, 2], params)])
    expected = sum(closest([1, 2, *text], 2, params, 0.05))
    assert 0 < expected < 60
    assert counted(engine) == [(60, expected)]


def test_speculation_changes_no_count(fast: Pair, launcher: str) -> None:
    """The same tokens are decided as closely with drafts as without."""
    jobs = [
        ([3, 1, 4, 1, 5, 9][: 2 + n], SamplingParams(max_tokens=25, seed=n, ignore_eos=True, **how))
        for n, how in enumerate(
            (
                {},
                {"temperature": 0.8},
                {"temperature": 0.8, "top_p": 0.9},
                {"repetition_penalty": 1.3},
            )
        )
    ]
    found = []
    for speculation in (PLAIN, TREE):
        engine = with_limit(core(fast, "fast", speculation=speculation, engine=launcher), 0.05)
        found.append((outputs(engine, jobs), counted(engine)))
    assert found[0] == found[1]
    assert sum(near for _, near in found[0][1]) > 0


def test_exact_numerics_and_coins_count_nothing(pair: Pair, fast: Pair, launcher: str) -> None:
    coins = replace(TREE, rule="coins")
    for engine in (
        core(pair, speculation=TREE, engine=launcher),
        core(fast, "fast", speculation=coins, engine=launcher),
    ):
        outputs(engine, [([1, 2], SamplingParams(max_tokens=5, temperature=0.5, seed=1))])
        assert engine.near_ties.rate is None
        assert "not counted" in str(engine.near_ties)


def test_cells() -> None:
    assert cell_of(1, 1) == cell_of(1024, 1) == ("1024", "1")
    assert cell_of(1025, 2) == ("8192", "8")
    assert cell_of(32768, 32) == ("32768", "32")
    assert cell_of(32769, 33) == ("more", "more")
    tally = NearTies()
    tally.count(("1024", "1"), 1000, 2)
    tally.count(("8192", "1"), 1000, 1)
    assert str(tally) == "near ties: 1.5e-03 of 2,000 tokens"
