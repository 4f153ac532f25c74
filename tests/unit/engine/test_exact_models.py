"""Exact numerics on a CPU beyond the tiny pair: sliding windows keep their bits."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerie.assemble.core import build_core, load_target
from aerie.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from aerie.engine.engine import Limits
from aerie.models.decoder import Decoder
from aerie.requests.params import SamplingParams
from tests.unit.engine.cores import BUCKETS, PLAIN, finish_all
from tests.unit.models import tiny

MODEL = ModelConfig(device="cpu", numerics="exact", dtype="float32")
NGRAM = SpeculationConfig(method="ngram", depth=4, nodes=5)


def written(target: Decoder, speculation: SpeculationConfig, **sizes: Any) -> list[Any]:
    """Texts and their log-probabilities, which tell bits that tokens hide."""
    config = EngineConfig(
        model=MODEL,
        cache=CacheConfig(n_pages=400, page_size=4),
        scheduler=SchedulerConfig(max_batch=sizes["batch"], prefill_chunk=sizes["chunk"]),
        speculation=speculation,
        graphs=BUCKETS,
        engine=sizes["engine"],
    )
    core = build_core(config, target, None, Limits(200, target.geometry.vocab_size, ()))
    rng = random.Random(1)
    prompts = [[rng.randrange(20) for _ in range(n)] * 2 for n in (3, 40, 17, 30)]
    asked = SamplingParams(max_tokens=30, ignore_eos=True, logprobs=2)
    ids = [
        core.submit(prompt, replace(asked, seed=n, temperature=0.8 * (n % 2)))
        for n, prompt in enumerate(prompts)
    ]
    finish_all(core)
    return [(core.request(n).output, core.request(n).scored) for n in ids]


@pytest.mark.slow  # it builds the model with transformers
def test_windows_keep_their_bits(tmp_path: Path) -> None:
    target = load_target(tiny.build("qwen2_window", tmp_path), MODEL)
    assert any(window is not None for window in target.geometry.attention.windows)
    alone = written(target, PLAIN, batch=1, chunk=16, engine="direct")
    assert written(target, NGRAM, batch=4, chunk=8, engine="direct") == alone
    assert written(target, NGRAM, batch=4, chunk=64, engine="graphs") == alone
